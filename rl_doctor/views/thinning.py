"""Draws long series with few points that look like all of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST: Final = 2000
"""Points of a trace that are drawn at most."""


def thinned(values: NDArray[np.float64], most: int = MOST) -> NDArray[np.int64]:
    """Indices of the points that keep the shape of a series, int64 ``[at most most]``, ascending.

    The ends, the least and the largest value are kept.

    Args:
        values: finite, float64 ``[n]``.
        most: bound on the number of points, at least 8.
    """
    if values.size <= most:
        return np.arange(values.size)
    try:
        from tsdownsample import MinMaxLTTBDownsampler
    except ImportError:
        return extremes(values, most)
    sampler: Any = MinMaxLTTBDownsampler
    chosen = sampler().downsample(np.ascontiguousarray(values), n_out=most - 2)
    return np.union1d(np.asarray(chosen, np.int64), [int(np.argmin(values)), int(np.argmax(values))])


def extremes(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Indices of the least and the largest value of each of ``most / 2`` stretches, and of both ends, ascending."""
    edges = np.linspace(0, values.size, (most - 2) // 2 + 1).astype(np.int64)
    parts = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    found = [start + int(pick(values[start:stop])) for start, stop in parts for pick in (np.argmin, np.argmax)]
    return np.unique(np.array([0, *found, values.size - 1], np.int64))
