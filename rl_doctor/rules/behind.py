"""Stretches in which an engine falls behind the trainer step by step, and those in which it catches up at once."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.rules.trend import Floats, sliding_medians, spread

_HISTORY: Final = 24
_NEAR: Final = 10
_LEAST_BEFORE: Final = 8
_SIGMAS: Final = 4.0
_PEAK: Final = 9.0
_FLOOR: Final = 0.025
"""Scatter of the logarithm of a gap from step to step that is never taken for less."""
_LEAST: Final = 3
_TIMES: Final = 1.4
_VISIBLE: Final = 1e-3
"""Height in nat below which a climb costs nothing."""
_GROWS: Final = 0.2
_AT_ONCE: Final = 0.6
_BACK: Final = 0.7
_AT_MOST: Final = 12
"""Steps of a climb that still goes on: from then on it is no event, and rules about trends see it."""
_VERSIONS: Final = 2.5


@frozen
class Climb:
    """Points ``first`` to ``last`` (both included) of a series over which an engine falls behind.

    Attributes:
        first: index of the first point above the level before.
        last: index of the last one.
        base: level before.
        peak: largest value.
        over: whether the points after it are back; else the series ends.
    """

    first: int
    last: int
    base: float
    peak: float
    over: bool


def climbs_of_gap(series: Series, most: int = _AT_MOST) -> list[Climb]:
    """Stretches in which a positive distance grows step by step from its level, and falls back from one step to the next.

    The logarithm must stay four times its own scatter above the median of the ten points before for three points or more and
    reach nine times that and 1.4 times the level; it must get there by several steps, and end by one. A stretch that the series
    ends in counts if it has at most ``most`` points: what is longer may be a trend of the whole run.
    """
    if len(series) < _LEAST_BEFORE + _LEAST or not bool(np.all(series.values > 0.0)):
        return []
    x, found, free = np.log(series.values), [], np.ones(len(series), np.bool_)
    calm, at, disturbed = _calm(x), _LEAST_BEFORE, 0
    while at < len(x):
        if calm[at] and at >= disturbed:
            at += 1
            continue
        near = np.flatnonzero(free[:at])[-_HISTORY:]
        before = x[near]
        base = float(np.median(before[-_NEAR:]))
        scatter = max(spread(before), spread(np.diff(before)) / math.sqrt(2.0), _FLOOR)
        above = x[at:] > base + _SIGMAS * scatter
        end = at + (int(np.argmin(above)) if not above.all() else above.size)
        level = math.exp(base)
        bar = level * math.expm1(max(math.log(_TIMES), _PEAK * scatter))
        if _climbs(series.values[at:end], series.values[end:], level, bar, most):
            first = at
            while free[first - 1] and base + scatter < x[first - 1] < x[first]:  # too little to be seen by itself
                first -= 1
            found.append(Climb(first, end - 1, level, float(series.values[at:end].max()), end < len(x)))
            free[first:end] = False
            at, disturbed = end, end + _HISTORY
        elif end == len(x) and end - at > most:
            break  # a trend: what is called its level later on is part of it
        at += 1
    return found


def _calm(x: Floats) -> NDArray[np.bool_]:
    """Points that are not above the median of those before by what the least scatter would allow: nothing begins there."""
    calm = np.zeros(len(x), np.bool_)
    before = sliding_medians(x[:-1], _NEAR)
    calm[_NEAR:] = x[_NEAR:] <= before + _SIGMAS * _FLOOR
    return calm


def _climbs(inside: Floats, after: Floats, base: float, bar: float, most: int) -> bool:
    """Whether the values above a level grow step by step, and those after them are back at once."""
    if inside.size < _LEAST:
        return False
    height = float(inside.max()) - base
    tall = height >= _VISIBLE and height >= bar
    by_steps = inside[0] - base <= _AT_ONCE * height and inside[-1] - base >= _BACK * height
    half = inside.size // 2
    grows = float(np.mean(inside[-half:]) - np.mean(inside[:half])) > _GROWS * height
    if not (tall and by_steps and grows):
        return False
    if not after.size:
        return inside.size <= most
    return bool(inside[-1] - after[0] >= _BACK * height and np.median(after[:_LEAST]) - base <= (1.0 - _BACK) * height)


def climbs_of_lag(series: Series) -> list[Climb]:
    """Stretches in which samples get older by one version at each step, further than they ever were, until that ends.

    Args:
        series: mean number of versions that the samples of a step are old.
    """
    lag, found, at = series.values, [], _LEAST_BEFORE // 2
    while at < len(lag):
        usual, end = float(lag[:at].max()), at
        while end < len(lag) and abs(lag[end] - lag[end - 1] - 1.0) < 0.5:
            end += 1
        inside = lag[at:end]
        if inside.size >= _LEAST and inside[-1] >= usual + _VERSIONS:
            found.append(Climb(at, end - 1, float(np.median(lag[:at])), float(inside[-1]), end < len(lag)))
        at = max(end, at) + 1
    return found
