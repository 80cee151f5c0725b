import numpy as np
import pytest

from tests.rules.scalars import Floats, autoregressive, result, severity

N = 400
TIME = np.arange(N)


def _noise(seed: int = 0, scale: float = 0.05) -> Floats:
    return np.exp(scale * autoregressive(np.random.default_rng(seed), N, 0.5))


def _reward(kind: str) -> dict[str, Floats]:
    base = {
        "rising": np.linspace(0.3, 0.95, N),
        "flat": np.full(N, 0.4),
        "falling": np.where(TIME < 200, 0.6, 0.6 - 0.4 * (TIME - 200) / 200),
    }[kind]
    return {
        "reward.mean": base + 0.01 * autoregressive(np.random.default_rng(5), N),
        "reward.max": np.ones(N),
        "reward.min": np.zeros(N),
    }


@pytest.mark.parametrize("code", ["RLD301", "RLD302"])
def test_without_entropy_the_column_is_named(code: str) -> None:
    made = result(code, _reward("flat"), missing={"policy.entropy": ("entropy",)})
    assert (made.outcome, made.missing) == ("skipped", ("entropy",))


@pytest.mark.parametrize("code", ["RLD301", "RLD302"])
def test_entropy_of_zero_everywhere_was_not_measured(code: str) -> None:
    made = result(code, {"policy.entropy": np.zeros(N)})
    assert (made.outcome, made.reason) == ("skipped", "data")


@pytest.mark.parametrize("code", ["RLD301", "RLD302"])
def test_short_is_inconclusive(code: str) -> None:
    assert result(code, {"policy.entropy": np.geomspace(1, 0.01, 11)}).reason == "length"


def test_a_short_run_that_loses_nearly_all_entropy_is_a_warning() -> None:
    assert severity("RLD301", {"policy.entropy": np.geomspace(3.2, 0.2, 20)}) == "warning"
    assert result("RLD301", {"policy.entropy": np.geomspace(3.2, 0.8, 20)}).reason == "length"
    back = np.where(np.arange(20) == 18, 3.0, np.geomspace(3.2, 0.2, 20))
    assert result("RLD301", {"policy.entropy": back}).reason == "length"


@pytest.mark.parametrize(
    ("sign", "suspect"),
    [("", "exploration-used-up"), ("repeat.loop_frac", "policy-closes-up"), ("length.limit_frac", "policy-closes-up")],
)
def test_loops_and_cuts_are_not_what_learning_looks_like(sign: str, suspect: str) -> None:
    fall = 2.5 * np.exp(-5.0 * np.clip((TIME - 100) / 200, 0, 1)) * _noise()
    grown = {sign: np.clip((TIME - 150) / 200, 0.02, 0.9)} if sign else {}
    (found,) = result("RLD301", {"policy.entropy": fall, **_reward("rising"), **grown}).findings
    assert (found.severity, found.suspect) == ("warning", suspect)


def test_the_onset_does_not_depend_on_how_far_the_entropy_falls() -> None:
    begins = set()
    for depth in (3.0, 9.0):
        fall = np.exp(-depth * np.clip((TIME - 100) / 200 * 9.0 / depth, 0, 1)) * _noise()
        (found,) = result("RLD301", {"policy.entropy": fall, **_reward("flat")}).findings
        begins.add(found.first_step)
    assert len(begins) == 1


@pytest.mark.parametrize("start", [0.05, 0.3, 2.5])
@pytest.mark.parametrize(("reward", "expected"), [("flat", "error"), ("falling", "error"), ("rising", "warning")])
def test_collapse_is_relative_to_the_start_and_judged_by_the_reward(start: float, reward: str, expected: str) -> None:
    fall = start * np.where(TIME < 200, 1.0, np.maximum(np.exp(-(TIME - 200) / 20), 0.03)) * _noise()
    made = result("RLD301", {"policy.entropy": fall, **_reward(reward)})
    (found,) = made.findings
    assert found.severity == expected
    assert "suddenly" in found.message
    assert found.evidence[0].first_step == pytest.approx(215, abs=15)
    if reward == "rising":
        assert "sure" in found.cause


def test_collapse_without_reward_is_a_warning_and_says_so() -> None:
    fall = np.where(TIME < 200, 1.0, 0.03) * _noise()
    (found,) = result("RLD301", {"policy.entropy": fall}).findings
    assert found.severity == "warning"
    assert any("reward" in words for words in found.unchecked)


@pytest.mark.parametrize("pair", [(0.45, 0.28), (0.02, 0.015), (1.8, 0.7)])
def test_ordinary_decline_and_low_entropy_pass(pair: tuple[float, float]) -> None:
    for seed in range(10):
        values = (pair[1] + (pair[0] - pair[1]) * np.exp(-TIME / 100)) * _noise(seed)
        assert severity("RLD301", {"policy.entropy": values, **_reward("flat")}) is None


@pytest.mark.parametrize(("reward", "expected"), [("falling", "error"), ("flat", "info"), ("rising", "info")])
def test_explosion_is_judged_by_the_reward(reward: str, expected: str) -> None:
    values = 0.4 * (1 + 9 / (1 + np.exp(-(TIME - 220) / 15))) * _noise()
    assert severity("RLD302", {"policy.entropy": values, **_reward(reward)}) == expected


def test_explosion_with_growing_truncation_is_a_warning() -> None:
    values = 0.4 * (1 + 9 / (1 + np.exp(-(TIME - 220) / 15))) * _noise()
    cut = np.clip(0.02 + 0.6 * (TIME > 250) + 0.01 * autoregressive(np.random.default_rng(1), N), 0, 1)
    (found,) = result("RLD302", {"policy.entropy": values, "length.limit_frac": cut, **_reward("flat")}).findings
    assert found.severity == "warning"
    assert "truncated" in found.message


def test_rise_by_half_is_no_explosion() -> None:
    assert severity("RLD302", {"policy.entropy": np.linspace(0.5, 0.9, N) * _noise(), **_reward("falling")}) is None
