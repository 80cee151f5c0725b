"""The stretch of a row in which engine and trainer part."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.analyzer.memory import Row
from tests.unit.analyzer.test_masks import value


def made(seed: int, size: int = 60, start: int | None = None, stop: int | None = None, lag: int = 1, **more: Any) -> Row:
    """A row whose engine's logprobs are moved by ``lag`` from ``start`` to ``stop``; without a start they agree."""
    rng = random.Random(seed)
    trainer = [-rng.expovariate(0.7) for _ in range(size)]
    rollout = [x + rng.gauss(0, 0.01) for x in trainer]
    if start is not None:
        part = rollout[start:stop]
        rollout[start:stop] = part[-lag:] + part[:-lag]
    plain = {"token_id": [5] * size, "response_mask": [True] * size, "old_logprob": trainer, "rollout_logprob": rollout}
    return plain | {"sequence": seed} | more


def test_rows_that_agree_have_none() -> None:
    assert value("inner.parted_frac", *(made(seed) for seed in range(10))) == 0.0


@pytest.mark.parametrize("start", [8, 20, 40])
def test_found_where_it_begins(start: int) -> None:
    rows = [made(seed, start=start) for seed in range(20)]
    assert value("inner.parted_frac", *rows) >= 0.9
    assert value("inner.start_mean", *rows) == pytest.approx(start, abs=2.0)
    assert value("inner.to_end_frac", *rows) >= 0.9
    assert value("inner.shifted_frac", *rows) >= 0.9
    assert value("inner.gap_frac", *rows) == 0.0


def test_a_shift_of_the_whole_row_is_another_fault() -> None:
    assert value("inner.parted_frac", *(made(seed, start=0) for seed in range(20))) == 0.0


def test_a_stretch_in_the_middle_does_not_reach_the_end() -> None:
    rows = [made(seed, start=12, stop=36) for seed in range(20)]
    assert value("inner.parted_frac", *rows) >= 0.8
    assert value("inner.to_end_frac", *rows) == 0.0


def test_a_stretch_that_ends_with_the_turn_reaches_the_end() -> None:
    mask = [True] * 36 + [False] * 4 + [True] * 20
    rows = [made(seed, start=12, stop=36, response_mask=mask) for seed in range(20)]
    assert value("inner.to_end_frac", *rows) >= 0.9
    assert value("inner.gap_frac", *rows) == 1.0


def test_related_logprobs_of_other_weights_are_another_fault() -> None:
    rows = []
    for seed in range(20):
        plain = made(seed)
        rng = random.Random(seed)
        plain["rollout_logprob"] = [x * 1.5 + rng.gauss(0, 0.1) if at >= 20 else x for at, x in enumerate(plain["old_logprob"])]
        rows.append(plain)
    assert value("inner.parted_frac", *rows) == 0.0


def test_weights_that_change_there_are_told() -> None:
    rows = [made(seed, start=20, token_version=[1] * 20 + [2] * 40) for seed in range(20)]
    assert value("inner.switched_frac", *rows) >= 0.8
    assert value("inner.switched_frac", *(made(seed, start=20, token_version=[1] * 60) for seed in range(20))) == 0.0


def test_logprobs_that_were_filled_with_0_are_another_fault() -> None:
    rows = []
    for seed in range(20):
        plain = made(seed)
        plain["rollout_logprob"] = plain["rollout_logprob"][:20] + [0.0] * 40
        rows.append(plain)
    assert value("inner.parted_frac", *rows) == 0.0
