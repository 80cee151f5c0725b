"""Rewards that are cut off, on generation batches made by hand."""

from __future__ import annotations

import math
import random

import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.schema import REWARD_COMPONENT_PREFIX
from tests.unit.analyzer.memory import MemoryRun, Row

A, B = REWARD_COMPONENT_PREFIX + "a", REWARD_COMPONENT_PREFIX + "b"


def rows(*, high: float = math.inf, low: float = -math.inf, noise: float = 0.0, number: int = 60) -> list[Row]:
    rng = random.Random(5)
    made: list[Row] = []
    for _ in range(number):
        a, b = rng.gauss(0.0, 1.0), float(rng.random() < 0.5)
        reward = min(max(2.0 * a + 0.25 * b + noise * rng.gauss(0.0, 1.0), low), high)
        made.append({"step": 1, A: a, B: b, "reward": reward})
    return made


def clipped(made: list[Row], cut: int | None = None) -> dict[str, float]:
    found = analyze(MemoryRun(made, cut=cut), ["clip."]).series
    return {name.removeprefix("clip."): float(series.values[0]) for name, series in found.items() if len(series.values)}


@pytest.mark.parametrize("cut", [None, 3, 4])
def test_shares_and_excess_are_those_of_a_plain_loop(cut: int | None) -> None:
    made = rows(high=1.5, low=-2.0)
    whole = [2.0 * row[A] + 0.25 * row[B] for row in made]
    over, under = [x - 1.5 for x in whole if x > 1.5], [-2.0 - x for x in whole if x < -2.0]
    found = clipped(made, cut)
    assert found["high_frac"] == len(over) / len(made) > 0.1
    assert found["low_frac"] == len(under) / len(made) > 0.1
    assert found["excess"] == pytest.approx(sum(over + under) / len(over + under), abs=1e-5)


def test_a_sum_that_is_not_cut_off_has_none() -> None:
    found = clipped(rows())
    assert (found["high_frac"], found["low_frac"]) == (0.0, 0.0)


@pytest.mark.parametrize("made", [rows(high=1.5, noise=0.1), rows(high=1.5, number=12)], ids=["no sum", "few rows"])
def test_what_is_no_exact_sum_is_not_measured(made: list[Row]) -> None:
    assert math.isnan(clipped(made).get("high_frac", math.nan))


def test_a_component_that_is_never_there_changes_nothing() -> None:
    made = rows(high=1.5)
    assert clipped([{**row, REWARD_COMPONENT_PREFIX + "c": None} for row in made]) == clipped(made)
