"""Groups of samples of one prompt: how many have a learning signal."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.formulas.advantage import group_deviation
from rl_doctor.analyzer.grouping import groups
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("reward", "group")
NEAR_ZERO: Final = 1e-3
"""A group's standard deviation is nearly zero below this share of the range of the batch's rewards ..."""
ROUNDING: Final = 1e-6
"""... or below this share of the largest absolute reward, which is what float32 rounding leaves of equal rewards."""


@reduction(zero=Extremes(), needs=_NEEDS, level="rollout")
def _sizes(batch: Batch) -> Extremes:
    return Extremes.of(groups(batch, "reward").sizes.astype(np.float64))


@reduction(zero=Sum(), needs=_NEEDS, level="rollout")
def _singletons(batch: Batch) -> Sum:
    sizes = groups(batch, "reward").sizes
    return Sum.counted(int(np.count_nonzero(sizes == 1)), len(sizes))


@reduction(zero=Sums(), needs=_NEEDS, level="rollout")
def _signal(batch: Batch) -> Sums:
    found = groups(batch, "reward")
    several = found.sizes > 1
    low, high = found.low[several], found.high[several]
    if low.size == 0:
        return Sums()
    deviation = group_deviation(found.squares, found.sizes, 1)[several]
    smallest, largest = found.values.min(), found.values.max()
    bound = max(NEAR_ZERO * (largest - smallest), ROUNDING * max(abs(smallest), abs(largest)))
    equal = low == high
    near = ~equal & (deviation < bound)
    right = equal & (high == largest) & ((largest > smallest) | (high > 0))
    wrong = equal & (low == smallest) & ~right
    counts = (int(np.count_nonzero(flags)) for flags in (equal, near, right, wrong))
    return Sums(tuple(Sum.counted(number, low.size) for number in counts))


@reduction(zero=Sum(), needs=_NEEDS, level="rollout")
def _deviation(batch: Batch) -> Sum:
    found = groups(batch, "reward")
    deviation = group_deviation(found.squares, found.sizes, 1)
    return Sum.of(deviation[found.sizes > 1])


_SOURCE: Final = "DAPO, arXiv:2503.14476, section 3.2 (groups without variance give no gradient)"
_COUNT: Final = "counting over the groups of the generation batch, by group identity"

metric(
    "group.count",
    _sizes,
    lambda s: float(s.count),
    unit="groups",
    source=_COUNT,
    formula="number of g",
    doc="Number of groups with a known reward.",
)
metric(
    "group.size_min",
    _sizes,
    lambda s: s.min,
    unit="sequences",
    source=_COUNT,
    formula="min_g n_g",
    doc="Size of the smallest group.",
)
metric(
    "group.size_max",
    _sizes,
    lambda s: s.max,
    unit="sequences",
    source=_COUNT,
    formula="max_g n_g",
    doc="Size of the largest group.",
)
metric(
    "group.singleton_frac", _singletons, mean, unit="1", source=_COUNT,
    formula="share_g[n_g = 1]",
    doc="Share of groups that have one sequence only.",
)  # fmt: skip
metric(
    "group.zero_std_frac", _signal, mean, part=0, unit="1", source=_SOURCE,
    formula="share_g[max_g R = min_g R], n_g > 1",
    doc="Share of groups of two or more whose rewards are all equal.",
)  # fmt: skip
metric(
    "group.near_zero_std_frac", _signal, mean, part=1, unit="1", source=_SOURCE,
    formula="share_g[0 < std_g R < max(.001 (max R - min R), 1e-6 max |R|)], n_g > 1",
    doc="Share of groups of two or more whose rewards differ, but with a standard deviation (ddof 1) below .001 of the range of "
    "the generation batch's rewards or below 1e-6 of the largest absolute reward.",
)  # fmt: skip
metric(
    "group.all_max_frac", _signal, mean, part=2, unit="1", source=_SOURCE,
    formula="share_g[min_g R = max R], n_g > 1",
    doc="Share of groups of two or more whose rewards all equal the largest of the generation batch (all right). Where the whole "
    "batch has one reward, it counts as the largest if positive.",
)  # fmt: skip
metric(
    "group.all_min_frac", _signal, mean, part=3, unit="1", source=_SOURCE,
    formula="share_g[max_g R = min R], n_g > 1",
    doc="Share of groups of two or more whose rewards all equal the smallest of the generation batch (all wrong).",
)  # fmt: skip
metric(
    "group.std_mean", _deviation, mean, unit="reward", source=_SOURCE,
    formula="mean_g std_g R, ddof 1, n_g > 1",
    doc="Mean over groups of two or more of the standard deviation of the reward within the group, ddof 1.",
)  # fmt: skip
