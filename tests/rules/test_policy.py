import math

import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Result
from rl_doctor.rules.policy import k3_bound
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo
from tests.rules.scalars import CONFIG, Floats, result, severity, with_config


def _counted(code: str, values: dict[str, Floats], config: RunConfig = CONFIG, count: int = 500) -> Result:
    """A rule over series that were recomputed from ``count`` tokens a step."""
    made = {
        name: Series(name, "1", np.arange(len(part)), np.asarray(part, float), np.full(len(part), count))
        for name, part in values.items()
    }
    return run_rules([rules()[code]], View(RunInfo(config=config), made))[0]


def test_k3_bound_is_the_smaller_of_both_ends() -> None:
    assert k3_bound(0.2, 0.2) == pytest.approx(0.0176784, abs=1e-6)
    ends = [math.exp(x) - 1 - x for x in (math.log(0.8), math.log(1.2))]
    assert k3_bound(0.2, 0.2) == pytest.approx(min(ends))
    assert k3_bound(1.0, math.inf) == math.inf


def test_without_ratio_or_clip_range_the_columns_are_named() -> None:
    missing = {"policy.outside_frac": ("logprob", "old_logprob"), "policy.later_zero_frac": ("minibatch",)}
    assert result("RLD201", {}, missing=missing).missing == ("logprob", "old_logprob")
    made = result("RLD202", {"policy.ratio_mean": np.ones(40)}, missing=missing)
    assert (made.outcome, made.missing, made.reason) == ("skipped", ("minibatch",), "column")


@pytest.mark.parametrize(("share", "expected"), [(0.02, None), (0.1, None), (0.35, "warning"), (0.7, "error")])
def test_saturation_by_share_outside(share: float, expected: str | None) -> None:
    values = {"policy.outside_frac": np.full(40, share), "policy.kl_old_k3": np.full(40, 0.3)}
    found = _counted("RLD201", values).findings
    assert (found[0].severity if found else None) == expected


@pytest.mark.parametrize(("share", "expected"), [(0.05, None), (0.17, "warning"), (0.45, "error")])
def test_saturation_by_share_clipped(share: float, expected: str | None) -> None:
    assert severity("RLD201", {"policy.clip_frac": np.full(40, share)}) == expected


def test_saturation_names_staleness_and_foreign_logprobs_apart_from_too_many_updates() -> None:
    base = {"policy.outside_frac": np.full(40, 0.5), "policy.kl_old_k3": np.full(40, 0.1)}
    stale = _counted("RLD201", {**base, "stale.mean": np.full(40, 3.0)}).findings[0]
    assert "stale" in stale.cause
    foreign = _counted("RLD201", {**base, "policy.first_outside_frac": np.full(40, 0.48)}).findings[0]
    assert "before any step" in foreign.cause
    updates = _counted("RLD201", {**base, "policy.first_outside_frac": np.zeros(40), "stale.mean": np.zeros(40)}).findings[0]
    assert "too large" in updates.cause
    assert updates.ruled_out
    assert not updates.unchecked
    unknown = _counted("RLD201", base).findings[0]
    assert any("minibatch" in words for words in unknown.unchecked)


def test_tiny_clip_ranges_clip_by_design() -> None:
    config = with_config(clip_low=3e-4, clip_high=4e-4)
    values = {"policy.outside_frac": np.full(40, 0.6), "policy.kl_old_k3": np.full(40, 1e-5)}
    assert _counted("RLD201", values, config).outcome == "passed"
    assert _counted("RLD201", {"policy.outside_frac": np.full(40, 0.6)}, config).reason == "config"
    far = {"policy.outside_frac": np.full(40, 0.95), "policy.kl_old_k3": np.full(40, 0.05)}
    assert _counted("RLD201", far, config).findings[0].severity == "error"


@pytest.mark.parametrize("kl", ["policy.kl_old_k3", "policy.kl_old_k1", "policy.kl_old", "ref.kl"])
def test_clip_share_that_the_kl_does_not_allow_is_left_to_impossible_values(kl: str) -> None:
    values = {"policy.clip_frac": np.ones(40), kl: np.full(40, 1e-9)}
    assert severity("RLD006", values) == "error"
    made = result("RLD201", values)
    assert (made.outcome, made.reason) == ("skipped", "data")


def test_clip_share_that_the_k3_hardly_allows_is_a_wrong_metric() -> None:
    (found,) = result("RLD201", {"policy.clip_frac": np.ones(40), "policy.kl_old_k3": np.full(40, 0.007)}).findings
    assert found.severity == "warning"
    assert "wrong" in found.cause


def test_a_single_step_outside_is_no_saturation() -> None:
    share = np.full(40, 0.01)
    share[-1] = 0.9
    assert severity("RLD201", {"policy.clip_frac": share}) is None


def _inert(**changes: Floats) -> dict[str, Floats]:
    base = {
        "policy.later_zero_frac": np.ones(30), "policy.ratio_zero_frac": np.ones(30), "optim.learning_rate": np.full(30, 1e-6),
        "optim.grad_norm": np.full(30, 0.3),
    }  # fmt: skip
    return {**base, **changes}


def test_inert_in_later_mini_batches_is_an_error() -> None:
    (found,) = _counted("RLD202", _inert()).findings
    assert found.severity == "error"
    assert len(found.ruled_out) == 2


