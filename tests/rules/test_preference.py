"""Runs on preferences: what is said of margins, losses and sides."""

from dataclasses import replace

import numpy as np
import pytest

from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.schema import RunInfo
from tests.rules.scalars import Floats, alarms, autoregressive, severity, view

LOG_2 = np.log(2.0)


def healthy(seed: int, n: int = 100, margin: float = 3.0, chosen: float = 0.8) -> dict[str, Floats]:
    """A run of pairs that learns: the margin grows and slows down, the loss follows."""
    rng = np.random.default_rng(seed)
    learned = 1 - np.exp(-4 * np.arange(n) / n)
    gain = margin * learned * (1 + 0.05 * autoregressive(rng, n, 0.3)) + 0.02 * autoregressive(rng, n)
    side = chosen * learned + 0.02 * autoregressive(rng, n)
    return {
        "pref.margin": gain,
        "pref.chosen_reward": side,
        "pref.rejected_reward": side - gain,
        "pref.accuracy": np.clip(0.5 + 0.4 * np.tanh(gain) + 0.03 * autoregressive(rng, n), 0, 1),
        "pref.loss": np.log1p(np.exp(-gain)) + 0.02 * np.abs(autoregressive(rng, n)),
        "pref.chosen_logprob": -80 + 10 * side + 3 * autoregressive(rng, n),
        "pref.rejected_logprob": -95 + 10 * (side - gain) + 3 * autoregressive(rng, n),
        "optim.grad_norm": 2 * np.exp(0.4 * autoregressive(rng, n, 0.3)),
        "optim.learning_rate": np.linspace(5e-7, 0.0, n),
    }


@pytest.mark.parametrize("kind", [{}, {"n": 30}, {"margin": 0.1}, {"margin": 6.0, "chosen": -0.5}])
def test_healthy_runs_raise_no_alarm(kind: dict[str, float]) -> None:
    for seed in range(20):
        found = replace(view(healthy(seed, **kind)), info=RunInfo(algorithm="dpo"))  # type: ignore[arg-type]
        results = {result.code: result for result in run_rules(rules().values(), found)}
        assert not alarms(results), (seed, alarms(results))


def test_a_margin_beyond_the_loss_is_a_warning_and_without_loss_an_error() -> None:
    run = healthy(0, margin=14.0)
    run["pref.accuracy"][20:] = 1.0
    assert severity("RLD430", run) == "warning"
    run["pref.loss"][50:] = 0.0
    assert severity("RLD430", run) == "error"


def test_four_rows_are_enough_for_a_margin_that_explodes() -> None:
    run = {
        "pref.margin": np.array([0.0, 27, 120, 142]),
        "pref.accuracy": np.array([0.0, 0.9, 1, 1]),
        "pref.loss": np.array([0.693, 0.16, 0, 0]),
    }
    assert severity("RLD430", run) == "error"
    assert severity("RLD430", {name: values[:3] for name, values in run.items()}) is None


def test_a_large_margin_on_pairs_that_are_still_confused_is_left_alone() -> None:
    run = healthy(1, margin=14.0)
    run["pref.accuracy"][:] = 0.8
    assert severity("RLD430", run) is None


@pytest.mark.parametrize("same", [True, False])
def test_margins_of_zero_are_an_error_with_identical_pairs_told_apart(same: bool) -> None:
    run = {"pref.margin": np.zeros(40), "pref.loss": np.full(40, LOG_2), "pref.chosen_logprob": np.linspace(-90, -80, 40)}
    run["pref.rejected_logprob"] = run["pref.chosen_logprob"] - (0 if same else 5)
    found = run_rules([rules()["RLD431"]], view(run))[0].findings[0]
    assert found.severity == "error"
    assert ("same text" in found.cause) == same


def test_a_constant_loss_of_log_two_without_margins_is_an_error() -> None:
    assert severity("RLD431", {"pref.loss": np.full(40, LOG_2)}) == "error"
    assert severity("RLD431", {"pref.loss": LOG_2 - np.linspace(0, 0.1, 40)}) is None


def test_a_loss_of_zero_needs_a_margin() -> None:
    assert severity("RLD431", {"pref.loss": np.zeros(20), "pref.margin": np.zeros(20)}) == "error"
    assert severity("RLD431", {"pref.loss": np.zeros(20), "pref.margin": np.linspace(0, 90, 20)}) is None


def test_labels_at_random_are_a_warning_over_a_long_log_only() -> None:
    rng = np.random.default_rng(2)
    run = {
        "pref.margin": 0.02 * rng.standard_normal(200),
        "pref.accuracy": 0.5 + 0.05 * rng.standard_normal(200),
        "pref.loss": LOG_2 + 0.01 * rng.standard_normal(200),
    }
    assert severity("RLD431", run) == "warning"
    assert severity("RLD431", {name: values[:15] for name, values in run.items()}) is None


def test_a_fall_of_both_sides_is_info_and_a_warning_where_the_chosen_side_is_lost() -> None:
    run = healthy(3, margin=3.0, chosen=-2.0)
    assert severity("RLD432", run) == "info"
    lost = healthy(3, margin=3.0, chosen=-6.0)
    assert severity("RLD432", lost) == "warning"
    del lost["pref.chosen_logprob"]
    assert severity("RLD432", lost) == "info"
    assert severity("RLD432", healthy(3, margin=3.0, chosen=-0.3)) is None


@pytest.mark.parametrize("n", [12, 100])
def test_a_margin_that_falls_below_zero_is_reversed(n: int) -> None:
    run = healthy(4, n=n, margin=-2.0)
    assert severity("RLD433", run) == "error"
    run["pref.accuracy"][:] = 0.6
    assert severity("RLD433", run) is None


def test_margins_follow_from_the_rewards_where_they_are_not_logged() -> None:
    run = healthy(5, margin=-2.0)
    del run["pref.margin"]
    assert severity("RLD433", run) == "error"


def test_a_run_without_preferences_skips() -> None:
    for code in ("RLD430", "RLD431", "RLD432", "RLD433"):
        assert run_rules([rules()[code]], view({"reward.mean": np.ones(40)}))[0].outcome == "skipped"
