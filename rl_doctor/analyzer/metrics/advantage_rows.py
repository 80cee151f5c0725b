"""Rows that the nearest formula does not give, and what stands there instead; and what advantages of a group are divided by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Bools, Floats, derived
from rl_doctor.analyzer.formulas.advantage import group_deviation
from rl_doctor.analyzer.grouping import groups
from rl_doctor.analyzer.metrics.advantage import PER_SEQUENCE
from rl_doctor.analyzer.metrics.advantage_fit import FORMULAS, NEEDS, judged, recorded
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

_EXACT: Final = 0.01
"""Share of an advantage within which it is the one that a formula gives: three times the rounding of bfloat16."""
_ZERO: Final = 1e-3
"""The same for small ones, over the mean size of those that the formula gives where rewards differ."""
_ROUNDED: Final = 0.05
"""The same where a group's rewards are equal: float32 leaves a difference to their mean, over next to no deviation."""
_SAME: Final = 1e-3
"""Share of the squares that is left over below which advantages of groups are multiples of the differences in reward."""
_ALONE: Final = 1e-6
"""Determinant of the correlations of deviation and constant below which the two cannot be told apart."""
_SOURCE: Final = "GRPO, Dr. GRPO and RLOO, as in advantage.fit_*, row by row"


@frozen(eq=False)
class Rows:
    """Rows of groups of several whose advantage is not 0, as recorded or by the nearest formula; all arrays ``[n]``.

    Attributes:
        reward: what they are made of.
        recorded: the advantage.
        expected: that of the formula which gives most rows, in their order and in any order within groups.
        exact: rows that it gives.
        within: largest difference that counts as none.
        equal: rows whose group has one reward.
        other: rows that have the advantage of another row of their group, and not their own.
    """

    reward: Floats
    recorded: Floats
    expected: Floats
    exact: Bools
    within: Floats
    equal: Bools
    other: Bools


@derived
def against_formulas(batch: Batch) -> Rows | None:
    """The rows beside the formula that is nearest to them; None where there is nothing to compare, as where no rewards differ."""
    found, rows, told = groups(batch, "reward"), judged(batch), recorded(batch)
    computed = [part for compute in FORMULAS.values() if (part := compute(batch)) is not None and np.isfinite(part).all()]
    if not computed or not len(told) or not np.isfinite(told).all():
        return None
    equal = found.spread((found.low == found.high).astype(np.float64))[rows] > 0
    if equal.all():
        return None
    expected = np.stack(computed)
    size = np.abs(expected)
    scale = size[:, ~equal].mean(axis=1, keepdims=True)
    within = np.where(equal, _ROUNDED * scale, _EXACT * size + _ZERO * scale)
    alive = (np.abs(told) > within) | (np.abs(expected) > within)
    exact = np.abs(told - expected) <= within
    label = np.repeat(np.arange(len(found.sizes)), found.sizes)[rows]
    ordered = np.abs(told[np.lexsort((told, label))] - expected) <= within
    best = int(np.argmax(np.count_nonzero(alive & exact, axis=1) + np.count_nonzero(alive & ordered, axis=1)))
    chosen, expected, within, exact = alive[best], expected[best], within[best], exact[best]
    other = ~exact
    if (exact | ~chosen).all():
        other = np.zeros(len(told), np.bool_)
    else:
        other &= _among_others(told, expected, within, label)
    return Rows(*(part[chosen] for part in (found.values[rows], told, expected, exact, within, equal, other)))


def _among_others(told: Floats, expected: Floats, within: Floats, label: NDArray[np.int64]) -> Bools:
    """Rows whose recorded value is expected somewhere in their group; rows stand by group, expected values rise within it."""
    reach = 2.0 * float(np.abs(expected).max(initial=0.0)) + 1.0
    key = 4.0 * reach * label + expected
    asked = 4.0 * reach * label + np.clip(told, -reach, reach)
    place = np.searchsorted(key, asked)
    found = np.zeros(len(key), np.bool_)
    for near in (np.clip(place - 1, 0, len(key) - 1), np.clip(place, 0, len(key) - 1)):
        found |= (label[near] == label) & (np.abs(told - expected[near]) <= within[near])
    return found


