from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.schema import RunConfig
from tests.rules.scalars import Floats, autoregressive, healthy, result, series, severity, view, with_config

RNG = np.random.default_rng


def _run(seed: int = 0, **changes: Floats) -> dict[str, Floats]:
    return {**healthy(RNG(seed)), **changes}


def _steady(n: int = 400, level: float = 0.02, seed: int = 0) -> Floats:
    return level * np.exp(0.15 * autoregressive(RNG(seed), n))


@pytest.mark.parametrize("code", ["RLD203", "RLD204", "RLD205", "RLD207"])
def test_without_kl_the_missing_column_is_named(code: str) -> None:
    missing = {"ref.kl_k3": ("ref_logprob",), "policy.kl_old_k3": ("old_logprob",)}
    made = result(code, {"reward.mean": np.ones(100)}, missing=missing)
    assert (made.outcome, made.missing, made.reason) == ("skipped", ("ref_logprob",), "column")


@pytest.mark.parametrize("code", ["RLD203", "RLD204", "RLD205"])
def test_short_runs_are_inconclusive(code: str) -> None:
    made = result(code, {"ref.kl_k3": np.array([0.0, 0.0, 0.5, 0.0])})
    assert made.outcome == "skipped"
    assert made.reason == "length"


def test_recovered_spike_is_info_and_names_steps_level_and_factor() -> None:
    kl = _steady()
    kl[240:245] *= 25
    made = result("RLD203", _run(**{"ref.kl_k3": kl}))
    (found,) = made.findings
    assert found.severity == "info"
    evidence = found.evidence[0]
    assert (evidence.first_step, evidence.last_step, evidence.n) == (241, 245, 5)
    assert evidence.value / (evidence.baseline or 0) == pytest.approx(25, rel=0.5)
    assert any("grad_norm" in words for words in found.ruled_out)


def test_large_recent_spike_is_a_warning_and_one_that_lasts_too() -> None:
    recent = _steady()
    recent[385:390] *= 60
    assert severity("RLD203", {"ref.kl_k3": recent}) == "warning"
    ongoing = _steady()
    ongoing[392:] *= 12
    assert severity("RLD203", {"ref.kl_k3": ongoing}) == "warning"


@pytest.mark.parametrize(
    ("steps", "last", "severities"), [(24, 2, {"info"}), (24, 3, {"warning"}), (24, 6, {"error"}), (16, 3, {"info"})]
)
def test_a_spike_that_stays_takes_three_steps_and_a_level_to_be_told_from(steps: int, last: int, severities: set[str]) -> None:
    kl = _steady(steps)
    kl[-last:] *= 12
    made = result("RLD203", {"policy.kl_old_k3": kl})
    assert {finding.severity for finding in made.findings} == severities


def test_spike_within_numeric_noise_is_left_alone() -> None:
    kl = _steady(level=1e-6)
    kl[200] *= 100
    assert severity("RLD203", {"ref.kl_k3": kl}) is None


def test_spike_of_the_kl_to_the_sampling_policy_counts_whatever_its_sign() -> None:
    kl = 0.002 * RNG(0).standard_normal(400)
    kl[200:203] = -0.4
    assert severity("RLD203", {"policy.kl_old_k1": kl}) == "info"


def test_runaway_is_an_error_when_the_reward_falls_and_a_warning_while_it_rises() -> None:
    kl = _steady()
    kl[240:] *= np.geomspace(1, 50, 160)
    falling = np.concatenate([np.full(260, 0.6), np.linspace(0.6, 0.2, 140)]) + 0.01 * RNG(1).standard_normal(400)
    rising = np.linspace(0.2, 0.8, 400) + 0.01 * RNG(1).standard_normal(400)
    assert severity("RLD204", {"ref.kl_k3": kl, "reward.mean": falling}) == "error"
    assert severity("RLD204", {"ref.kl_k3": kl, "reward.mean": rising}) == "warning"


def test_runaway_onset_is_near_where_it_began() -> None:
    kl = _steady()
    kl[240:] *= np.geomspace(1, 50, 160)
    (found,) = result("RLD204", {"ref.kl_k3": kl}).findings
    assert found.evidence[0].first_step == pytest.approx(255, abs=25)
    assert any("reward" in words for words in found.unchecked)


