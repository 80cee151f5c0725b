"""Second moments: variances, correlations and slopes from exact sums, evaluated in exact arithmetic."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.exact import UNIT, exact_quotient
from rl_doctor.analyzer.states import Sum, Sums

_SPLITTER: Final = float((1 << 27) + 1)
_TINY: Final = 1e-140


def moments(values: NDArray[np.float64]) -> Sums:
    """Exact ``Sums`` of x and of x squared: each square is split into three products that float64 holds exactly."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = values * values
        scaled = values * _SPLITTER
        high = scaled - (scaled - values)
        low = values - high
        exact = np.isfinite(high) & (np.abs(values) > _TINY)
        parts = np.concatenate([high[exact] ** 2, 2.0 * high[exact] * low[exact], low[exact] ** 2, squares[~exact]])
    return Sums((Sum.of(values), Sum.of(parts, values.size)))


def variance(moments: Sums, ddof: int) -> float:
    """The variance from a ``Sums`` of (x, x squared), evaluated in exact arithmetic; NaN for count <= ddof."""
    first, second = moments[0], moments[1]
    if not first.finite or not second.finite or first.count <= ddof:
        return math.nan
    n = first.count
    numerator = second.total * n * UNIT - first.total * first.total
    return max(exact_quotient(numerator, n * (n - ddof) * UNIT * UNIT), 0.0)


def std(moments: Sums, ddof: int) -> float:
    """The standard deviation from a ``Sums`` of (x, x squared)."""
    return math.sqrt(variance(moments, ddof))


def correlation(state: Sums) -> float:
    """Pearson's correlation from a ``Sums`` of (x, y, x*x, y*y, x*y, ...); NaN where either does not vary."""
    covariance, left, right = _products(state)
    return covariance / math.isqrt(left * right) if left > 0 and right > 0 else math.nan


def slope(state: Sums) -> float:
    """The least-squares slope of y on x from a ``Sums`` of (x, y, x*x, y*y, x*y, ...); NaN where x does not vary."""
    covariance, left, _ = _products(state)
    return exact_quotient(covariance, left) if left > 0 else math.nan


def _products(state: Sums) -> tuple[int, int, int]:
    """The covariance and both variances, times n squared in exact units; zeros where they are not defined."""
    x, y, xx, yy, xy = state.parts[:5] or (Sum(),) * 5
    if x.count < 2 or not all(part.finite for part in (x, y, xx, yy, xy)):
        return 0, 0, 0
    n = x.count * UNIT
    return xy.total * n - x.total * y.total, xx.total * n - x.total**2, yy.total * n - y.total**2
