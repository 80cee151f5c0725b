"""No rule warns of a healthy run, whatever its kind and seed."""

from __future__ import annotations

import pytest

from tests.diseases.verdict import verdict
from tests.simulation.healthy import KINDS, LONG

_BLOCKS = [
    range(5),
    range(5, 10),
    *(pytest.param(range(first, first + 10), marks=pytest.mark.slow) for first in range(10, 50, 10)),
]


@pytest.mark.parametrize("seeds", _BLOCKS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
@pytest.mark.parametrize("kind", KINDS)
def test_silent_on_healthy_runs(kind: str, seeds: range) -> None:
    spoken = {}
    for seed in seeds:
        found = verdict(KINDS[kind](seed))
        assert not found.crashed
        if alarms := found.alarms():
            spoken[seed] = alarms
    assert not spoken


@pytest.mark.parametrize("seed", range(2))
def test_silent_on_a_long_run(seed: int) -> None:
    found = verdict(LONG(seed))
    assert not found.crashed
    assert not found.alarms()


@pytest.mark.parametrize("kind", ["two_epochs", "agentic"])
def test_verdict_is_the_same_however_a_step_is_split(kind: str) -> None:
    whole, split = KINDS[kind](3), KINDS[kind](3)
    split.parts = 7
    assert verdict(whole) == verdict(split)
