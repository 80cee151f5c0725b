"""Rules of what a KL's samples, a penalty's mask and a loss's terms contradict, on series alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.causes.diagnose import diagnose
from rl_doctor.report.model import Result
from rl_doctor.rules.loss_terms import ENTROPY, KL, told_by_terms
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo
from tests.rules.scalars import Floats, series, view

RNG = np.random.default_rng


def _counted(values: dict[str, Floats], count: int, config: RunConfig | None = None, **info: object) -> View:
    made = {name: series(name, part, count=count) for name, part in values.items()}
    return View(replace(RunInfo(config=config or RunConfig()), **info), made)  # type: ignore[arg-type]


def _result(code: str, seen: View) -> Result:
    (made,) = run_rules([rules()[code]], seen)
    assert made.outcome != "crashed", made.detail
    return made


def _sampled(level: float, n: int = 40, seed: int = 0, error: float = 0.004) -> dict[str, Floats]:
    values = level + error * RNG(seed).standard_normal(n)
    return {"ref.sampled_k1": values, "ref.sampled_k1_error": np.full(n, error), "ref.sampled_abs": np.full(n, 0.08)}


def test_a_mean_below_zero_beyond_its_error_is_found_with_an_interval() -> None:
    made = _result("RLD210", _counted(_sampled(-0.02), 64))
    (found,) = made.findings
    (item,) = found.evidence
    assert found.severity == "warning"
    assert item.interval is not None
    assert item.interval[0] < item.value < item.interval[1] < 0.0


@pytest.mark.parametrize("seed", range(20))
def test_noise_around_zero_is_left_alone(seed: int) -> None:
    assert _result("RLD210", _counted(_sampled(0.0, seed=seed), 64)).outcome != "found"


def test_a_mean_below_zero_by_next_to_nothing_is_left_alone() -> None:
    assert _result("RLD210", _counted(_sampled(-5e-4, error=1e-5), 64)).outcome == "passed"


def test_few_sequences_are_inconclusive() -> None:
    made = _result("RLD210", _counted(_sampled(-0.02, n=3), 4))
    assert (made.outcome, made.reason) == ("skipped", "length")


def test_a_kl_below_zero_from_some_step_on_begins_there() -> None:
    values = _sampled(0.01)
    values["ref.sampled_k1"][25:] -= 0.1
    made = _result("RLD210", _counted(values, 64))
    assert made.findings[0].first_step == 26


def _padded(slope: float, levels: dict[int, float], n: int = 30) -> dict[str, Floats]:
    noise = 1e-4 * RNG(1).standard_normal(n)
    parts = {f"ref.abs_by.left_padding.{low}": np.full(n, level) for low, level in levels.items()}
    return {"ref.padding_slope": slope + noise, **parts}


def test_a_distance_that_grows_with_padding_is_found() -> None:
    assert _result("RLD211", _counted(_padded(0.01, {0: 0.01, 4: 0.05, 16: 0.2}), 64)).outcome == "found"


@pytest.mark.parametrize("levels", [{0: 0.05, 4: 0.06, 16: 0.07}, {0: 0.05, 4: 0.3, 16: 0.16}, {0: 1e-4, 16: 1e-3}])
def test_a_distance_that_does_not_grow_with_padding_by_much_or_in_order_is_left_alone(levels: dict[int, float]) -> None:
    assert _result("RLD211", _counted(_padded(0.01, levels), 64)).outcome == "passed"


def test_a_slope_within_its_noise_is_left_alone() -> None:
    values = _padded(0.0, {0: 0.01, 4: 0.05, 16: 0.2})
    assert _result("RLD211", _counted(values, 64)).outcome == "passed"


BOTH = {
    "algorithm": {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.01}},
    "actor_rollout_ref": {"actor": {"use_kl_loss": True, "kl_loss_coef": 0.02}},
}


def test_both_switches_on_are_told_from_the_settings() -> None:
    seen = _counted({"ref.kl_k3": np.full(20, 0.1)}, 64, RunConfig(kl_coef=0.02, native=BOTH), trainer="verl")
    made = _result("RLD208", seen)
    assert made.findings[0].severity == "warning"
    assert "0.01" in made.findings[0].message


def test_a_coefficient_of_zero_is_no_second_penalty() -> None:
    native = BOTH | {"algorithm": {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.0}}}
    seen = _counted(
        {"ref.kl_k3": np.full(20, 0.1)}, 64, RunConfig(kl_coef=0.02, kl_in_reward=False, native=native), trainer="verl"
    )
    assert _result("RLD208", seen).outcome != "found"


def test_rewards_of_tokens_that_follow_something_else_are_no_penalty() -> None:
    values = {"penalty.tokens_frac": np.ones(20), "penalty.explained_k1": np.full(20, 0.3), "penalty.coef_k1": np.full(20, 0.05)}
    seen = _counted(values, 500, RunConfig(kl_coef=0.02, kl_in_reward=False))
    assert _result("RLD208", seen).outcome == "passed"
    values["penalty.explained_k1"][:] = 0.99
    assert _result("RLD208", _counted(values, 500, RunConfig(kl_coef=0.02, kl_in_reward=False))).outcome == "found"
    values["penalty.coef_k1"][:] = -0.05  # a bonus
    assert _result("RLD208", _counted(values, 500, RunConfig(kl_coef=0.02, kl_in_reward=False))).outcome == "passed"
    values["penalty.coef_k1"][:] = 0.05
    assert _result("RLD208", _counted(values, 500, RunConfig(kl_coef=0.02, kl_in_reward=True))).reason == "config"


def test_unequal_normalisers_are_meant_under_a_mean_over_sequences() -> None:
    values = {"weight.normaliser_min": np.full(12, 0.2), "weight.normaliser_max": np.full(12, 0.8)}
    assert _result("RLD212", _counted(values, 64)).outcome == "found"
    assert _result("RLD212", _counted(values, 64, RunConfig(loss_agg="seq-mean-token-mean"))).reason == "config"
    partial = _counted(values, 64, world_size=4, writing_ranks=(0,))
    assert _result("RLD212", partial).reason == "data"


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, "passed"), (1.02, "passed"), (2.0, "found"), (0.5, "found")])
def test_a_normaliser_of_another_set_is_told_by_its_factor(factor: float, outcome: str) -> None:
    assert _result("RLD213", _counted(_scaled(factor), 64, RunConfig(minibatches=2))).outcome == outcome


def test_a_smaller_step_at_the_end_of_a_pass_has_no_other_normaliser() -> None:
    assert _result("RLD213", _counted(_scaled(1.5, right=0.5), 64)).outcome == "passed"


def _scaled(factor: float, right: float = 0.0) -> dict[str, Floats]:
    shares = {"min": factor, "max": factor, "right_frac": 1.0 if factor == 1.0 else right}
    return {f"weight.normaliser_{name}": np.full(12, value) for name, value in shares.items()}


def _terms(n: int = 50) -> tuple[Floats, dict[str, tuple[float, Floats]]]:
    rng = RNG(4)
    return rng.standard_normal(n), {KL: (0.05, rng.random(n) + 0.2), ENTROPY: (-0.01, rng.random(n) + 1.0)}


@pytest.mark.parametrize(
    ("kl", "entropy", "suspect"),
    [
        (-1.0, 1.0, "kl-sign-in-loss"), (0.0, 1.0, "kl-left-out-of-loss"), (2.0, 1.0, "kl-twice-in-loss"),
        (1.0, -1.0, "entropy-sign-in-loss"), (1.0, 0.0, "entropy-left-out-of-loss"), (1.0, 100.0, "coefficient-left-out"),
    ],
)  # fmt: skip
def test_the_term_that_is_wrong_is_named(kl: float, entropy: float, suspect: str) -> None:
    policy, terms = _terms()
    total = policy + kl * 0.05 * terms[KL][1] - entropy * 0.01 * terms[ENTROPY][1]
    told = told_by_terms(total, policy, terms, np.full(len(total), 1e-9))
    assert told is not None
    assert told[0] == suspect


def test_two_wrong_terms_and_another_loss_name_none() -> None:
    policy, terms = _terms()
    both = policy - 0.05 * terms[KL][1] + 0.01 * terms[ENTROPY][1]
    assert told_by_terms(both, policy, terms, np.full(len(both), 1e-9)) is None
    assert told_by_terms(3.0 * policy, policy, terms, np.full(len(both), 1e-9)) is None
    right = policy + 0.05 * terms[KL][1] - 0.01 * terms[ENTROPY][1]
    assert told_by_terms(right, policy, terms, np.full(len(both), 1e-9)) is None


def test_a_kl_of_minus_one_throughout_is_minus_the_ratio() -> None:
    seen = view({"policy.kl_old_k1": -1.0 + 1e-3 * RNG(0).standard_normal(40)})
    results = (_result("RLD006", seen),)
    (told,) = diagnose(seen, results)
    assert told.name == "kl-logged-as-minus-ratio"


def test_a_signed_kl_that_scatters_is_no_ratio() -> None:
    assert _result("RLD006", view({"policy.kl_old_k1": 1e-3 * RNG(0).standard_normal(40)})).outcome != "found"
