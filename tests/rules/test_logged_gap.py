"""Rollout against trainer where only the log tells."""

import numpy as np
import pytest

from tests.rules.scalars import Floats, autoregressive, result, severity


def _around(level: float, n: int = 100, seed: int = 0) -> Floats:
    return level * np.exp(0.1 * autoregressive(np.random.default_rng(seed), n, 0.5))


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("mismatch.prob_abs", 0.004, None),
        ("mismatch.prob_abs", 0.03, "warning"),
        ("mismatch.prob_abs", 0.5, "error"),
        ("mismatch.k3", 1e-3, None),
        ("mismatch.k3", 0.05, "warning"),
        ("mismatch.k3", 0.8, "error"),
        ("mismatch.abs", 0.015, None),
        ("mismatch.abs", 0.2, "warning"),
    ],
)
@pytest.mark.parametrize("n", [3, 100])
def test_level_of_the_gap(name: str, level: float, expected: str | None, n: int) -> None:
    assert severity("RLD102", {name: _around(level, n)}) == expected
    assert severity("RLD101", {name: _around(level, n)}) is None


def test_probabilities_that_do_not_correlate_are_an_error() -> None:
    assert severity("RLD102", {"mismatch.prob_abs": _around(0.01), "mismatch.prob_corr": np.full(100, 0.05)}) == "error"
    assert severity("RLD102", {"mismatch.prob_abs": _around(0.004), "mismatch.prob_corr": np.full(100, 0.9996)}) is None


def test_one_row_is_too_short() -> None:
    assert result("RLD102", {"mismatch.abs": np.array([0.5])}).reason == "length"


def test_a_gap_that_grows_is_a_matter_of_stale_weights() -> None:
    grown = _around(0.01, 400)
    grown[200:] *= np.linspace(1, 20, 200)
    assert severity("RLD101", {"mismatch.abs": grown}) == "warning"
    assert severity("RLD101", {"mismatch.abs": grown, "mismatch.is_weight_mean": np.full(400, 0.99)}) is None
    assert severity("RLD101", {"mismatch.abs": 0.1 * grown}) is None


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_noise_of_the_gap_raises_no_alarm(rho: float) -> None:
    for seed in range(60):
        noise = np.exp(0.3 * autoregressive(np.random.default_rng(seed), 60, rho, 3.0).clip(-4, 4))
        assert severity("RLD101", {"mismatch.prob_abs": 0.004 * noise}) is None
        assert severity("RLD102", {"mismatch.prob_abs": 0.004 * noise}) is None


@pytest.mark.parametrize("code", ["RLD103", "RLD104", "RLD105"])
def test_the_shape_of_the_gap_needs_tokens(code: str) -> None:
    made = result(code, {"mismatch.abs": _around(0.01, 400)})
    assert (made.outcome, made.reason) == ("skipped", "column")
    assert "rollout_logprob" in made.missing