@pytest.mark.parametrize(
    "shape",
    [
        lambda t: 0.6 * (1 - np.exp(-t / 80)),
        lambda t: 1e-6 * (t + 1) ** 2,
        lambda t: 2e-4 * t,
        lambda t: 0.05 / (1 + np.exp(-(t - 100) / 25)),
    ],
)
def test_growth_that_slows_down_is_no_runaway(shape: object) -> None:
    assert callable(shape)
    for seed in range(10):
        kl = shape(np.arange(400.0)) * np.exp(0.2 * autoregressive(RNG(seed), 400, 0.5))
        assert severity("RLD204", {"ref.kl_k3": kl}) is None


def test_lasting_jump_of_the_kl_is_a_runaway_and_one_that_comes_back_is_not() -> None:
    kl = _steady()
    kl[100:] *= 40
    assert severity("RLD204", {"ref.kl_k3": kl}) in {"warning", "error"}
    kl = _steady()
    kl[100:200] *= 40
    assert severity("RLD204", {"ref.kl_k3": kl}) is None


def test_flatline_all_run_needs_a_coefficient_and_updates() -> None:
    flat = _run(**{"ref.kl_k3": np.zeros(400)})
    made = result("RLD205", flat)
    (found,) = made.findings
    assert found.severity == "error"
    assert len(found.ruled_out) == 2
    assert severity("RLD205", flat, with_config(kl_coef=0.0)) is None
    assert severity("RLD205", flat, RunConfig()) == "warning"  # logged, as trainers do where a KL term is on
    recomputed = {name: series(name, part, count=9) for name, part in flat.items()}
    unknown = run_rules([rules()["RLD205"]], replace(view(flat, RunConfig()), all_series=recomputed))[0]
    assert (unknown.outcome, unknown.reason, unknown.missing) == ("skipped", "config", ("config.kl_coef",))
    still = {**flat, "optim.learning_rate": np.zeros(400), "policy.kl_old_k3": np.zeros(400)}
    assert result("RLD205", still).outcome == "skipped"


def test_flatline_without_gradient_norm_says_what_it_could_not_check() -> None:
    (found,) = result("RLD205", {"ref.kl_k3": np.full(50, 1e-12)}).findings
    assert {words.rpartition(": ")[2] for words in found.unchecked} == {"learning_rate", "grad_norm"}


def test_small_kl_of_a_slow_run_is_no_flatline() -> None:
    slow = 1e-6 * np.arange(400) * np.exp(0.3 * autoregressive(RNG(0), 400))
    assert severity("RLD205", {"ref.kl_k3": slow}) is None
    rounded = np.round(slow, 4)
    assert severity("RLD205", {"ref.kl_k3": rounded}) is None


def test_fall_to_zero_is_an_error_and_a_periodic_reset_is_not() -> None:
    kl = _steady()
    kl[240:] = 0.0
    (found,) = result("RLD205", {"ref.kl_k3": kl}).findings
    assert found.severity == "error"
    assert found.evidence[0].first_step == 241
    sawtooth = 1e-4 * (np.arange(400) % 100)
    assert severity("RLD205", {"ref.kl_k3": sawtooth}) is None


def test_wrong_reference_at_the_first_step() -> None:
    wrong = 0.3 * np.exp(0.1 * RNG(0).standard_normal(60))
    made = result("RLD207", {"ref.kl_k3": wrong})
    (found,) = made.findings
    assert found.severity == "error"
    assert found.evidence[0].first_step == 1
    assert found.unchecked


def test_right_reference_numeric_noise_and_first_updates_pass() -> None:
    assert severity("RLD207", _run()) is None
    assert severity("RLD207", {"ref.kl_k3": np.array([8e-4, 0.1, 0.2])}) is None
    assert severity("RLD207", {"ref.kl_k3": np.array([0.06, 0.5, 0.6, 0.7])}) == "warning"


def test_first_mini_batch_is_taken_where_it_is_known() -> None:
    values = {"ref.kl_first_k3": np.full(30, 1e-5), "ref.kl_k3": np.full(30, 0.2)}
    assert severity("RLD207", values) is None


def test_resumed_run_is_not_judged() -> None:
    from rl_doctor.analyzer.series import Series
    from rl_doctor.rules.registry import rules
    from rl_doctor.rules.runner import run_rules
    from rl_doctor.rules.view import View
    from rl_doctor.schema import RunInfo

    late = Series("ref.kl_k3", "nat", np.arange(500, 530), np.full(30, 0.4), np.full(30, 100))
    made = run_rules([rules()["RLD207"]], View(RunInfo(), {"ref.kl_k3": late}))[0]
    assert (made.outcome, made.reason) == ("skipped", "data")


def _words(code: str, values: dict[str, Floats]) -> str:
    (found,) = result(code, values).findings
    return found.message


