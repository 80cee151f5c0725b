"""Rules on preferences, critics and rewards, on training that has none of these."""

from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.report.model import Result
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.schema import RunConfig
from tests.rules.scalars import healthy, view

PREFERENCE = ("RLD430", "RLD431", "RLD432", "RLD433")
REWARD = ("RLD401", "RLD402", "RLD403", "RLD404", "RLD413")


def _results(algorithm: str | None, *, sampled: bool) -> dict[str, Result]:
    made = view(healthy(np.random.default_rng(0)) if sampled else {"optim.grad_norm": np.ones(50)}, RunConfig())
    made = replace(made, info=replace(made.info, algorithm=algorithm))
    return {result.code: result for result in run_rules(rules().values(), made)}


@pytest.mark.parametrize("algorithm", ["grpo", None])
def test_preference_rules_do_not_apply_where_a_policy_samples(algorithm: str | None) -> None:
    made = _results(algorithm, sampled=True)
    for code in PREFERENCE:
        assert (made[code].outcome, made[code].reason, made[code].missing) == ("skipped", "config", ())
    assert ("no critic" in made["RLD420"].detail) == (algorithm is not None)


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_reward_and_value_rules_do_not_apply_where_no_policy_samples(algorithm: str) -> None:
    made = _results(algorithm, sampled=False)
    for code in (*REWARD, "RLD420"):
        assert (made[code].outcome, made[code].reason) == ("skipped", "config")
    assert {made[code].reason for code in PREFERENCE} == ({"config"} if algorithm == "sft" else {"data"})


def test_what_was_logged_is_judged_whatever_the_algorithm_is_called() -> None:
    made = view({"reward.mean": np.zeros(50), "pref.margin": np.zeros(50)}, RunConfig())
    made = replace(made, info=replace(made.info, algorithm="sft"))
    found = {result.code for result in run_rules(rules().values(), made) if result.findings}
    assert {"RLD403", "RLD431"} <= found
