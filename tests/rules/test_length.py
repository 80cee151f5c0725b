import numpy as np
import pytest

from tests.rules.scalars import Floats, autoregressive, result, severity

N = 100
RNG = np.random.default_rng


def _reward(kind: str) -> dict[str, Floats]:
    base = {"rising": np.linspace(0.2, 0.7, N), "flat": np.full(N, 0.1), "falling": np.linspace(0.7, 0.2, N)}[kind]
    return {"reward.mean": base + 0.01 * RNG(0).standard_normal(N), "reward.max": np.ones(N), "reward.min": np.zeros(N)}


def _cut(first: float, last: float) -> Floats:
    return np.clip(np.linspace(first, last, N) + 0.02 * autoregressive(RNG(1), N, 0.5), 0, 1)


@pytest.mark.parametrize(
    ("code", "metric", "column"),
    [
        ("RLD501", "length.truncated_frac_completed", "finish_reason"),
        ("RLD502", "length.mean", "response_length"),
        ("RLD503", "length.aborted_frac", "finish_reason"),
    ],
)
def test_the_missing_column_is_named(code: str, metric: str, column: str) -> None:
    made = result(code, {}, missing={metric: (column,)})
    assert (made.outcome, made.missing) == ("skipped", (column,))


@pytest.mark.parametrize(
    ("shares", "reward", "expected"),
    [
        ((0.05, 0.05), "flat", None),
        ((0.3, 0.3), "flat", "warning"),
        ((0.28, 0.28), "rising", "info"),
        ((0.57, 0.32), "rising", "info"),
        ((0.1, 0.45), "flat", "warning"),
        ((0.9, 0.9), "flat", "error"),
        ((0.9, 0.6), "flat", "warning"),
        ((0.6, 0.6), "rising", "warning"),
    ],
)
def test_truncation_by_share_course_and_reward(shares: tuple[float, float], reward: str, expected: str | None) -> None:
    assert severity("RLD501", {"length.limit_frac": _cut(*shares), **_reward(reward)}) == expected


def test_truncated_responses_at_the_reward_floor_rule_out_the_reward_function() -> None:
    values = {"length.limit_frac": np.ones(N), "reward.mean": np.zeros(N), "reward.max": np.zeros(N), "reward.min": np.zeros(N)}
    (found,) = result("RLD501", values).findings
    assert found.severity == "error"
    assert any("reward function" in words for words in found.ruled_out)


def test_truncation_without_reward_is_no_error_and_says_what_was_not_seen() -> None:
    (found,) = result("RLD501", {"length.limit_frac": np.ones(N)}).findings
    assert found.severity == "warning"
    assert found.unchecked


def test_engine_word_is_taken_before_the_configured_limit() -> None:
    values = {"length.truncated_frac_completed": np.zeros(N), "length.limit_frac": np.ones(N)}
    assert severity("RLD501", values) is None


def _grown(factor: float) -> Floats:
    return 300 * (1 + (factor - 1) / (1 + np.exp(-(np.arange(N) - 50) / 5))) * np.exp(0.05 * autoregressive(RNG(2), N, 0.5))


@pytest.mark.parametrize(
    ("factor", "reward", "expected"),
    [(4.0, "falling", "error"), (4.0, "flat", "warning"), (4.0, "rising", None), (1.3, "falling", None)],
)
def test_growth_is_judged_by_what_it_brings(factor: float, reward: str, expected: str | None) -> None:
    assert severity("RLD502", {"length.mean": _grown(factor), **_reward(reward)}) == expected


def test_growth_without_reward_is_info() -> None:
    (found,) = result("RLD502", {"length.mean": _grown(4.0)}).findings
    assert found.severity == "info"
    assert any("reward" in words for words in found.unchecked)


def test_short_lengths_are_inconclusive() -> None:
    assert result("RLD502", {"length.mean": np.array([100.0, 900.0])}).reason == "length"


def test_aborted_responses() -> None:
    assert severity("RLD503", {"length.aborted_frac": np.full(N, 0.4)}) == "warning"
    assert severity("RLD503", {"length.aborted_frac": np.full(N, 0.04)}) is None
    assert severity("RLD503", {"length.aborted_frac": np.full(N, 0.4), "stale.max": np.full(N, 1.0)}) == "info"
    (found,) = result("RLD503", {"length.aborted_frac": np.full(N, 0.4), "stale.max": np.zeros(N)}).findings
    assert found.ruled_out
    assert result("RLD503", {"length.aborted_frac": np.array([1.0])}).reason == "length"
