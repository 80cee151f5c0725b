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
        ((0.35, 0.35), "flat", "warning"),
        ((0.26, 0.26), "flat", "info"),
        ((0.95, 0.45), "flat", "warning"),
        ((0.97, 0.97), "rising", "error"),
        ((0.75, 0.97), "rising", "error"),
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


def test_truncation_without_reward_says_what_was_not_seen() -> None:
    for share, expected in ((1.0, "error"), (0.7, "warning")):
        (found,) = result("RLD501", {"length.limit_frac": np.full(N, share)}).findings
        assert found.severity == expected
        assert found.unchecked


def test_a_few_rows_in_which_every_response_is_cut_are_enough() -> None:
    assert severity("RLD501", {"length.truncated_frac": np.ones(10)}) == "error"
    assert result("RLD501", {"length.truncated_frac": np.ones(3)}).reason == "length"
    easing = {"length.truncated_frac": np.linspace(0.8, 0.6, 15), "reward.mean": np.full(15, 0.1)}
    assert severity("RLD501", easing) == "warning"


def test_cut_responses_that_earn_like_others_are_no_error() -> None:
    values = {"length.limit_frac": np.full(N, 0.95), "length.limit_reward_mean": np.full(N, 0.5), **_reward("rising")}
    assert severity("RLD501", values) == "warning"
    (found,) = result("RLD501", values).findings
    assert "earn no less for it" in found.cause, "a limit that is too short is no advice here"


@pytest.mark.parametrize(("loops", "expected"), [(0.99, {"error"}), (0.4, {"warning"})])
def test_loops_in_nearly_all_responses_are_told_beside_truncation(loops: float, expected: set[str]) -> None:
    values = {"repeat.loop_frac": np.full(N, loops), "length.truncated_frac": np.ones(N)}
    assert severity("RLD022", values) in expected


def test_growth_to_a_multiple_with_a_reward_that_ends_lower_is_an_error() -> None:
    for seed in range(20):
        noise = 0.25 * autoregressive(RNG(seed), N, 0.5)
        values = {"length.mean": _grown(13.0), "reward.mean": np.linspace(6.8, 5.4, N) + noise}
        assert severity("RLD502", values) == "error"


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
