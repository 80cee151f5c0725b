"""Where series break, and which of several broke first: change points of two kinds, on one axis of steps.

A break is where one line through a series no longer does and two do: a step, or the start of a climb. A fresh step is a level
that the last few points have and no point before them had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.rules import trend
from rl_doctor.rules.trend import Floats, Jump

_BEFORE: Final = 8
"""Points that a line before a break needs."""
_AFTER: Final = 3
_FROM_ZERO: Final = "ref."
_LEAST: Final = 5.0
"""Standard deviations of the noise that a series must leave its line by."""
_WINDOW: Final = 60
"""Points that a fresh level is compared with, and the most that it may have."""


@frozen
class Break:
    """A series that leaves the line it was on.

    Attributes:
        index: the first point that does.
        earliest: the earliest point that would do as well: two breaks whose ranges overlap are not told apart.
        latest: the latest one.
        size: how far the series is from that line at its end, in its own unit.
        z: the same in robust standard deviations around the lines.
    """

    index: int
    earliest: int
    latest: int
    size: float
    z: float

    @property
    def rising(self) -> bool:
        """Whether it leaves the line upwards."""
        return self.size > 0


def first_break(values: Floats, z: float = 8.0, material: float = 0.0) -> Break | None:
    """The first break of ``values`` that leads ``z`` standard deviations and ``material`` away from the line before it.

    The best split into two lines is looked for, and then, in what lies before it, an earlier one in the same direction: what
    explodes and then stands at its new level has two, and it is the first that tells when it began.
    """
    found: Break | None = None
    end = values.size
    while (one := _best(values[:end], z, material)) is not None and (found is None or one.rising == found.rising):
        found = one
        if one.index >= end or one.index < _BEFORE + _AFTER:
            break
        end = one.index
    return found


def _best(part: Floats, z: float, material: float) -> Break | None:
    n = part.size
    if n < _BEFORE + _AFTER:
        return None
    calm = trend.running_median(part, 3)
    if n > 3:
        calm[-1] = part[-1] if abs(part[-1] - part[-2]) <= abs(part[-1] - part[-3]) else calm[-1]
    before, after = _residuals(calm), _residuals(calm[::-1])[::-1]
    splits = np.arange(_BEFORE, n - _AFTER + 1)
    both = before[splits - 1] + after[splits]
    at = int(np.argmin(both))
    index = int(splits[at])
    sigma, rho = trend.noise(part[:index]) if index >= 12 else (trend.spread(part[:index] - np.median(part[:index])), 0.0)
    sigma = max(sigma, 1e-3 * float(np.ptp(part)), 1e-12)
    variance = sigma * sigma * trend.inflation(min(rho + 1.0 / math.sqrt(index), 0.95))
    away = calm[index:] - _ahead(calm[:index], n - index, math.sqrt(variance))
    size = float(np.median(away[-max(_AFTER, away.size // 3) :]))
    error = math.sqrt(variance * (1.0 / away.size + 1.0 / index)) * (1.0 + 20.0 / n)
    if abs(size) < max(_LEAST * sigma, material) or abs(float(np.mean(away))) < z * error:
        return None
    if before[-1] - both[at] < z * z * variance:  # one line through all explains as much
        return None
    if float(np.mean(np.sign(away) == np.sign(size))) < 0.8:
        return None
    near = splits[both <= both[at] + 4.0 * variance]
    begin = _departure(part, index, math.copysign(1.0, size), sigma)
    return Break(begin, min(begin, int(near.min())), max(begin, min(int(near.max()), index)), size, abs(size) / sigma)


def _departure(values: Floats, index: int, sign: float, sigma: float) -> int:
    """Back from a split to the first point of the unbroken stretch that is already off the level before it."""
    level = float(np.median(values[max(index - 30, 0) : max(index - 5, 3)]))
    while index > _BEFORE and sign * (values[index - 1] - level) > 2.5 * sigma:
        index -= 1
    return index


def _ahead(before: Floats, points: int, error: float) -> Floats:
    """What the points after a stretch would be: on with its line where it has a trend beyond doubt, else at its level."""
    slope, start = np.polyfit(np.arange(before.size), before, 1)
    if abs(slope) * before.size < 4.0 * error:
        return np.full(points, float(np.median(before)))
    ahead: Floats = start + slope * np.arange(before.size, before.size + points)
    return ahead


def _residuals(values: Floats) -> Floats:
    """Sum of squared residuals of the line through the first k + 1 values, for each k, ``[n]``."""
    n = np.arange(1, values.size + 1, dtype=np.float64)
    x = np.arange(values.size, dtype=np.float64)
    y = values - values[0]
    sx, sy, sxx, sxy, syy = (np.cumsum(part) for part in (x, y, x * x, x * y, y * y))
    spread = np.maximum(sxx - sx * sx / n, 1e-300)
    covariance = sxy - sx * sy / n
    line = np.where(n > 2, covariance * covariance / spread, 0.0)
    residual: Floats = np.maximum(syy - sy * sy / n - line, 0.0)
    residual[:2] = 0.0
    return residual


@frozen
class Event:
    """The break of one metric, in steps."""

    series: Series
    found: Break

    @property
    def step(self) -> int:
        """The first step after it."""
        return int(self.series.steps[min(self.found.index, len(self.series) - 1)])

    @property
    def latest(self) -> int:
        """The latest step at which it may have begun."""
        return int(self.series.steps[min(self.found.latest, len(self.series) - 1)])

    @property
    def earliest(self) -> int:
        """The earliest step at which it may have begun."""
        return int(self.series.steps[min(self.found.earliest, len(self.series) - 1)])

    def leads(self, other: Event) -> bool:
        """Whether it began before another, beyond what either is uncertain by."""
        return self.latest < other.earliest

    def words(self, other: Event | None = None) -> str:
        """The event, and by how many steps it came before another."""
        lead = (
            "" if other is None else f", {abs(other.step - self.step)} steps {'earlier' if other.step >= self.step else 'later'}"
        )
        course = "rises" if self.found.rising else "falls"
        return f"{self.series.metric} {course} from step {self.step} on{lead}"


def between(series: Series, first: int, last: int) -> Series:
    """The points of a series within steps ``first`` to ``last``."""
    return series.where((series.steps >= first) & (series.steps <= last))


def events(series: Iterable[Series], first: int, last: int, z: float = 6.0, factor: float = 1.5) -> tuple[Event, ...]:
    """The first break of each series within steps ``first`` to ``last``, by step.

    Positive series count by their logarithm, unless they start at 0 as a KL to the reference does.
    """
    found = []
    for one in series:
        inside = between(one, first, last)
        values = inside.values
        if values.size < _BEFORE + _AFTER:
            continue
        if bool(np.all(values > 0.0)) and not one.metric.startswith(_FROM_ZERO):
            broken = first_break(np.log(values), z, math.log(factor))
        else:
            broken = first_break(values, z, (factor - 1.0) * float(np.median(np.abs(values[: max(values.size // 2, 1)]))))
        if broken is not None:
            found.append(Event(inside, broken))
    return tuple(sorted(found, key=lambda event: event.step))


def fresh(values: Floats, least: float, points: int = 4) -> Jump | None:
    """A level that the last ``points`` or more points (60 at most) have, ``least`` away from that before, or None.

    It is eight standard deviations of the noise before it, four fifths of its points lie a quarter of the shift beyond all that
    the 60 points before it reached, and the shift is complete within three points. This finds within ``points`` steps what a
    comparison of windows finds when half of the late window is over.
    """
    n = values.size
    if n < 12 + points:
        return None
    calm = trend.running_median(values[max(n - 2 * _WINDOW, 0) :], 3)
    offset = n - calm.size
    low = max(calm.size - _WINDOW, 12)
    index = low + int(np.argmax(np.abs(np.diff(calm)[low - 1 : calm.size - points])))
    before, after = values[max(offset + index - _WINDOW, 0) : offset + index], values[offset + index :]
    level = float(np.median(before[-20:]))
    size = float(np.median(after)) - level
    if after.size < points or abs(size) < least:
        return None
    sign = math.copysign(1.0, size)
    ahead = sign * (after - level)
    reached = float(np.max(sign * (before - level)))
    if float(np.quantile(ahead, 0.2)) < reached + 0.25 * abs(size) or float(np.median(ahead[:3])) < 0.6 * abs(size):
        return None
    sigma = trend.noise(before)[0]
    if abs(size) < 8.0 * sigma or sign * float(np.median(after[:3]) - np.median(before[-3:])) < 0.6 * abs(size):
        return None
    return Jump(offset + index, level, level + size, abs(size) / sigma if sigma > 0 else math.inf, recovered=False)
