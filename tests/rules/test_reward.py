import numpy as np
import pytest

from rl_doctor.schema import RunConfig
from tests.rules.scalars import Floats, autoregressive, healthy, result, severity, with_config

N = 400
TIME = np.arange(N)
RNG = np.random.default_rng


def _noise(scale: float, seed: int = 0, rho: float = 0.5, n: int = N) -> Floats:
    return scale * autoregressive(RNG(seed), n, rho)


def _jumping(size: float = 0.6, at: int = 240, seed: int = 0) -> Floats:
    return np.linspace(0.3, 0.5, N) + _noise(0.02, seed) + size * (at <= TIME)


@pytest.mark.parametrize(("code", "metric"), [("RLD401", "reward.mean"), ("RLD402", "reward.std"), ("RLD403", "reward.mean")])
def test_without_reward_the_column_is_named(code: str, metric: str) -> None:
    made = result(code, {}, missing={metric: ("reward",)})
    assert (made.outcome, made.missing) == ("skipped", ("reward",))


@pytest.mark.parametrize("code", ["RLD401", "RLD402", "RLD403"])
def test_short_is_inconclusive(code: str) -> None:
    made = result(code, {"reward.mean": np.zeros(4), "reward.std": np.full(4, 0.1)})
    assert made.outcome == "skipped" if code != "RLD403" else made.outcome in {"skipped", "passed"}


@pytest.mark.parametrize("scale", [1.0, 50.0, 1e-3])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_jump_is_found_at_any_scale(scale: float, sign: float) -> None:
    for seed in range(5):
        (found,) = result("RLD401", {"reward.mean": scale * _jumping(0.6 * sign, seed=seed)}).findings
        assert found.severity == "warning"
        assert found.evidence[0].first_step == pytest.approx(241, abs=1)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("gae", "error"), ("reinforce", "error"), ("grpo", "warning"), ("rloo", "warning"), (None, "warning")],
)
def test_severity_depends_on_the_baseline(estimator: str | None, expected: str) -> None:
    (found,) = result("RLD401", {"reward.mean": _jumping()}, with_config(adv_estimator=estimator)).findings
    assert found.severity == expected
    assert any("adv_estimator" in words for words in found.unchecked) == (estimator is None)


def test_jump_that_comes_back_is_info() -> None:
    assert severity("RLD401", {"reward.mean": _jumping() - 0.6 * (TIME >= 300)}) == "info"


def test_policy_that_changes_at_the_same_step_is_named() -> None:
    entropy = 0.8 * np.exp(_noise(0.03, 3))
    entropy[240:] += 1.0
    (found,) = result("RLD401", {"reward.mean": _jumping(-0.3), "policy.entropy": entropy}).findings
    assert "policy.entropy" in found.cause
    (found,) = result("RLD401", {"reward.mean": _jumping(-0.3), "policy.entropy": 0.8 * np.exp(_noise(0.03, 3))}).findings
    assert any("policy.entropy" in words for words in found.ruled_out)
    assert any("data_source" in words for words in found.unchecked)


def test_component_that_moves_is_named() -> None:
    part = np.full(N, 0.1) + _noise(0.01, 4)
    part[240:] += 0.6
    (found,) = result("RLD401", {"reward.mean": _jumping(), "reward.component.style.mean": part}).findings
    assert "style" in found.message
    assert found.evidence[0].where == {"component": "style"}


@pytest.mark.parametrize("width", [6, 15, 40])
def test_learning_is_no_drift(width: int) -> None:
    for seed in range(10):
        rise = 0.1 + 0.7 / (1 + np.exp(-(TIME - 150) / width))
        assert severity("RLD401", {"reward.mean": rise + _noise(0.02, seed)}) is None


def test_spike_and_small_shift_within_the_spread_are_no_drift() -> None:
    spike = np.full(N, 0.5) + _noise(0.02)
    spike[200:205] += 0.6
    assert severity("RLD401", {"reward.mean": spike}) is None
    small = {"reward.mean": np.full(N, 0.5) + _noise(0.003, n=N) + 0.05 * (TIME >= 240), "reward.std": np.full(N, 0.45)}
    assert severity("RLD401", small) is None


def test_variance_shift_is_found_with_direction() -> None:
    spread = 0.4 * np.exp(_noise(0.05))
    spread[240:] *= 5
    (found,) = result("RLD402", {"reward.std": spread}).findings
    assert found.severity == "warning"
    assert "grew" in found.message
    assert "fell" in result("RLD402", {"reward.std": 1 / spread}).findings[0].message