@reduction(zero=Sums(), needs=NEEDS, level="rollout")
def _kinds(batch: Batch) -> Sums:
    rows = against_formulas(batch)
    if rows is None:
        return Sums(tuple(Sum() for _ in range(7)))
    off = ~rows.exact
    if not off.any():
        return Sums((Sum.counted(0, len(off)), *(Sum() for _ in range(6))))
    number, missed = len(rows.exact), int(np.count_nonzero(off))
    told = np.abs(rows.expected) > rows.within
    negated = off & told & (np.abs(rows.recorded + rows.expected) <= rows.within)
    zeroed = off & (np.abs(rows.recorded) <= rows.within)
    times, factor = _one_factor(rows, off & told)
    flags = (negated, zeroed, rows.other, off & rows.equal, times)
    return Sums(
        (
            Sum.counted(missed, number),
            *(Sum.counted(int(np.count_nonzero(flag)), missed) for flag in flags),
            Sum.of(np.full(int(np.count_nonzero(times)), factor)),
        )
    )


def _one_factor(rows: Rows, chosen: Bools) -> tuple[Bools, float]:
    """Of the chosen rows those whose advantage is the expected one times the factor that is usual among them, and the factor."""
    if not chosen.any():
        return np.zeros(len(chosen), np.bool_), math.nan
    factor = float(np.median(rows.recorded[chosen] / rows.expected[chosen]))
    near = np.abs(rows.recorded - factor * rows.expected) <= 2.0 * abs(factor) * rows.within
    return chosen & near & (factor != 0.0), factor


_OVER: Final = (
    "over the rows of groups of several with an advantage other than 0, recorded or by the formula that gives most rows"
)
for _index, (_name, _share, _doc) in enumerate(
    (
        ("off", "|A - A'| > .01 |A'|", "that this formula does not give"),
        ("off_negated", "A = -A'", "of those which are off, that have it with the opposite sign"),
        ("off_zeroed", "A = 0", "of those which are off, that have an advantage of 0"),
        (
            "off_of_group",
            "A = A' of another row",
            "of those which are off, that have the advantage of another row of their group",
        ),
        ("off_equal", "rewards of g all equal", "of those which are off, whose group has one reward"),
        ("off_scaled", "A = c A'", "of those which are off, that have it times one factor"),
    )
):
    metric(
        f"advantage.rows_{_name}_frac", _kinds, mean, part=_index, unit="1", source=_SOURCE,
        formula=f"share_i[{_share}]" if _name == "off" else f"share over these[{_share}]",
        doc=f"Share of the rows {_doc}: {_OVER}.",
    )  # fmt: skip
metric(
    "advantage.rows_off_factor", _kinds, mean, part=6, unit="1", source=_SOURCE,
    formula="c = median over rows that are off[A / A']",
    doc="The factor that advantage.rows_off_scaled_frac counts rows of: the median of recorded over expected advantage.",
)  # fmt: skip


@reduction(zero=Sums(), needs=NEEDS, level="rollout")
def _of_equal(batch: Batch) -> Sums:
    """Of groups with one reward and any advantage: those whose mean square is 1, as of what was divided by its own deviation."""
    found = groups(batch, "reward")
    told = batch.columns[PER_SEQUENCE][found.rows].astype(np.float64)
    fine, sizes = np.isfinite(told), found.sizes
    label = np.repeat(np.arange(len(sizes)), sizes)
    number = np.bincount(label, fine, minlength=len(sizes))
    square = np.bincount(label, np.where(fine, told * told, 0.0), minlength=len(sizes))
    chosen = (found.low == found.high) & (sizes > 1) & (number == sizes) & (square > _ZERO * sizes)
    share = square[chosen] / np.where(sizes[chosen] > 1, sizes[chosen], 1)
    one = np.abs(share - 1.0) <= 2.0 * _EXACT
    less = np.abs(share * sizes[chosen] / (sizes[chosen] - 1) - 1.0) <= 2.0 * _EXACT
    return Sums((Sum.counted(int(np.count_nonzero(one | less)), int(np.count_nonzero(chosen))),))


metric(
    "adv.equal_groups_unit_frac", _of_equal, mean, part=0, unit="1", source="arithmetic: (x - mean) / std of any x",
    formula="share_g[mean_g A^2 = 1 or (n_g - 1) / n_g], rewards of g all equal, any A != 0",
    doc="Of the groups whose rewards are all equal and whose advantages are not all 0, the share in which these are of the size "
    "of what is divided by its own standard deviation, ddof 0 or 1.",
)  # fmt: skip


