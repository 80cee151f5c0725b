import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_doctor.rules import trend
from tests.rules.scalars import autoregressive


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_spread_of_normal_values_is_their_standard_deviation_whatever_a_few_outliers_are() -> None:
    values = _rng().standard_normal(20_000) * 3.0
    values[:200] = 1e9
    assert trend.spread(values) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_noise_survives_trend_and_shift(rho: float) -> None:
    found = []
    for seed in range(20):
        values = autoregressive(_rng(seed), 800, rho) + np.linspace(0, 30, 800)
        values[400:] += 50
        found.append(trend.noise(values))
    sigma, correlation = np.median(found, axis=0)
    assert sigma == pytest.approx(1.0, rel=0.35)
    assert correlation == pytest.approx(rho, abs=0.15)


def test_change_is_the_same_for_shifted_and_scaled_values() -> None:
    values = autoregressive(_rng(1), 300, 0.5) + np.linspace(0, 5, 300)
    one, two = trend.change(values), trend.change(50 * values - 7)
    assert two.z == pytest.approx(one.z)
    assert two.difference == pytest.approx(50 * one.difference)
    assert one.early.n == 60
    assert one.late.n == 45


def test_change_of_a_constant_is_none() -> None:
    assert trend.change(np.ones(50)).z == 0.0


def test_change_without_noise_is_infinitely_significant() -> None:
    assert trend.change(np.repeat([1.0, 2.0], 100)).z == math.inf


@pytest.mark.parametrize("tail", [None, 3.0])
@pytest.mark.parametrize("n", [100, 400])
def test_changes_and_jumps_hold_their_rate_under_autocorrelated_noise(n: int, tail: float | None) -> None:
    """Less than 1 in 200 of stationary series show a lasting jump; changes of six errors are as rare where n is large."""
    runs = [autoregressive(_rng(seed), n, 0.9, tail) for seed in range(400)]
    jumps = [found for values in runs if (found := trend.jump(values)) is not None and not found.recovered]
    assert len(jumps) <= 2
    if n == 400:
        assert sum(abs(trend.change(values).z) > 6 for values in runs) <= 2


@pytest.mark.parametrize("scale", [1.0, 50.0, 1e-6])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_jump_is_found_where_it_is(scale: float, sign: float) -> None:
    values = autoregressive(_rng(3), 400, 0.5) * 0.02 + np.linspace(0.3, 0.5, 400)
    values[240:] += sign * 0.3
    found = trend.jump(scale * values)
    assert found is not None
    assert abs(found.index - 240) <= 1
    assert found.size == pytest.approx(sign * 0.3 * scale, rel=0.2)
    assert not found.recovered


def test_jump_that_comes_back_is_recovered() -> None:
    values = autoregressive(_rng(4), 400, 0.5) * 0.02
    values[200:300] += 1.0
    found = trend.jump(values)
    assert found is not None
    assert found.recovered


@pytest.mark.parametrize("width", [8, 20, 60])
def test_a_smooth_rise_is_no_jump(width: int) -> None:
    for seed in range(20):
        rise = 1 / (1 + np.exp(-(np.arange(400) - 200) / width))
        assert trend.jump(rise + 0.02 * autoregressive(_rng(seed), 400, 0.5)) is None


@pytest.mark.parametrize("length", [1, 3, 5])
def test_a_spike_is_no_jump(length: int) -> None:
    values = autoregressive(_rng(5), 400, 0.5) * 0.02
    values[200 : 200 + length] += 1.0
    assert trend.jump(values) is None


def test_jump_needs_points() -> None:
    assert trend.jump(np.repeat([0.0, 1.0], 10)) is None


def test_excursion_is_found_with_its_ends_and_its_factor() -> None:
    values = 0.02 * np.exp(0.1 * _rng(6).standard_normal(400))
    values[240:245] = 0.5
    (found,) = trend.excursions(values, 5.0)
    assert (found.first, found.last, found.n) == (240, 244, 5)
    assert found.factor == pytest.approx(25, rel=0.15)
    assert found.recovered