def test_spread_of_a_two_valued_reward_follows_its_mean() -> None:
    mean = np.where(TIME < 240, 0.5, 0.97) + _noise(0.005)
    spread = np.sqrt(mean * (1 - mean))
    bounds = {"reward.min": np.zeros(N), "reward.max": np.ones(N)}
    assert severity("RLD402", {"reward.std": spread, "reward.mean": mean, **bounds}) is None
    assert severity("RLD402", {"reward.std": spread}) == "warning"


def test_shrinking_spread_of_a_converging_run_passes() -> None:
    assert severity("RLD402", {"reward.std": (0.05 + 0.4 * np.exp(-TIME / 80)) * np.exp(_noise(0.05))}) is None


def test_all_zero_rewards_are_an_error() -> None:
    zero = np.zeros(40)
    values = {"reward.mean": zero, "reward.std": zero, "reward.min": zero, "reward.max": zero}
    (found,) = result("RLD403", values).findings
    assert found.severity == "error"
    assert any("finish_reason" in words for words in found.unchecked)
    (alone,) = result("RLD403", {"reward.mean": zero}).findings
    assert alone.severity == "error"


def test_truncation_is_named_before_the_reward_function() -> None:
    zero = np.zeros(40)
    (cut,) = result("RLD403", {"reward.mean": zero, "length.limit_frac": np.full(40, 0.97)}).findings
    assert "length limit" in cut.cause
    (ended,) = result("RLD403", {"reward.mean": zero, "length.limit_frac": np.zeros(40)}).findings
    assert "exception" in ended.cause
    assert any("length limit" in words for words in ended.ruled_out)


def test_reward_that_falls_to_a_constant_is_an_error_and_a_solved_task_is_not() -> None:
    mean = np.full(100, 0.5) + _noise(0.05, n=100)
    spread = np.full(100, 0.5)
    mean[70:], spread[70:] = 0.0, 0.0
    assert severity("RLD403", {"reward.mean": mean, "reward.std": spread}) == "error"
    mean[70:] = 1.0
    assert severity("RLD403", {"reward.mean": mean, "reward.std": spread}) == "info"


def test_a_few_zero_steps_and_varied_rewards_pass() -> None:
    run = healthy(RNG(0))
    run["reward.mean"][10:13] = 0.0
    run["reward.std"][10:13] = 0.0
    assert severity("RLD403", run, RunConfig()) is None
    assert result("RLD403", {"reward.mean": np.zeros(3)}).reason == "length"


def test_reward_that_falls_over_many_steps_is_a_warning() -> None:
    for seed in range(10):
        noise = 0.03 * autoregressive(np.random.default_rng(seed), 100, 0.3)
        falling = {"reward.mean": np.linspace(0.6, 0.1, 100) + noise, "reward.std": np.full(100, 0.4)}
        (found,) = result("RLD401", falling).findings
        assert found.severity == "warning"
        assert "over many steps" in found.message
        assert severity("RLD401", {**falling, "reward.mean": np.linspace(0.1, 0.6, 100) + noise}) is None
        assert severity("RLD401", {**falling, "reward.mean": np.linspace(0.6, 0.52, 100) + noise}) is None
        harder = np.zeros(100)
        harder[[30, 60]] = 1.0
        assert severity("RLD401", {**falling, "data.source_change": harder}) is None


@pytest.mark.parametrize(("estimator", "expected"), [("grpo", "warning"), ("gae", "error"), ("reinforce", "error")])
def test_shifts_are_worse_where_the_baseline_is_not_the_groups(estimator: str, expected: str) -> None:
    rng = np.random.default_rng(0)
    mean, std = 0.5 + 0.02 * autoregressive(rng, 100), 0.4 * np.exp(0.05 * autoregressive(rng, 100))
    mean[60:] += 0.6
    std[60:] *= 4.0
    values = {"reward.mean": mean, "reward.std": std}
    assert severity("RLD401", values, with_config(adv_estimator=estimator)) == expected
    assert severity("RLD402", values, with_config(adv_estimator=estimator)) == expected
    other = np.zeros(100)
    other[60] = 1.0
    assert severity("RLD401", {**values, "data.source_change": other}, with_config(adv_estimator=estimator)) is None
    assert severity("RLD402", {**values, "data.source_change": other}, with_config(adv_estimator=estimator)) is None


