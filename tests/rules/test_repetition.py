"""Responses that loop: how bad that is, by how many do, how many are cut, and what the reward does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from tests.rules.scalars import view

N, ROWS = 40, 48


@pytest.mark.parametrize(
    ("loops", "cut", "rising", "expected"),
    [
        (0.15, 0.0, False, "warning"),
        (0.15, 0.0, True, "info"),
        (0.15, 0.5, False, "info"),
        (0.4, 0.5, True, "warning"),
        (0.4, 0.0, True, "info"),
        (0.95, 0.9, True, "error"),
        (0.02, 0.9, True, None),
    ],
)
def test_many_loops_are_told_though_responses_are_cut_and_the_reward_rises(
    loops: float, cut: float, rising: bool, expected: str | None
) -> None:
    steps = np.arange(1, N + 1)
    scalars = {"reward.mean": np.linspace(0.1, 0.9, N) if rising else np.full(N, 0.4)}
    seen = view(scalars)
    responses = {
        name: Series(name, "1", steps, np.full(N, value), np.full(N, ROWS))
        for name, value in (("repeat.loop_frac", loops), ("length.truncated_frac", cut))
    }
    made = run_rules([rules()["RLD022"]], replace(seen, all_series={**seen.all_series, **responses}))[0]
    assert [hit.severity for hit in made.findings] == ([] if expected is None else [expected])
