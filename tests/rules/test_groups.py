import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Result
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo
from tests.rules.scalars import CONFIG, Floats, autoregressive, result, severity, with_config

N = 60


def _judge(
    code: str,
    values: dict[str, Floats],
    config: RunConfig = CONFIG,
    count: int = 8,
    missing: dict[str, tuple[str, ...]] | None = None,
) -> Result:
    made = {
        name: Series(name, "1", np.arange(len(part)), np.asarray(part, float), np.full(len(part), count))
        for name, part in values.items()
    }
    result = run_rules([rules()[code]], View(RunInfo(config=config), made, missing or {}))[0]
    assert result.outcome != "crashed", result
    return result


def _severity(code: str, values: dict[str, Floats], config: RunConfig = CONFIG, count: int = 8) -> str | None:
    found = _judge(code, values, config, count).findings
    return found[0].severity if found else None


@pytest.mark.parametrize(
    ("code", "metric"),
    [
        ("RLD407", "group.zero_std_frac"),
        ("RLD408", "group.near_zero_std_frac"),
        ("RLD409", "group.size_min"),
        ("RLD410", "adv.abs_mean"),
    ],
)
def test_the_missing_column_is_named(code: str, metric: str) -> None:
    made = _judge(code, {}, missing={metric: ("group",)})
    assert (made.outcome, made.missing, made.reason) == ("skipped", ("group",), "column")


@pytest.mark.parametrize("code", ["RLD407", "RLD408"])
def test_few_groups_are_inconclusive(code: str) -> None:
    assert _judge(code, {"group.zero_std_frac": np.ones(3), "group.near_zero_std_frac": np.ones(3)}, count=2).reason == "length"


def test_no_signal_from_the_first_step_on_is_told_from_there() -> None:
    for n in (8, 50):
        share = np.ones(n)
        share[-1] = 0.95
        spread = np.full(n, 0.11)
        (found,) = _judge("RLD407", {"group.zero_std_frac": share, "reward.std": spread}, count=1).findings
        assert found.severity == "error"
        assert (found.evidence[0].first_step, found.evidence[0].last_step) == (0, n - 1)
        assert "from step 0 on" in found.message


@pytest.mark.parametrize("metric", ["group.std_mean", "reward.spread", "reward.std"])
def test_standard_deviation_of_zero_at_nearly_all_steps_is_no_signal_either(metric: str) -> None:
    rng = np.random.default_rng(0)
    spread = np.where(rng.random(N) < 0.96, 0.0, 0.1)
    mean = 0.5 + 0.1 * rng.standard_normal(N)
    (found,) = _judge("RLD407", {metric: spread, "reward.mean": mean}, count=1).findings
    assert found.severity == "error"
    assert metric in found.evidence[0].metric
    often = np.where(rng.random(N) < 0.7, 0.0, 0.1)
    assert _severity("RLD407", {metric: often, "reward.mean": mean}, count=1) is None


def test_a_warning_begins_where_the_share_rose() -> None:
    share = np.concatenate([np.full(60, 0.3), np.full(40, 0.85)]) + 0.02 * autoregressive(np.random.default_rng(0), 100)
    (found,) = _judge("RLD407", {"group.zero_std_frac": share, "reward.mean": np.full(100, 0.4)}).findings
    assert found.severity == "warning"
    assert found.evidence[0].first_step == pytest.approx(60, abs=3)


def test_half_of_the_groups_wasted_in_a_long_run_that_learns_nothing_is_a_warning() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        share = (rng.random(400) < 0.6).astype(float)
        flat = {"group.zero_std_frac": share, "reward.mean": 0.9 + 0.3 * rng.standard_normal(400)}
        assert _severity("RLD407", flat, count=1) == "warning"
        rising = {**flat, "reward.mean": np.linspace(0.2, 1.2, 400) + 0.3 * rng.standard_normal(400)}
        assert _severity("RLD407", rising, count=1) is None
        assert _severity("RLD407", {name: part[:80] for name, part in flat.items()}, count=1) is None


def _idle(share: float, right: float, **more: Floats) -> dict[str, Floats]:
    return {
        "group.zero_std_frac": np.full(N, share), "group.all_max_frac": np.full(N, right),
        "group.all_min_frac": np.full(N, share - right), **more,
    }  # fmt: skip


def test_no_signal_in_nearly_all_groups_is_an_error_with_its_cause() -> None:
    wrong = _judge("RLD407", _idle(0.97, 0.0)).findings[0]
    assert wrong.severity == "error"
    assert "all wrong" in wrong.cause
    right = _judge("RLD407", _idle(0.97, 0.95)).findings[0]
    assert right.severity == "error"
    assert "too easy" in right.cause
    cut = _judge("RLD407", _idle(0.97, 0.0, **{"length.limit_frac": np.full(N, 0.9)})).findings[0]
    assert "length limit" in cut.cause


