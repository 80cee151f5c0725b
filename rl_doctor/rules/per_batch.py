"""One point for each generation batch, where the passes over it were logged as steps of their own.

With two passes every other step comes before any update, where the ratio is 1 by design. What is measured over both kinds
depends on how many of each a window happens to hold. Over a whole batch it does not, and limits mean what they mean for
trainers that log once a batch.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.rules.reading import logged
from rl_doctor.rules.signature import Bools
from rl_doctor.rules.view import View

PASSES: Final = ("policy.first_outside_frac", "policy.later_outside_frac")
"""What ``per_batch`` reads: rules that call it ask for these."""
_PERIODS: Final = range(2, 9)
_CYCLES: Final = 3
_ALIKE: Final = 0.9


def per_batch(view: View, series: Series) -> Series:
    """A series of the ratio with one value for each generation batch: the mean over its steps, at the last of them.

    A batch begins at a step that holds rows of the first mini-batch only; in a logged series, whose rows do not tell, at every
    p-th step (p up to 8) if it is exactly 0 there and hardly anywhere else. Batches that begin before the series or have had no
    update yet are left out. As it is where steps hold whole batches, or most come before any update: then such a step is the
    rule of this run, and not a phase of it.
    """
    first, later = (view.get(name) for name in PASSES)
    if first is not None and later is not None:
        before = np.isin(series.steps, first.steps) & ~np.isin(series.steps, later.steps)
    elif logged(series):
        before = _periodic_zeros(series)
    else:
        return series
    if not before.any() or 2 * int(np.count_nonzero(~before)) < len(series) - 1:
        return series
    starts = np.flatnonzero(before & ~np.r_[False, before[:-1]])
    ends = np.r_[starts[1:], len(series)] - 1
    whole = ~before[ends]
    if not whole.any():
        return series
    weights = np.maximum(series.counts, 1)
    sums, counts = (np.add.reduceat(part, starts)[whole] for part in (series.values * weights, weights))
    total = np.add.reduceat(series.counts, starts)[whole]
    return Series(series.metric, series.unit, series.steps[ends[whole]], sums / counts, total)


def _periodic_zeros(series: Series) -> Bools:
    """Steps at which a series is exactly 0 because each p-th one is; none where zeros do not recur like that."""
    zero = series.values == 0.0
    for period in _PERIODS:
        if len(series) < _CYCLES * period:
            break
        phase = series.steps % period
        for one in range(period):
            inside = phase == one
            if inside.any() and not inside.all() and zero[inside].mean() >= _ALIKE and zero[~inside].mean() <= 1.0 - _ALIKE:
                return np.asarray(zero & inside, np.bool_)
    return np.zeros(len(series), np.bool_)