@reduction(zero=Sums(), needs=NEEDS, level="rollout")
def _divisors(batch: Batch) -> Sums:
    """Products of reward less group mean, advantage times group deviation (ddof 1), and advantage, where rewards differ."""
    found = groups(batch, "reward")
    told = batch.columns[PER_SEQUENCE][found.rows].astype(np.float64)
    fine = np.isfinite(told) & (found.spread((found.low < found.high).astype(np.float64)) > 0)
    deviation = found.spread(group_deviation(found.squares, found.sizes, 1))[fine]
    y, z = found.centred[fine], told[fine]
    x = z * deviation
    return Sums(tuple(Sum.of(part) for part in (y * y, x * y, z * y, x * x, x * z, z * z)))


def _divisor(part: int) -> Callable[[Sums], float]:
    """Least squares of R - mean = A (a std + b): a, b, or the share of the squares left over; NaN where they cannot be told."""

    def solved(sums: Sums) -> float:
        if sums.count < 8:
            return math.nan
        yy, xy, zy, xx, xz, zz = (sums[index].value for index in range(6))
        if not (math.isfinite(yy + xx + zz) and min(yy, xx, zz) > 0.0) or 1.0 - xz * xz / (xx * zz) < _ALONE:
            return math.nan
        whole = xx * zz - xz * xz
        slope, constant = (xy * zz - zy * xz) / whole, (zy * xx - xy * xz) / whole
        left = max(yy - slope * xy - constant * zy, 0.0) / yy
        return left if part == 2 else (slope, constant)[part] if left <= _SAME else math.nan

    return solved


for _index, (_name, _unit, _doc) in enumerate(
    (
        ("slope", "1", "How often the group's standard deviation (ddof 1) is in what advantages are divided by: 1 for GRPO"),
        ("constant", "reward", "What is added to it: epsilon for GRPO, 1 for Dr. GRPO"),
        ("residual", "1", "Share of the squares that is left over"),
    )
):
    metric(
        f"adv.divisor_{_name}", _divisors, _divisor(_index), unit=_unit,
        source="GRPO, arXiv:2402.03300, section 4.1.2, solved for the divisor",
        formula="least squares: R - mean_g R = A (a std_g R + b)",
        doc=f"{_doc}, by least squares over groups whose rewards differ.",
    )  # fmt: skip


@reduction(zero=Sums(), needs=NEEDS, level="rollout")
def _lines(batch: Batch) -> Sums:
    """Squares of advantages of groups whose rewards differ: all, and what lines in the reward leave, through the mean or not."""
    found = groups(batch, "reward")
    told = batch.columns[PER_SEQUENCE][found.rows].astype(np.float64)
    label = np.repeat(np.arange(len(found.sizes)), found.sizes)
    chosen = np.flatnonzero(np.isfinite(told) & (found.low < found.high)[label])
    chosen = chosen[np.lexsort((told[chosen], found.values[chosen], label[chosen]))]
    y, x, label = told[chosen], found.centred[chosen], label[chosen]
    number, yy, xy, xx, sy, sx = (
        np.bincount(label, part, minlength=len(found.sizes)) for part in (np.ones(len(y)), y * y, x * y, x * x, y, x)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        through = yy - xy * xy / xx
        varied = xx - sx * sx / number
        free = (yy - sy * sy / number) - (xy - sx * sy / number) ** 2 / varied
        filled = (number > 2) & (varied > 1e-9 * xx)
    return Sums(tuple(Sum.of(np.maximum(part[filled], 0.0), int(number[filled].sum())) for part in (yy, through, free)))


def _left(part: int) -> Callable[[Sums], float]:
    return lambda sums: sums[part].value / sums[0].value if sums.count and sums[0].value > 0.0 else math.nan


for _part, _name, _which in ((1, "mean_line", "through the mean of the group"), (2, "line", "through any point")):
    metric(
        f"adv.{_name}_left", _lines, _left(_part), unit="1", source="GRPO, Dr. GRPO and RLOO are such lines",
        formula=f"sum_g min over a{'' if _part == 1 else ' and b'}[sum_i (A - a (R - {'mean_g R' if _part == 1 else 'b'}))^2] / "
        f"sum A^2, a the slope{'' if _part == 1 else ' and b the zero'} of a line, rewards of g differ",
        doc=f"Share of the square of the advantage that lines in the reward leave over, one for each group, {_which}; over "
        "groups of three or more whose rewards differ.",
    )  # fmt: skip
