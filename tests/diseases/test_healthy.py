"""No rule warns of a healthy run, whatever its kind and seed."""

from __future__ import annotations

from typing import Final

import pytest

from tests.diseases.verdict import verdict
from tests.simulation.healthy import KINDS, LONG

MANY: Final = frozenset({"on_policy", "two_epochs", "agentic", "low_entropy", "rising_fast", "saturating", "few_samples"})
"""Kinds that are held to 20 seeds; the others to 10. The scorecard has hundreds of each family of healthy training."""
BLOCKS: Final = [(kind, range(first, first + 10)) for kind in KINDS for first in range(0, 20 if kind in MANY else 10, 10)]


def test_the_kinds_exist() -> None:
    assert set(KINDS) >= MANY


@pytest.mark.parametrize(("kind", "seeds"), BLOCKS, ids=[f"{kind}-{seeds.start}" for kind, seeds in BLOCKS])
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
