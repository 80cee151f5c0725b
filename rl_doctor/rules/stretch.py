"""The stretch of steps over which something exact holds: where it begins, so that a fault is told soon after its onset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.rules.spans import Breach

_DENSE = 0.8
"""Share of the steps of a stretch that have to be marked."""
_FEW = 2
"""Steps that are enough at the beginning of a run, where all are marked and twice the items stand behind them."""


def stretch(series: Series, marked: NDArray[np.bool_], limit: float, *, steps: int, items: int, few: int = _FEW) -> Breach | None:
    """The first stretch that reaches the last marked step and is nearly all marked; None if it is too small to tell.

    Of a run of fewer than ``steps`` steps, ``few`` are enough if it is there from the first one on, at all of them, with twice
    the items: an exact thing that is wrong at once is wrong.

    Args:
        series: measured steps.
        marked: bool ``[n]``, steps at which something holds.
        limit: what the value was held against, for the evidence.
        steps: least number of marked steps.
        items: least number of items behind them.
        few: least number of steps of a run that is shorter than ``steps``.
    """
    if few <= len(series) < steps and marked.all():
        steps, items = few, 2 * items
    places = np.flatnonzero(marked)
    if places.size < steps:
        return None
    last = int(places[-1])
    counts = np.arange(places.size, 0, -1)
    dense = counts >= _DENSE * (last - places + 1)
    first = int(places[np.argmax(dense)])
    inside = marked & (np.arange(len(series)) >= first)
    found = Breach(series, inside, limit)
    enough = int(np.count_nonzero(inside)) >= steps and found.n >= items
    return found if enough else None


def joined(*all_series: Series | None) -> tuple[Series, ...] | None:
    """The series at the steps that all of them have; None if one is None or they have none in common."""
    given = [series for series in all_series if series is not None]
    if not given or len(given) < len(all_series):
        return None
    steps = given[0].steps
    for series in given[1:]:
        steps = np.intersect1d(steps, series.steps, assume_unique=True)
    if not steps.size:
        return None
    return tuple(_at(series, steps) for series in given)


def _at(series: Series, steps: NDArray[np.int64]) -> Series:
    return series.where(np.isin(series.steps, steps))