def test_fast_learning_within_what_single_responses_earned_before_is_no_drift() -> None:
    rng = np.random.default_rng(1)
    mean = np.where(np.arange(40) < 10, 0.76, 1.07) + 0.045 * rng.standard_normal(40)
    values = {"reward.mean": mean, "reward.std": np.full(40, 0.45), "reward.max": np.full(40, 1.2)}
    assert severity("RLD401", values) is None
    assert severity("RLD401", {**values, "reward.mean": np.where(np.arange(40) < 10, mean, mean + 1.0)}) == "warning"


def test_mean_that_was_never_filled_in_is_not_judged() -> None:
    rng = np.random.default_rng(0)
    zero = np.zeros(40)
    made = result("RLD403", {"reward.mean": zero, "optim.grad_norm": 0.3 + 0.1 * rng.random(40)})
    assert (made.outcome, made.reason) == ("skipped", "data")
    assert "gradient" in made.detail
    assert severity("RLD403", {"reward.mean": zero, "optim.grad_norm": zero}) == "error"
    assert severity("RLD403", {"reward.mean": zero, "reward.std": zero, "optim.grad_norm": zero + 0.3}) == "error"
    advantages = {"reward.mean": zero, "reward.std": zero, "optim.grad_norm": zero + 0.3, "adv.max": zero + 1.4}
    assert result("RLD403", advantages).outcome == "skipped"


def test_reward_that_stands_still_over_a_long_run_is_a_warning() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        floor = np.where(rng.random(100) < 0.64, -0.1, -0.1 - 0.003 * rng.random(100))
        noisy = {"reward.mean": -0.5 + 0.1 * rng.standard_normal(100), "reward.score_mean": floor}
        assert severity("RLD403", noisy) == "warning"
        assert severity("RLD403", {name: part[:60] for name, part in noisy.items()}) is None
        solved = 0.97 + 0.002 * rng.standard_normal(100)
        assert severity("RLD403", {"reward.mean": solved}) is None
        assert severity("RLD403", {"reward.mean": 2 * solved, "reward.max": np.full(100, 2.0)}) is None
        assert severity("RLD403", {"reward.mean": 500 + np.linspace(0, 0.6, 100) + 0.05 * rng.standard_normal(100)}) is None


def test_the_reward_of_both_sides_of_pairs_is_not_judged_by_its_mean() -> None:
    falling = {"reward.mean": 0.5 - 0.004 * np.arange(N) + _noise(0.01), "reward.std": np.full(N, 0.1)}
    assert severity("RLD401", falling) == "warning"
    assert result("RLD401", {**falling, "pref.paired_frac": np.ones(N)}).reason == "config"
    assert severity("RLD401", {**falling, "pref.paired_frac": np.zeros(N)}) == "warning"


def _rescaled(factor: float, steps: int = 100, at: int = 10, seed: int = 0) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    unit = np.where(np.arange(steps) < at, 1.0, factor)
    level, deviation = (base * np.exp(0.2 * rng.standard_normal(steps)) * unit for base in (0.35, 0.4))
    return {"reward.mean": level, "reward.std": deviation, "reward.max": 1.3 * unit}


@pytest.mark.parametrize("steps", [40, 100])
@pytest.mark.parametrize("spread", ["reward.std", "reward.spread", "group.std_mean"])
def test_another_unit_early_in_a_run_is_found_by_its_level_and_its_spread(steps: int, spread: str) -> None:
    made = _rescaled(20.0, steps)
    told = {"reward.mean": made["reward.mean"], spread: made["reward.std"]}
    for code in ("RLD401", "RLD402"):
        (found,) = result(code, told).findings
        assert (found.severity, found.first_step) == ("warning", 11)
    (found,) = result("RLD401", {"reward.mean": made["reward.mean"], "reward.max": made["reward.max"]}).findings
    assert found.first_step == 11


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_a_reward_that_scatters_by_factors_rises_to_no_other_unit(rho: float) -> None:
    series = (np.exp(0.4 * autoregressive(RNG(seed), steps, rho)) for seed in range(150) for steps in (30, 60, 150))
    told = [item.message for values in series for item in result("RLD401", {"reward.mean": values}).findings]
    assert not [message for message in told if "rose" in message]


def test_a_spread_within_groups_that_a_two_valued_reward_s_mean_explains_is_no_other_unit() -> None:
    mean = np.where(np.arange(100) < 50, 0.02, 0.4) + 0.001 * np.random.default_rng(0).standard_normal(100)
    groups = 0.9 * np.sqrt(mean * (1.0 - mean))
    assert not result("RLD402", {"reward.mean": mean, "group.std_mean": groups}).findings