def test_excursion_at_the_end_has_not_recovered() -> None:
    values = 0.02 * np.exp(0.1 * _rng(7).standard_normal(400))
    values[392:] = 0.5
    (found,) = trend.excursions(values, 5.0)
    assert (found.first, found.last) == (392, 399)
    assert not found.recovered


def test_single_outlier_among_scattered_values_is_found() -> None:
    values = 0.03 * np.exp(np.clip(0.6 * _rng(8).standard_normal(250), -1.4, 1.4))
    values[205] = 0.9
    (found,) = trend.excursions(values, 5.0)
    assert found.peak == 205


@pytest.mark.parametrize("values", [np.tile([0.0, 0.001], 100), np.tile([0.0, 0.0, 0.0, 0.001], 50)])
def test_rounded_small_values_are_no_excursion(values: trend.Floats) -> None:
    assert trend.excursions(values, 5.0) == ()


def test_growth_is_no_excursion() -> None:
    assert trend.excursions(np.geomspace(1e-4, 1.0, 400), 5.0) == ()
    assert trend.excursions(np.arange(1.0, 401.0), 5.0) == ()


def test_course_names_direction() -> None:
    noise = 0.02 * autoregressive(_rng(9), 200, 0.5)
    assert trend.course(noise + np.linspace(0, 1, 200)) == "rising"
    assert trend.course(noise - np.linspace(0, 1, 200)) == "falling"
    assert trend.course(noise) == "flat"
    assert trend.course(noise + np.linspace(0, 1, 200), material=2.0) == "flat"
    assert trend.course(noise[:20]) == "unknown"


def test_onset_is_where_the_change_set_in() -> None:
    values = np.concatenate([np.ones(200), np.linspace(1, 0, 50), np.zeros(150)])
    assert trend.onset(values, trend.early(values), rising=False, share=0.1) == pytest.approx(205, abs=3)


def test_run_lengths() -> None:
    assert trend.run_lengths(np.array([True, False, True, True])) == [(0, 0), (2, 3)]
    assert trend.run_lengths(np.zeros(3, np.bool_)) == []


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80), st.sampled_from([3, 5, 9]))
def test_running_median_agrees_with_the_definition(values: list[float], width: int) -> None:
    array = np.array(values)
    half = width // 2
    expected = [np.median(array[max(i - half, 0) : i + half + 1]) for i in range(array.size)]
    np.testing.assert_array_equal(trend.running_median(array, width), expected)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 1e6), min_size=24, max_size=120))
def test_nothing_raises_and_nothing_warns_on_any_finite_series(values: list[float]) -> None:
    array = np.array(values)
    trend.change(array)
    trend.jump(array)
    trend.excursions(array, 5.0)
    assert trend.course(array) in {"rising", "falling", "flat"}


@pytest.mark.parametrize("after", range(12))
@pytest.mark.parametrize("growth", [0.0, 0.05])
def test_a_spike_is_told_from_its_first_point_on_and_stays_told(after: int, growth: float) -> None:
    values = np.exp(growth * np.arange(30) + 0.1 * np.random.default_rng(0).standard_normal(30))
    values[17] *= 20
    (found,) = trend.excursions(values[: 18 + after], 3.5)
    assert (found.first, found.last) == (17, 17)
    assert found.recovered or after < 5


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [(240, 244, "and recovered"), (392, 399, "and has not recovered"), (394, 398, "and stood below the limit again at the end")],
)
def test_what_came_of_an_excursion_is_said_as_far_as_it_is_known(first: int, last: int, words: str) -> None:
    values = 0.02 * np.exp(0.1 * _rng(8).standard_normal(400))
    values[first : last + 1] = 0.5
    (found,) = trend.excursions(values, 5.0)
    assert (found.outcome, found.after) == (words, 399 - last)