def test_solved_run_is_info_and_standing_share_a_warning() -> None:
    late = np.linspace(0.1, 0.98, N)
    solved = {
        "group.zero_std_frac": late, "group.all_max_frac": late, "group.all_min_frac": np.zeros(N),
        "reward.mean": np.linspace(0.3, 0.98, N), "reward.max": np.ones(N), "reward.min": np.zeros(N),
    }  # fmt: skip
    assert _severity("RLD407", solved) == "info"
    assert _severity("RLD407", {"group.zero_std_frac": late}) == "warning"


@pytest.mark.parametrize("count", [1, 3])
def test_a_few_groups_without_variance_in_a_row_happen(count: int) -> None:
    share = np.r_[np.tile([1.0, 0.0, 1.0, 1.0], 15), np.ones(5)]
    assert _severity("RLD407", {"group.zero_std_frac": share}, count=count) is None
    standing = np.r_[np.tile([1.0, 0.0, 1.0, 1.0], 15), np.ones(60)]
    assert _severity("RLD407", {"group.zero_std_frac": standing}, count=count) == "warning"


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_ordinary_and_easing_shares_pass(share: float) -> None:
    assert _severity("RLD407", _idle(share, share / 2)) is None
    assert _severity("RLD407", {"group.zero_std_frac": np.linspace(1.0, share, N)}) is None


def test_one_prompt_per_step_is_judged_by_the_share_of_steps() -> None:
    idle = (np.random.default_rng(0).random(250) < 0.26).astype(float)
    assert _severity("RLD407", {"group.zero_std_frac": idle}, count=1) is None


def test_near_zero_variance_needs_an_estimator_that_divides_by_it() -> None:
    values = {"group.near_zero_std_frac": np.full(N, 0.5)}
    assert _severity("RLD408", values) == "warning"
    assert _judge("RLD408", values, with_config(adv_estimator="dr_grpo")).reason == "config"
    assert _judge("RLD408", values, with_config(adv_norm="none")).reason == "config"
    (found,) = _judge("RLD408", values, RunConfig()).findings
    assert any("adv_estimator" in words for words in found.unchecked)
    assert _severity("RLD408", {"group.near_zero_std_frac": np.full(N, 0.1)}) is None


def _sizes(low: float, high: float, single: float = 0.0, **more: Floats) -> dict[str, Floats]:
    return {
        "group.size_min": np.full(N, low), "group.size_max": np.full(N, high), "group.singleton_frac": np.full(N, single), **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "single", "expected"),
    [(8, 8, 0, None), (1, 1, 1, "error"), (1, 8, 0.1, "warning"), (16, 16, 0, "error"), (8, 16, 0, "warning"),
     (12, 12, 0, "error"), (3, 8, 0, "warning"), (4, 4, 0, "warning")],
)  # fmt: skip
def test_sizes_against_configuration(low: float, high: float, single: float, expected: str | None) -> None:
    assert _severity("RLD409", _sizes(low, high, single)) == expected


def test_groups_that_lack_samples_from_a_step_on_are_told_from_there() -> None:
    values = _sizes(8, 8)
    half = N // 2
    values["group.size_min"][half:], values["group.size_max"][half:] = 3, 5
    (found,) = _judge("RLD409", values).findings
    start = found.evidence[0].first_step
    assert found.message.startswith(f"Groups have 3-5 sequences, steps {start} to")
    assert found.message.endswith(", and group_size is 8")
    (always,) = _judge("RLD409", _sizes(3, 5)).findings
    assert start == always.first_step + half


def test_groups_of_one_name_the_cause() -> None:
    (found,) = _judge("RLD409", _sizes(1, 1, 1.0), RunConfig()).findings
    assert found.severity == "error"
    assert "own" in found.cause
    assert any("group_size" in words for words in found.unchecked)


def test_lost_samples_are_info_where_aborts_explain_them_and_groups_are_not_needed_by_every_estimator() -> None:
    assert _severity("RLD409", _sizes(6, 8, **{"length.aborted_frac": np.full(N, 0.05)})) == "info"
    assert _judge("RLD409", _sizes(1, 1, 1.0), with_config(adv_estimator="gae")).reason == "config"
    assert _judge("RLD409", _sizes(1, 1, 1.0), with_config(adv_estimator=None, group_size=1)).reason == "config"


def test_one_sample_per_prompt_is_an_error_for_an_estimator_that_compares_and_needs_no_metric() -> None:
    for values in ({}, _sizes(1, 1, 1.0)):
        (found,) = _judge("RLD409", values, with_config(group_size=1)).findings
        assert (found.severity, found.suspect) == ("error", "one-sample-per-prompt")


def test_groups_are_not_counted_where_a_reward_is_not_finite() -> None:
    for name in ("numerics.missing_reward_frac", "numerics.infinite_reward_frac"):
        assert _severity("RLD409", _sizes(7, 8, **{name: np.full(N, 0.02)})) is None
        assert _judge("RLD409", _sizes(7, 8, **{name: np.full(N, 0.02)})).reason == "data"
        assert _severity("RLD409", _sizes(7, 8, **{name: np.where(np.arange(N) < 5, 0.02, 0.0)})) == "warning"


def _fits(**residuals: float) -> dict[str, Floats]:
    noise = np.abs(1 + 0.05 * autoregressive(np.random.default_rng(0), N))
    values = {f"advantage.fit_{name}_mean": value * noise for name, value in residuals.items()}
    return {**values, "adv.abs_mean": np.full(N, 0.8), "adv.varying_frac": np.zeros(N)}


