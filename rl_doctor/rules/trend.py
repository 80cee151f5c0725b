"""Statistics that rules share: how a series compares with its own past.

Everything here is pure, takes float64 ``[n]`` without NaN, and gives the same answer for ``a * x + b`` with ``a > 0`` (or,
for the functions that say so, for ``a * x``). Noise is measured inside short blocks, so that a trend or a shift does not
hide itself, and is widened by the autocorrelation that training series have. Nothing is a z-score against a window that
follows the series: such a window absorbs drift.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen

Floats = NDArray[np.float64]

MAD_TO_SIGMA: Final = 1.4826
"""The median absolute deviation of a normal distribution times this is its standard deviation."""
MEAN_TO_SIGMA: Final = 1.2533
"""The mean absolute deviation of a normal distribution times this is its standard deviation."""
SHORTEST: Final = 24
"""Fewer points than this carry no trend: the early window and the late window would overlap or be empty."""


_TOLD: Final = 5
"""Points after an excursion from which on it can be told whether it is over."""


@frozen
class Window:
    """Median and robust spread of a stretch of a series: points ``first`` to ``last``, both included."""

    center: float
    scale: float
    first: int
    last: int

    @property
    def n(self) -> int:
        """Number of points."""
        return self.last - self.first + 1


@frozen
class Change:
    """Late window against early window. ``z`` is the difference in standard errors that allow for autocorrelation."""

    early: Window
    late: Window
    z: float

    @property
    def difference(self) -> float:
        """Late minus early."""
        return self.late.center - self.early.center


@frozen
class Jump:
    """A sudden, lasting shift of the level at point ``index``, the first one after it.

    ``z`` compares it with the jumps that the same series shows everywhere else. ``recovered`` says that the end of the
    series is back.
    """

    index: int
    before: float
    after: float
    z: float
    recovered: bool

    @property
    def size(self) -> float:
        """After minus before."""
        return self.after - self.before


@frozen
class Excursion:
    """Points ``first`` to ``last`` (both included) at which a positive series stands a multiple above its local level.

    ``recovered`` says that the points after it, of which there are ``after``, are back near the level; an excursion at the end
    of the series is not.
    """

    first: int
    last: int
    peak: int
    value: float
    level: float
    recovered: bool
    after: int = 0

    @property
    def outcome(self) -> str:
        """What came of it, for a finding's text."""
        if self.recovered:
            return "and recovered"
        few = 0 < self.after < _TOLD
        return "and stood below the limit again at the end" if few else "and has not recovered"

    @property
    def factor(self) -> float:
        """Peak over local level."""
        return float(self.value) / float(self.level) if self.level > 0 else math.inf

    @property
    def n(self) -> int:
        """Number of points."""
        return self.last - self.first + 1


def spread(values: Floats) -> float:
    """Robust standard deviation of ``values`` ``[n]``: the median absolute deviation, scaled for the normal distribution."""
    if values.size == 0:
        return math.nan
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def window(values: Floats, first: int, last: int) -> Window:
    """Median and robust spread of the points ``first`` to ``last``."""
    part = values[first : last + 1]
    return Window(float(np.median(part)), spread(part), first, last)


def early(values: Floats, share: float = 0.2) -> Window:
    """The run's own baseline: its first ``share`` of points, at least 8 and at most 100."""
    count = min(max(round(share * values.size), 8), 100, values.size)
    return window(values, 0, count - 1)


def late(values: Floats, share: float = 0.15) -> Window:
    """The end of the run: its last ``share`` of points, at least 5 and at most 100."""
    count = min(max(round(share * values.size), 5), 100, values.size)
    return window(values, values.size - count, values.size - 1)


def blocks(values: Floats, size: int) -> Floats:
    """Cut into whole blocks, ``[n // size, size]``; the odd points at the start are left out."""
    rows = values.size // size
    return values[values.size - rows * size :].reshape(rows, size)