def test_passes_before_any_update_are_no_level_for_a_spike() -> None:
    kl = np.zeros(80)
    kl[1::2] = 0.004 * np.exp(0.15 * autoregressive(RNG(0), 40))
    assert severity("RLD203", {"policy.kl_old_k3": kl}) is None
    kl[41] = 0.2
    assert severity("RLD203", {"policy.kl_old_k3": kl}) == "info"
    assert "44 times its level of 0.00454" in _words("RLD203", {"policy.kl_old_k3": kl})


def test_no_factor_is_absurd() -> None:
    kl = _steady(60, 1e-7)
    kl[30] = 2e5
    assert "where its median is 1" in _words("RLD203", {"ref.kl_k3": kl})
    kl = _steady(60, 2e-3)
    kl[30] = 2e5
    assert "more than 1000 times" in _words("RLD203", {"ref.kl_k3": kl})
    kl[30:] = 2e5
    assert "more than 1000 times" in _words("RLD204", {"ref.kl_k3": kl})


@pytest.mark.parametrize("step", [8, 12, 16, 20, 24, 28, 30, 32, 34])
def test_a_jump_that_lasts_to_the_end_is_told_once_and_never_said_to_recover(step: int) -> None:
    for seed in range(5):
        kl = _steady(40, seed=seed)
        kl[step:] *= 25
        found = [item for code in ("RLD203", "RLD204") for item in result(code, {"ref.kl_k3": kl}).findings]
        assert len(found) == 1
        assert "recovered" not in found[0].message.replace("has not recovered", "")
        assert found[0].severity != "info"
        assert found[0].evidence[0].first_step == pytest.approx(step + 1, abs=1)


def test_a_spike_that_ends_on_a_higher_level_has_not_recovered() -> None:
    kl = _steady(80)
    kl[40:44] *= 40
    kl[44:] *= 3
    assert "has not recovered" in _words("RLD203", {"ref.kl_k3": kl})


def test_a_lasting_jump_of_four_times_is_a_warning() -> None:
    for seed in range(10):
        kl = 0.165 * np.exp(0.05 * autoregressive(RNG(seed), 40, 0.3))
        kl[24:] *= 4.2
        (found,) = result("RLD204", {"ref.kl_k3": kl}).findings
        assert found.severity == "warning"
        assert "rose at once 4" in found.message


def test_runaway_that_starts_at_the_reference() -> None:
    time = np.arange(60)
    for seed in range(10):
        kl = 2e-3 * time * np.exp(0.1 * autoregressive(RNG(seed), 60)) + np.where(time > 20, 1e-4 * np.exp(0.26 * (time - 20)), 0)
        kl[0] = 0.0
        rising = np.linspace(0.2, 0.8, 60) + 0.01 * RNG(1).standard_normal(60)
        assert severity("RLD204", {"ref.kl_k3": kl, "reward.mean": rising}) == "warning"


def test_tens_of_nats_are_an_error_even_while_the_reward_rises() -> None:
    time = np.arange(60)
    kl = 0.5 * time * np.exp(0.1 * autoregressive(RNG(0), 60))
    rising = np.linspace(0.2, 0.8, 60) + 0.01 * RNG(1).standard_normal(60)
    assert severity("RLD204", {"ref.kl_k3": kl, "reward.mean": rising}) == "error"
    assert severity("RLD204", {"ref.kl_k3": 0.005 * kl, "reward.mean": rising}) is None


def test_reference_is_not_judged_by_noise_nor_surely_by_a_kl_of_unknown_kind() -> None:
    for seed in range(20):
        noise = 0.3 * RNG(seed).standard_normal(40)
        assert severity("RLD207", {"ref.kl_k1": np.concatenate([[0.2], noise])}) is None
        far = 0.4 * np.exp(0.1 * RNG(seed).standard_normal(40))
        assert severity("RLD207", {"ref.kl_k1": far}) == "error"
        assert severity("RLD207", {"ref.kl": far}) == "warning"
        assert result("RLD207", {"ref.kl": far[:9]}).reason == "length"
        assert severity("RLD207", {"ref.kl": 0.2 * far}) is None


def test_a_spike_that_is_lower_at_the_last_step_is_not_told_as_one_that_stays() -> None:
    kl = _steady(60)
    kl[-3:-1] *= 30
    assert "stood below the limit again at the end" in _words("RLD203", {"policy.kl_old_k3": kl})
    kl[-1] *= 30
    assert "has not recovered" in _words("RLD203", {"policy.kl_old_k3": kl})