def test_advantages_that_the_configuration_reproduces_pass() -> None:
    assert _judge("RLD410", _fits(configured=1e-7, rloo=0.3, dr_grpo=0.4), count=500).outcome == "passed"


def test_another_ddof_than_configured_is_worth_knowing_and_no_alarm() -> None:
    (found,) = _judge("RLD410", _fits(configured=0.05, grpo_group_ddof0_eps6=1e-7, rloo=0.3), count=500).findings
    assert (found.severity, found.suspect) == ("info", "advantage-convention-differs")
    assert "ddof0" in found.message


def test_advantages_that_change_in_mid_run_are_told_from_there() -> None:
    late = np.arange(N) >= 40
    values = _fits(configured=1e-7, rloo=0.3, dr_grpo=0.4)
    changed = {
        "advantage.fit_configured_mean": np.where(late, 0.3, 1e-7),
        "advantage.fit_rloo_mean": np.where(late, 1e-7, 0.3),
    }
    (found,) = _judge("RLD410", values | changed, count=500).findings
    assert (found.severity, found.evidence[0].first_step) == ("error", 40)
    assert found.suspect == "advantage-of-another-estimator"
    few = {name: np.where(np.arange(N) >= N - 2, part, values[name]) for name, part in changed.items()}
    assert _severity("RLD410", values | few, count=500) is None


def test_another_family_is_an_error_that_names_it() -> None:
    (found,) = _judge("RLD410", _fits(configured=0.4, grpo_group_ddof1_eps6=0.4, dr_grpo=1e-8), count=500).findings
    assert found.severity == "error"
    assert "dr_grpo" in found.cause


def test_no_match_is_an_error_if_declared_and_info_if_not() -> None:
    values = _fits(configured=0.9, grpo_group_ddof1_eps6=0.8, dr_grpo=0.7, rloo=0.9)
    assert _severity("RLD410", values, count=500) == "error"
    values.pop("advantage.fit_configured_mean")
    assert _severity("RLD410", values, RunConfig(), count=500) == "info"


@pytest.mark.parametrize(("name", "words"), [("negated", "opposite sign"), ("reordered", "another order")])
def test_advantages_that_fit_turned_or_in_another_order_are_an_error_without_configuration(name: str, words: str) -> None:
    values = _fits(grpo_group_ddof1_eps6=0.8, dr_grpo=0.7, rloo=0.9)
    (found,) = _judge("RLD410", values | {f"advantage.{name}_mean": np.full(N, 1e-7)}, RunConfig(), count=500).findings
    assert found.severity == "error"
    assert words in found.message
    (found,) = _judge("RLD410", values | {f"advantage.{name}_mean": np.full(N, 0.02)}, RunConfig(), count=500).findings
    assert found.severity == "info"


def test_critic_advantages_are_not_judged_from_groups() -> None:
    values = _fits(dr_grpo=0.9)
    assert _judge("RLD410", values, with_config(adv_estimator="gae"), count=500).reason == "config"
    assert _judge("RLD410", {**values, "adv.varying_frac": np.ones(N)}, count=500).reason == "data"
    assert _judge("RLD410", {**values, "adv.abs_mean": np.zeros(N)}, count=500).reason == "data"
    assert _judge("RLD410", values, count=2).reason == "length"


def test_all_right_and_all_wrong_are_told_by_the_range_of_the_run() -> None:
    """In steps in which every response fails alike, each group has the largest reward of its batch."""
    alike = np.arange(N) % 2 == 0
    values = {
        "group.zero_std_frac": np.ones(N), "group.all_max_frac": np.where(alike, 1.0, 0.1),
        "group.all_min_frac": np.where(alike, 0.0, 0.9), "reward.min": np.full(N, 0.2), "reward.max": np.where(alike, 0.2, 1.2),
    }  # fmt: skip
    (found,) = _judge("RLD407", values).findings
    assert "6% all right, 94% all wrong" in found.message
    assert "too hard" in found.cause
    (found,) = _judge("RLD407", {**values, "reward.max": np.full(N, 0.2)}).findings
    assert "all right" not in found.message
    assert "the same reward" in found.cause


def test_groups_without_variance_are_a_consequence_where_the_reward_is_one_value() -> None:
    idle = {"group.zero_std_frac": np.ones(40), "reward.std": np.zeros(40)}
    assert severity("RLD407", idle | {"reward.mean": np.zeros(40)}) == "info"
    assert severity("RLD403", idle | {"reward.mean": np.zeros(40)}) == "error"
    for seed in range(20):
        assert severity("RLD407", idle | {"reward.mean": np.random.default_rng(seed).uniform(0.2, 0.6, 40)}) == "error"


def test_rows_of_a_log_are_not_said_to_be_groups() -> None:
    assert "1 row, and 16 rows are needed" in result("RLD407", {"group.zero_std_frac": np.full(1, 0.2)}).detail
    assert "1 row" in result("RLD201", {"policy.clip_frac": np.full(1, 0.2)}).detail