def noise(values: Floats) -> tuple[float, float]:
    """Standard deviation around the local level, and its lag-1 autocorrelation, both robust to trends, shifts and outliers.

    Blocks of up to 40 points are detrended by their own line; the median over blocks is taken, then widened by what the
    lines absorb of an autocorrelated series. Where the log rounds so coarsely that values repeat, the median deviation is
    often 0 by rounding alone; then the mean deviation counts if it is larger.
    """
    size = max(min(40, values.size // 4), 6)
    if values.size < size:
        return spread(values), 0.0
    table = blocks(values, size)
    residual = table - np.median(table, axis=1, keepdims=True)
    time = np.arange(size) - (size - 1) / 2
    line = (residual @ time) / (time @ time)
    residual = residual - line[:, None] * time
    residual = residual - np.median(residual, axis=1, keepdims=True)
    sizes = np.abs(residual)
    sigma = MAD_TO_SIGMA * float(np.median(np.median(sizes, axis=1)))
    if np.unique(values).size < 0.5 * values.size:
        sigma = max(sigma, MEAN_TO_SIGMA * float(np.median(np.mean(sizes, axis=1))))
    limit = 4 * sigma if sigma > 0 else np.inf
    kept = np.clip(residual, -limit, limit)
    power = np.sum(kept * kept, axis=1)
    pairs = np.sum(kept[:, 1:] * kept[:, :-1], axis=1)
    usable = power > 0
    if not usable.any():
        return sigma, 0.0
    raw = float(np.median(pairs[usable] / power[usable]))
    rho = min(max(raw + (2.0 + 4.0 * max(raw, 0.0)) / size, 0.0), 0.95)
    return sigma / math.sqrt(max(1.0 - 2.0 * inflation(rho) / size, 0.15)), rho


def inflation(rho: float) -> float:
    """By how much lag-1 autocorrelation ``rho`` inflates the variance of a mean: (1 + rho) / (1 - rho)."""
    return (1.0 + rho) / (1.0 - rho)


def change(values: Floats, recent: int | None = None) -> Change:
    """Early against late window, or against the last ``recent`` points.

    The noise is local, so the trend under test does not widen its own error bar.

    A short series cannot show how long its noise remembers, so that the error is widened by ``1 + 20 / n``.
    """
    first = early(values)
    last = late(values) if recent is None else window(values, max(values.size - recent, 0), values.size - 1)
    sigma, rho = noise(values)
    grown = inflation(min(rho + 1.0 / math.sqrt(values.size), 0.95))
    error = sigma * math.sqrt(min(1.6 * grown / first.n, 1.0) + min(1.6 * grown / last.n, 1.0)) * (1.0 + 20.0 / values.size)
    difference = last.center - first.center
    if difference == 0.0:
        return Change(first, last, 0.0)
    return Change(first, last, difference / error if error > 0 else math.copysign(math.inf, difference))


def least_z(z: float, points: int) -> float:
    """What ``Change.z`` must reach for a test at ``z``: more on a short series, which hides how long its noise remembers."""
    return z * (1.0 + 20.0 / points)


def running_median(values: Floats, width: int) -> Floats:
    """Centred running median of odd ``width``, ``[n]``; at the ends over the points that exist."""
    half = width // 2
    if half == 0 or values.size == 0:
        return values.copy()
    medians = np.empty(values.size)
    if values.size > 2 * half:
        medians[half : values.size - half] = sliding_medians(values, 2 * half + 1)
    for position in (*range(min(half, values.size)), *range(max(values.size - half, half), values.size)):
        medians[position] = np.median(values[max(position - half, 0) : position + half + 1])
    return medians


def sliding_medians(values: Floats, width: int) -> Floats:
    """Medians of all stretches of ``width`` points; several times as fast as ``np.median``, which looks for NaN in each."""
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    if np.isnan(values).any():
        return np.asarray(np.median(windows, axis=1))
    half = width // 2
    if width % 2:
        return np.asarray(np.partition(windows, half, axis=1)[:, half])
    return np.asarray(np.partition(windows, (half - 1, half), axis=1)[:, half - 1 : half + 1].mean(axis=1))


def _step_sizes(values: Floats, width: int) -> Floats:
    """For each point from ``width`` to ``n - width``: the step between two straight lines fitted before and from it on."""
    x = np.arange(width) - (width - 1) / 2
    forward = 1.0 / width + x * (-0.5 - (width - 1) / 2) / (x @ x)
    kernel = np.concatenate([-forward[::-1], forward])
    steps: Floats = np.lib.stride_tricks.sliding_window_view(values, 2 * width) @ kernel
    return steps


def jump(values: Floats, threshold: float = 7.0, width: int | None = None) -> Jump | None:
    """The largest sudden and lasting shift of the level, of several about as large the first, or None.

    Two lines are fitted before and after every point; their distance there is a step, whatever the trend is. It counts if it
    is ``threshold`` times the typical step of this series (below 100 points 60% of that, if the shift is five times the
    noise and complete at once), at least a fifth of its range, done within a few points, and kept for at least three windows
    (or to the end). A fast but smooth rise, a spike and autocorrelated wandering do not qualify.
    """
    if values.size < SHORTEST:
        return None
    width = width or int(np.clip(values.size // 20, 6, 20))
    calm = running_median(values, 3)
    steps = _step_sizes(calm, width)
    reach = float(np.quantile(values, 0.99) - np.quantile(values, 0.01))
    elsewhere = np.abs(np.arange(steps.size) - int(np.argmax(np.abs(steps)))) >= width
    usual = spread(steps[elsewhere] if np.count_nonzero(elsewhere) >= 8 else steps)
    sigma, rho = noise(values)
    least = threshold if values.size >= 100 else 0.6 * threshold  # short lines are steep by chance
    typical = max(usual * (1.0 + 25.0 / values.size) * (1.0 + 0.5 * rho), 0.03 * reach)
    if typical == 0.0:
        return None
    candidates: list[Jump] = []
    largest = 0.0
    for position in np.argsort(-np.abs(steps))[: 4 * width]:
        step = float(steps[position])
        if abs(step) < max(least * typical, 0.7 * largest):
            break
        index = _locate(calm, int(position) + width)
        if index + 2 * width > values.size and abs(step) < 1.5 * threshold * typical:
            continue
        found = _lasting(values, index, width, step)
        if found is not None and (abs(step) >= threshold * typical or _clean(values, index, found[1] - found[0], sigma)):
            largest = max(largest, abs(step))
            candidates.append(Jump(index, *found[:2], abs(step) / typical, found[2]))
    return min(candidates, key=lambda item: item.index, default=None)


def _locate(calm: Floats, index: int) -> int:
    """The point near ``index`` at which the series moves most."""
    low, high = max(index - 3, 1), min(index + 4, calm.size)
    return low + int(np.argmax(np.abs(np.diff(calm[low - 1 : high]))))


def _clean(values: Floats, index: int, size: float, sigma: float) -> bool:
    """Whether a shift is five times the noise around the level, and all of it happens within three points."""
    near = float(np.median(values[index : index + 3]) - np.median(values[max(index - 3, 0) : index]))
    return abs(size) >= 5.0 * sigma and near * math.copysign(1.0, size) >= 0.8 * abs(size)


def _lasting(values: Floats, index: int, width: int, step: float) -> tuple[float, float, bool] | None:
    """Levels before and after, and whether the end is back, if the shift is sudden and is kept."""
    near = float(np.median(values[index : index + 3]) - np.median(values[max(index - 3, 0) : index]))
    before = float(np.median(values[max(index - 3 * width, 0) : index]))
    after = float(np.median(values[index : index + 3 * width]))
    tail = float(np.median(values[index + 2 * width : index + 4 * width])) if index + 3 * width < values.size else after
    sign = math.copysign(1.0, step)
    if min(sign * near, sign * (after - before), sign * (tail - before)) < 0.6 * abs(step):
        return None
    end = float(np.median(values[-width:]))
    return before, after, sign * (end - before) < 0.3 * sign * (after - before)


def excursions(values: Floats, factor: float, sigmas: float = 6.0) -> tuple[Excursion, ...]:
    """Stretches where a non-negative series stands out statistically and materially; the same for ``a * x``.

    The local level is a running median wide enough not to follow an excursion; the logarithm of value over level must exceed
    both ``log(factor)`` and ``sigmas`` robust standard deviations of itself (or 2.2 times its own quantile .975, if that is
    less). The resolution of the log (the smallest difference between two values) is the least level, so that values rounded
    to 0.000 and 0.001 are no excursion.
    """
    if values.size < 8:
        return ()
    width = int(np.clip(values.size // 8, 9, 61)) | 1
    levels = running_median(values, width)
    end = slice(max(values.size - width - width // 4, 0), None)
    levels[end] = np.minimum(levels[end], _history(values, min(3 * width, values.size // 2), end.start))
    least = max(_resolution(values), float(np.median(values)) * 1e-3, np.finfo(np.float64).tiny)
    levels = np.maximum(levels, least)
    heights = np.log(np.maximum(values, least)) - np.log(levels)
    typical = min(sigmas * spread(heights), 2.2 * float(np.quantile(heights, 0.975)))
    bar = max(math.log(factor), typical)
    marked = np.flatnonzero(heights > bar)
    if marked.size == 0:
        return ()
    cuts = np.flatnonzero(np.diff(marked) > 3) + 1
    found = []
    for part in np.split(marked, cuts):
        peak = int(part[np.argmax(values[part])])
        first, last = int(part[0]), int(part[-1])
        before = float(np.median(values[max(first - 3, 0) : max(first, 1)]))
        past = values[max(first - width // 2, 0) : first]
        level = max(min(float(levels[first]), float(np.median(past)) if past.size > 2 else math.inf), least)
        least_rise = math.sqrt(factor)
        sudden = before <= least_rise * level and float(np.median(values[first : first + 3])) >= least_rise * before
        back = _comes_back(values[last + 1 :], least_rise * level)
        if first >= end.start and not sudden and not back:
            back = before <= least_rise * level and _comes_back(values[last + 1 :], least_rise * before)
            if not back:
                continue  # growth that goes on, not an excursion
        found.append(Excursion(first, last, peak, float(values[peak]), level, back, values.size - 1 - last))
    return tuple(found)


def _comes_back(after: Floats, bar: float) -> bool:
    """Whether some stretch of up to 5 points after an excursion lies below ``bar``; what decays slowly comes back too."""
    if after.size < _TOLD:
        return after.size >= 2 and float(np.median(after)) < bar
    return bool(np.any(sliding_medians(after, 5) < bar))


def _resolution(values: Floats) -> float:
    """The step that the log rounds to, if values repeat; at most the median of the positive values."""
    distinct = np.unique(values)
    if distinct.size < 2 or distinct.size >= 0.5 * values.size:
        return 0.0
    return min(float(np.diff(distinct).min()), float(np.median(values[values > 0])))


def _history(values: Floats, width: int, first: int) -> Floats:
    """Running median of the ``width`` points before each point from ``first`` on, infinite where there are fewer."""
    medians = np.full(values.size - first, np.inf)
    skip = max(width - first, 0)
    if skip < medians.size:
        medians[skip:] = sliding_medians(values[first + skip - width : -1], width)
    return medians


def run_lengths(marked: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last index of each stretch of consecutive True values."""
    edges = np.diff(np.concatenate([[False], marked, [False]]).astype(np.int8))
    return list(zip(np.flatnonzero(edges == 1).tolist(), (np.flatnonzero(edges == -1) - 1).tolist(), strict=True))


Course = Literal["rising", "falling", "flat", "unknown"]


def course(values: Floats, material: float = 0.0) -> Course:
    """Where a series went: late against early window, beyond its autocorrelated noise and by at least ``material``."""
    if values.size < SHORTEST:
        return "unknown"
    moved = change(values)
    if abs(moved.z) < 3.0 or abs(moved.difference) < material:
        return "flat"
    return "rising" if moved.difference > 0 else "falling"


def leaning(values: Floats, z: float = 2.5) -> Course:
    """Where a series went by all of its points: a line through them, whose ends lie beyond the noise around it.

    Early against late windows leave out most of a short series. The standard error of the slope is widened by the lag-1
    autocorrelation around the line; a series whose neighbours resemble each other (beyond 0.5) wanders, and is flat.
    """
    if values.size < SHORTEST:
        return "unknown"
    time = np.arange(values.size) - (values.size - 1) / 2
    rest = values - values.mean()
    slope = float(rest @ time) / float(time @ time)
    rest = rest - slope * time
    power = float(rest @ rest)
    if power <= 0.0:
        return "flat" if slope == 0.0 else "rising" if slope > 0.0 else "falling"
    rho = max(float(rest[1:] @ rest[:-1]) / power, 0.0)
    error = math.sqrt(power / (values.size - 2) / float(time @ time) * inflation(min(rho, 0.95)))
    if rho > 0.5 or abs(slope) < z * error:
        return "flat"
    return "rising" if slope > 0.0 else "falling"


def onset(values: Floats, baseline: Window, *, rising: bool, share: float = 0.5, end: float | None = None) -> int:
    """First point of the final stretch beyond ``share`` of the way from the baseline to ``end``, by default the late level.

    For naming when a lasting change set in, once another test has found that there is one.
    """
    end = late(values).center if end is None else end
    bar = baseline.center + share * (end - baseline.center)
    calm = running_median(values, 5)
    inside = calm < bar if rising else calm > bar
    last_inside = np.flatnonzero(inside)
    return min(int(last_inside[-1]) + 1, values.size - 1) if last_inside.size else 0
