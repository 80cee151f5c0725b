"""Whether advantages compare rows within any groups at all, whichever rows these are: found from the numbers themselves.

Whatever rows a group has, its advantages are a line in the reward, add up to 0, and have the mean square that the division by the
group's deviation gives them (or the line has the slope that the estimator gives it). Rows through which such a line goes were
compared with each other; advantages that were moved among rows, or made otherwise, lie on no such line.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Bools, Floats
from rl_doctor.analyzer.grouping import groups
from rl_doctor.analyzer.metrics.advantage_fit import EPSILONS, NEEDS
from rl_doctor.analyzer.metrics.advantage_rows import against_formulas
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, mean
from rl_doctor.store.batch import Batch

_PROBES: Final = 128
"""Distinct pairs of reward and advantage of a generation batch that are looked at, spread over all of them, at most ..."""
_PAIRS: Final = 200_000
"""... and pairs of these with others."""
_LEAST: Final = 3
"""Rows of a group, at least: through two points there always is a line."""
_LINE: Final = 2e-5
"""Relative difference within which two slopes are one: what float32 leaves of them."""
_SUMS: Final = 1e-3
"""Relative difference within which sums are those that a group has."""


def _points(reward: Floats, advantage: Floats, asked: Bools) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Distinct pairs of reward and advantage, the rows of each, and those asked for; what differs by rounding alone is one."""
    order = np.lexsort((advantage, reward))
    x, y = reward[order], advantage[order]
    near = 1e-5 * float(np.abs(y).max(initial=0.0))
    begins = np.r_[True, (np.diff(x) != 0.0) | (np.diff(y) > near)]
    first = np.flatnonzero(begins)
    return x[first], y[first], np.diff(np.append(first, len(x))), np.add.reduceat(asked[order].astype(np.int64), first)


def _shared(reward: Floats, advantage: Floats, asked: Bools, size: int, spread: float) -> tuple[int, int]:
    """Of the rows asked for those on a line that a group could have, and those that were looked at."""
    x, y, number, wanted = _points(reward, advantage, asked)
    told = np.flatnonzero((wanted > 0) & (np.abs(y) > _SUMS * float(np.abs(y).max(initial=0.0))))
    if len(x) < _LEAST or not len(told):
        return 0, 0
    some = min(len(told), _PROBES, max(_PAIRS // len(x), 16))
    probes = told[np.unique(np.linspace(0, len(told) - 1, some).astype(np.int64))]
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (x[np.newaxis] - x[probes, np.newaxis]) / (y[np.newaxis] - y[probes, np.newaxis])
    slope = np.where(np.isfinite(slope) & (slope > 0.0), slope, np.inf)
    order = np.argsort(slope, axis=1, kind="stable")
    slope = np.take_along_axis(slope, order, axis=1)
    begins = np.ones(slope.shape, np.bool_)
    with np.errstate(invalid="ignore"):
        begins[:, 1:] = ~(np.diff(slope, axis=1) <= _LINE * slope[:, :-1])
    first = np.flatnonzero(begins)
    probe = probes[first // len(x)]
    weight, height = number[order].astype(np.float64).ravel(), y[order].ravel()
    rows, total, square, around = (
        np.add.reduceat(part, first) for part in (weight, weight * height, weight * height**2, weight * np.abs(height))
    )
    own = number[probe]
    rows, total, square = rows + own, total + own * y[probe], square + own * y[probe] ** 2
    around = around + own * np.abs(y[probe])
    line = slope.ravel()[first]
    fits = np.isfinite(line) & (rows >= _LEAST) & (np.abs(total) <= _SUMS * around)
    fits &= _as_of_groups(line, rows, square, size, spread)
    found = np.isin(probes, probe[fits])
    return int(wanted[probes][found].sum()), int(wanted[probes].sum())


def _as_of_groups(line: Floats, rows: Floats, square: Floats, size: int, spread: float) -> Bools:
    """Lines with the mean square of a group's advantages, or with the slope that an estimator which divides otherwise gives."""
    share, usual, double = square / rows, (size - 1) / size, (2 * size - 1) / (2 * size)  # the last where two groups are one
    found = np.zeros(len(line), np.bool_)
    for wanted in (1.0, usual, spread):
        found |= np.abs(line - wanted) <= _SUMS * wanted
    for eps in (0.0, *EPSILONS.values()):
        damped = np.where(line > eps, 1.0 - eps / line, 0.0) ** 2
        for whole in (damped, usual * damped, double * damped, (rows - 1.0) / rows * damped):
            found |= np.abs(share - whole) <= _SUMS * whole
    return found


@reduction(zero=Sum(), needs=NEEDS, level="rollout")
def _compared(batch: Batch) -> Sum:
    rows, found = against_formulas(batch), groups(batch, "reward")
    size = int(np.median(found.sizes)) if len(found.sizes) else 0
    if rows is None or size < _LEAST or rows.exact.all():
        return Sum()
    return Sum.counted(*_shared(rows.reward, rows.recorded, ~rows.exact, size, float(np.std(found.values))))


metric(
    "adv.compared_frac", _compared, mean, unit="1", source="GRPO, Dr. GRPO and RLOO: arithmetic of any group",
    formula="share_i[A not A', R = m + s A on rows with sum A = 0 and mean A^2 or s as of a group]",
    doc="Of the rows that no formula gives over the recorded groups, the share whose reward and advantage lie on a line with "
    "others as those of a group do: 1 where rows are compared within other groups, small where advantages stand in other rows or "
    "are made otherwise. Of at most 128 different pairs of the two.",
)  # fmt: skip