def test_inert_without_learning_rate_and_gradient_is_a_warning_that_says_so() -> None:
    (found,) = _counted("RLD202", {"policy.later_zero_frac": np.ones(30)}).findings
    assert found.severity == "warning"
    assert len(found.unchecked) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"optim.learning_rate": np.zeros(30)},
        {"optim.grad_norm": np.zeros(30)},
        {"policy.later_zero_frac": np.full(30, 0.3)},
    ],
)
def test_steps_that_move_nothing_and_ratios_that_move_pass(changes: dict[str, Floats]) -> None:
    assert not _counted("RLD202", _inert(**changes)).findings


def test_one_step_per_batch_on_policy_is_by_design() -> None:
    made = _counted("RLD202", {"policy.ratio_zero_frac": np.ones(30), "policy.ratio_mean": np.ones(30)})
    assert (made.outcome, made.reason) == ("skipped", "data")


def test_lag_with_a_ratio_of_one_is_a_warning_unless_corrected() -> None:
    values = {"policy.ratio_zero_frac": np.ones(30), "stale.mean": np.full(30, 2.0)}
    (found,) = _counted("RLD202", values).findings
    assert found.severity == "warning"
    assert "recomputed" in found.cause
    assert not _counted("RLD202", values, with_config(is_correction="tis")).findings
    assert not _counted("RLD202", {**values, "stale.mean": np.zeros(30)}).findings


def test_ratio_of_one_with_a_faithful_sampler_passes() -> None:
    gap = 0.01 * np.exp(0.05 * np.random.default_rng(0).standard_normal(100))
    values = {"policy.ratio_mean": np.ones(100), "policy.kl_old_k3": np.zeros(100), "mismatch.abs": gap}
    assert severity("RLD202", values) is None
    drifting = {**values, "mismatch.abs": gap * np.geomspace(1, 20, 100)}
    assert severity("RLD202", drifting) == "warning"
    assert severity("RLD202", {**drifting, "policy.kl_old_k3": np.full(100, 1e-4)}) is None


def _alternating(steps: int, share: float = 0.7) -> dict[str, Series]:
    """Two passes over each batch, each a step: on the first the ratio is 1 by design, on the second ``share`` is outside."""
    at = np.arange(1, steps + 1)
    trained = at % 2 == 0
    made = {"policy.outside_frac": (at, np.where(trained, share, 0.0)), "policy.kl_old_k3": (at, np.where(trained, 0.13, 0.0))}
    made |= {"policy.first_outside_frac": (at[~trained], np.zeros(int((~trained).sum())))}
    made |= {"policy.later_outside_frac": (at[trained], np.full(int(trained.sum()), share))}
    return {name: Series(name, "1", x, np.asarray(y, float), np.full(len(x), 320)) for name, (x, y) in made.items()}


@pytest.mark.parametrize("steps", [*range(8, 34), 59, 60])
def test_passes_that_alternate_are_judged_alike_wherever_the_run_ends(steps: int) -> None:
    (found,) = run_rules([rules()["RLD201"]], View(RunInfo(config=CONFIG), _alternating(steps)))[0].findings
    assert (found.severity, found.first_step, found.evidence[0].value) == ("warning", 2, pytest.approx(0.35))


def test_passes_that_alternate_are_judged_as_trainers_that_log_once_a_batch_are() -> None:
    assert run_rules([rules()["RLD201"]], View(RunInfo(config=CONFIG), _alternating(40, 0.4)))[0].outcome == "passed"
    assert (
        _counted("RLD201", {"policy.outside_frac": np.full(20, 0.2), "policy.kl_old_k3": np.full(20, 0.13)}).outcome == "passed"
    )


@pytest.mark.parametrize("steps", [39, 40, 60])
def test_a_logged_share_of_alternating_passes_is_judged_over_whole_batches(steps: int) -> None:
    values = np.where(np.arange(steps) % 2 == 1, 0.45, 0.0)
    (found,) = result("RLD201", {"policy.clip_frac": values}).findings
    assert found.severity == "warning"
    assert result("RLD201", {"policy.clip_frac": values * 0.5}).outcome == "passed"


def test_saturation_begins_where_it_lasts_from() -> None:
    share = np.r_[np.full(20, 0.05), np.full(40, 0.7)]
    share[35] = 0.1
    (found,) = _counted("RLD201", {"policy.outside_frac": share, "policy.kl_old_k3": np.full(60, 0.3)}).findings
    assert (found.first_step, found.severity) == (20, "error")


@pytest.mark.parametrize(("share", "expected"), [(0.35, "info"), (0.7, "warning")])
def test_saturation_that_is_over_is_info_unless_it_was_severe(share: float, expected: str) -> None:
    values = {"policy.outside_frac": np.r_[np.full(8, share), np.full(52, 0.05)], "policy.kl_old_k3": np.full(60, 0.13)}
    (found,) = _counted("RLD201", values).findings
    assert found.severity == expected


def test_a_series_that_ends_with_the_first_pass_of_its_only_batch_stays_as_it_is() -> None:
    made = _alternating(20)
    outside, steps = made["policy.outside_frac"], np.arange(1, 21)
    made["policy.first_outside_frac"] = Series("policy.first_outside_frac", "1", steps[-1:], np.zeros(1), np.full(1, 320))
    made["policy.later_outside_frac"] = Series(
        "policy.later_outside_frac", "1", steps[:-1], outside.values[:-1], np.full(19, 320)
    )
    assert run_rules([rules()["RLD201"]], View(RunInfo(config=CONFIG), made))[0].outcome != "crashed"
