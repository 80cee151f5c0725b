"""Variances, correlations and slopes against rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor.analyzer.moments import correlation, moments, slope, std, variance
from rl_doctor.analyzer.states import Sum, Sums

moderate = st.floats(min_value=-1e100, max_value=1e100)


def array(values: list[float]) -> np.ndarray:
    return np.array(values, np.float64)


@given(st.lists(moderate, min_size=2, max_size=20), st.sampled_from([0, 1]))
def test_the_variance_is_exact(values: list[float], ddof: int) -> None:
    numbers = list(map(Fraction, values))
    centre = sum(numbers) / len(numbers)
    expected = float(sum((number - centre) ** 2 for number in numbers) / (len(numbers) - ddof))
    assert variance(moments(array(values)), ddof) == pytest.approx(expected, rel=1e-15, abs=1e-250)


def test_equal_values_have_no_variance() -> None:
    assert std(moments(array([0.1] * 7)), 1) == 0.0
    assert math.isnan(std(moments(array([0.1])), 1))
    assert math.isnan(std(moments(array([0.1, math.inf])), 1))
    assert math.isnan(std(moments(array([0.1, math.nan])), 1))


@given(st.lists(st.tuples(moderate, moderate), min_size=2, max_size=12))
def test_correlation_and_slope_are_those_of_exact_arithmetic(pairs: list[tuple[float, float]]) -> None:
    x, y = (list(map(Fraction, side)) for side in zip(*pairs, strict=True))
    products = (x, y, [a * a for a in x], [b * b for b in y], [a * b for a, b in zip(x, y, strict=True)])
    state = Sums(tuple(Sum(int(sum(terms) * 2**1126), len(terms)) for terms in products))
    n = len(x)
    spread = [n * sum(a * a for a in side) - sum(side) ** 2 for side in (x, y)]
    if min(spread) < Fraction(1, 10**200):
        return
    covariance = n * sum(products[4]) - sum(x) * sum(y)
    scale = math.isqrt(int(spread[0] * spread[1] * 10**400))
    assert slope(state) == pytest.approx(float(covariance / spread[0]), rel=1e-12)
    assert correlation(state) == pytest.approx(float(Fraction(int(covariance * 10**200), scale)), abs=1e-9)


def test_the_correlation_says_nothing_without_variation() -> None:
    assert math.isnan(correlation(Sums()))
    assert math.isnan(slope(Sums()))
    assert math.isnan(correlation(Sums(tuple(Sum.of(array([value, value])) for value in (1.0, 2.0, 1.0, 4.0, 2.0)))))
    assert math.isnan(correlation(Sums(tuple(Sum.of(array([math.nan])) for _ in range(5)))))
    assert math.isnan(correlation(Sums(tuple(Sum.of(array([value])) for value in (0.1, 0.1, 0.01, 0.02, 0.03)))))
