"""Series that rise and then fall, also short ones: the end against the best stretch before it."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.frozen import frozen
from rl_doctor.rules import trend
from rl_doctor.rules.trend import Floats, Window

_HISTORY: Final = 24
_AFTER: Final = 4
_INDEPENDENT: Final = 0.35


@frozen
class Decline:
    """The end of a series below its best stretch.

    ``z`` is the difference in standard errors; that the stretch was chosen for being the best is not in it, so that callers
    ask for more than of a difference that was fixed beforehand.
    """

    best: Window
    late: Window
    z: float

    @property
    def size(self) -> float:
        """Best minus late."""
        return self.best.center - self.late.center

    @property
    def share(self) -> float:
        """What was lost, of the best level; of the larger of the two where signs differ."""
        scale = max(abs(self.best.center), abs(self.late.center))
        return self.size / scale if scale > 0 else 0.0


def decline(values: Floats) -> Decline | None:
    """The end of ``values`` against the best window before it; None below 5 points or if the end is the best."""
    n = values.size
    if n < 5:
        return None
    width = min(max(round(0.15 * n), 2 if n < 12 else 3), 60)
    starts = np.arange(n - 2 * width + 1)
    windows = np.lib.stride_tricks.sliding_window_view(values, width)[starts]
    best = int(np.argmax(np.median(windows, axis=1)))
    first, last = trend.window(values, best, best + width - 1), trend.window(values, n - width, n - 1)
    if first.center <= last.center:
        return None
    sigma, rho = local_noise(values)
    error = sigma * math.sqrt(2.0 * min(1.6 * trend.inflation(min(rho + 1.0 / math.sqrt(n), 0.95)) / width, 1.0))
    return Decline(first, last, (first.center - last.center) / error if error > 0 else math.inf)


def local_noise(values: Floats) -> tuple[float, float]:
    """``trend.noise``, and below 24 points at least what second differences show; they are blind to any line."""
    sigma, rho = trend.noise(values) if values.size >= 12 else (0.0, 0.0)
    if values.size < trend.SHORTEST:
        second = np.diff(values, 2) / math.sqrt(6.0)
        sigma = max(sigma, trend.MAD_TO_SIGMA * float(np.median(np.abs(second))))
    return sigma, rho


def stands_out(values: Floats, index: int, factor: float) -> bool:
    """Whether the difference of neighbours near ``index`` is ``factor`` times every other; single shocks of noise are not."""
    sizes = np.abs(np.diff(values))
    near = slice(max(index - 3, 0), index + 3)
    others = np.delete(sizes, np.arange(sizes.size)[near])
    return bool(others.size) and float(sizes[near].max()) >= factor * float(others.max())


def abrupt_fall(values: Floats, z: float = 4.5) -> trend.Jump | None:
    """A fall from one point to the next that stays, in a series that is too short for ``trend.jump``; None if there is none.

    It is ``z`` times the usual difference between neighbours and twice any other fall, makes up most of the difference of the
    levels around it, which is ``z`` times the noise, and no later point comes back half the way.
    """
    if values.size < trend.SHORTEST:
        return None
    steps = np.diff(values)
    index = int(np.argmin(steps)) + 1
    if index < 6 or values.size - index < 6:
        return None
    fall, others = -float(steps[index - 1]), np.delete(steps, index - 1)
    before, after = float(np.median(values[index - 5 : index])), float(np.median(values[index : index + 5]))
    size, usual = before - after, trend.spread(others)
    level = values + size * (np.arange(values.size) >= index)
    if size <= 0.0 or fall < max(z * usual, -2.0 * float(others.min()), 0.7 * size) or size < z * trend.noise(level)[0]:
        return None
    if float(np.median(values[-5:])) > before - 0.5 * size or float(np.max(values[index:])) > before - 0.3 * size:
        return None
    return trend.Jump(index, before, after, fall / usual if usual > 0.0 else math.inf, recovered=False)


def level_fall(values: Floats, t: float = 3.9, better: float = 1.25) -> trend.Jump | None:
    """A fall of the level to the end of a series that is smaller than single points scatter; None if there is none.

    Up to 24 points before are held against those from there on, at most 24 and at least 4: the difference of their means is
    ``t`` standard errors, widened by lag-1 autocorrelation, and two levels leave less than a line by a factor of ``better``.
    Where neighbours resemble each other beyond that (by 0.35) a series wanders, and nothing is said.
    """
    best: tuple[float, int, float, float] | None = None
    for index in range(8, values.size - _AFTER + 1):
        before, after = values[max(index - _HISTORY, 0) : index], values[index:][:_HISTORY]
        size = float(before.mean() - after.mean())
        rest = np.concatenate([before - before.mean(), after - after.mean()])
        power = float(rest @ rest)
        if size <= 0.0 or power <= 0.0:
            continue
        rho = max(float(rest[1:] @ rest[:-1]) / power, 0.0)
        if rho > _INDEPENDENT:
            continue
        error = math.sqrt(power / (rest.size - 2) * (1.0 / before.size + 1.0 / after.size) * trend.inflation(rho))
        if (best is None or size / error > best[0]) and _off_line(values[max(index - _HISTORY, 0) : index + _HISTORY]) > (
            better * power
        ):
            best = (size / error, index, float(before.mean()), float(after.mean()))
    if best is None or best[0] < t or float(np.mean(values[-_AFTER:])) > 0.5 * (best[2] + best[3]):
        return None
    return trend.Jump(best[1], best[2], best[3], best[0], recovered=False)


def _off_line(values: Floats) -> float:
    """Sum of squares around the least-squares line."""
    time = np.arange(values.size) - (values.size - 1) / 2
    rest = values - values.mean()
    return float(rest @ rest - (rest @ time) ** 2 / (time @ time))
