"""From which step on a metric of one run stays outside the band of another's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SMOOTHED: Final = 5
"""Points of the moving median of the difference."""
DEVIATIONS: Final = 3.0
"""Half the width of the band, in standard deviations of the difference from point to point."""
MATERIAL: Final = 0.01
"""The band is at least so wide, relative to the usual size of the values."""
SHORTEST: Final = 10
"""Shared points from which on it is looked for."""
STAYS: Final = (5, 0.1)
"""Points, and share of the shared points, that must follow outside the band; the larger counts."""
_ROBUST: Final = 1.4826
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Divergence:
    """How a metric of one run stands to that of another.

    Attributes:
        n: number of shared points.
        at: index of the first point from which on the difference stays outside the band; None where it does not.
        stays: number of points from there on; their moving median lies outside, but for the first few points.
        limit: half the width of the band.
        here: median of the run's values from there on (of all points where it does not leave the band).
        there: the same of the other run.
        equal: number of points at the start at which both are the same number.
        short: whether there are too few points to tell.
    """

    n: int
    at: int | None
    stays: int
    limit: float
    here: float
    there: float
    equal: int
    short: bool = False


def divergence(here: Floats, there: Floats) -> Divergence:
    """Hold the values of a run against those of another at the same points.

    The band is ``DEVIATIONS`` standard deviations of the difference wide to both sides of the other run, as its changes from
    point to point tell (median absolute deviation; the plain one where most changes are the same), and at least ``MATERIAL`` of
    the mean size of the values. The difference, by its moving median over ``SMOOTHED`` points, must lie outside on one side at
    every point from some point on to the last shared one, for at least ``STAYS``.

    Args:
        here: finite, float64 ``[n]``.
        there: finite, float64 ``[n]``.
    """
    n = len(here)
    off = here - there
    size = np.maximum(np.abs(here), np.abs(there))
    unequal = np.flatnonzero(np.abs(off) > _ROUNDING * size)
    equal = int(unequal[0]) if unequal.size else n
    limit = band(here, there)
    middle = (float(np.median(here)), float(np.median(there))) if n else (np.nan, np.nan)
    if n < SHORTEST:
        return Divergence(n, None, 0, limit, *middle, equal, short=True)
    smooth = moving_median(off)
    outside = (np.abs(smooth) > limit) & (np.sign(smooth) == np.sign(smooth[-1]))
    inside = np.flatnonzero(~outside)
    start = int(inside[-1]) + 1 if inside.size else 0
    clear = (np.abs(off) > limit) & (np.sign(off) == np.sign(smooth[-1]))
    clear[: max(start - SMOOTHED // 2, 0)] = False  # so far the moving median may be late, or early
    start = int(np.argmax(clear)) if start < n and clear.any() else n
    if n - start < max(STAYS[0], STAYS[1] * n):
        return Divergence(n, None, 0, limit, *middle, equal)
    return Divergence(n, start, n - start, limit, float(np.median(here[start:])), float(np.median(there[start:])), equal)


def band(here: Floats, there: Floats) -> float:
    """Half the width of the band of the difference of two runs, each float64 ``[n]``."""
    if len(here) < 2:
        return float("nan")
    usual = max(float(np.mean(np.abs(here))), float(np.mean(np.abs(there))))
    return max(DEVIATIONS * math.hypot(_scatter(here), _scatter(there)) / math.sqrt(2), MATERIAL * usual)


def _scatter(values: Floats) -> float:
    """Standard deviation of the changes from point to point, float64 ``[n]``; robust, unless most of them are the same."""
    changes = np.diff(values)
    return _ROBUST * float(np.median(np.abs(changes - np.median(changes)))) or float(np.std(changes))


def moving_median(values: Floats) -> Floats:
    """Median over ``SMOOTHED`` points around each, fewer at the ends, float64 ``[n]``."""
    reach = SMOOTHED // 2
    padded = np.concatenate([np.full(reach, np.nan), values, np.full(reach, np.nan)])
    return np.asarray(np.nanmedian(sliding_window_view(padded, SMOOTHED), axis=1), np.float64)
