"""A rule that saw nothing, or next to nothing, has passed nothing."""

import numpy as np
import pytest

from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from tests.rules.scalars import autoregressive, healthy, view

MEASURING = [rule for rule in rules().values() if rule.measures]


@pytest.mark.parametrize("names", [(), ("some.other.number",)])
def test_without_a_series_every_rule_is_skipped(names: tuple[str, ...]) -> None:
    made = view({name: autoregressive(np.random.default_rng(0), 50) for name in names})
    results = run_rules(MEASURING, made)
    assert {result.code for result in results if result.outcome != "skipped"} == set()
    assert all(result.reason for result in results)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_row_or_two_of_a_log_pass_nothing(rows: int) -> None:
    for seed in range(20):
        run = healthy(np.random.default_rng(seed))
        few = {name: values[:rows] for name, values in run.items()}
        assert {result.code for result in run_rules(MEASURING, view(few)) if result.outcome != "skipped"} == set()


def test_one_row_that_cannot_be_is_told() -> None:
    results = run_rules(MEASURING, view({"policy.entropy": np.array([-0.3])}))
    assert [result.code for result in results if result.findings] == ["RLD006"]


def test_rewards_alone_let_pass_only_what_looks_at_them() -> None:
    made = view({"reward.mean": 0.4 + 0.03 * autoregressive(np.random.default_rng(0), 100, 0.5)})
    passed = {result.code for result in run_rules(MEASURING, made) if result.outcome == "passed"}
    assert passed == {"RLD303", "RLD401", "RLD403", "RLD601"}
