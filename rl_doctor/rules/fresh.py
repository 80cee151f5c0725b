"""A jump that is only a few points old, which tests that need a window on either side cannot see yet."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.rules import trend
from rl_doctor.rules.trend import Floats

_LEAST: Final = 3
_MOST: Final = 12
"""Points after the jump: at least, so that it is no spike, and at most, since then ``trend.jump`` sees it."""
_HISTORY: Final = 40
_NEAR: Final = 20
_AT_ONCE: Final = 0.7


def jump(values: Floats, z: float = 8.0, apart: float = 2.0) -> trend.Jump | None:
    """A jump to the end of a series, of 3 to 12 points, that nothing before it comes near; None if there is none.

    All points after it lie beyond all of the 20 before it. The shift is ``z`` times the noise of what was before, most of it
    happens between two neighbours, and these differ ``apart`` times as much as any neighbours did before.

    Args:
        values: float64 ``[n]``.
        z: least shift over the noise.
        apart: least difference of neighbours over the largest one before.
    """
    steps = np.abs(np.diff(values))
    if values.size < trend.SHORTEST or not steps.size:
        return None
    index = values.size - _MOST + int(np.argmax(steps[-_MOST:]))
    before, after = values[max(index - _HISTORY, 0) : index], values[index:]
    if after.size < _LEAST or before.size < trend.SHORTEST // 2:
        return None
    earlier = float(np.abs(np.diff(before)).max())
    near = before[-_NEAR:]
    level, now = float(np.median(near[-_LEAST * 2 :])), float(np.median(after))
    size = now - level
    clear = float(after.min()) > float(near.max()) if size > 0 else float(after.max()) < float(near.min())
    sigma = max(trend.noise(before)[0], trend.spread(np.diff(before)) / math.sqrt(2.0))
    if not clear or abs(size) < z * sigma or float(steps[index - 1]) < max(apart * earlier, _AT_ONCE * abs(size)):
        return None
    return trend.Jump(index, level, now, abs(size) / sigma if sigma > 0.0 else 1e6, recovered=False)
