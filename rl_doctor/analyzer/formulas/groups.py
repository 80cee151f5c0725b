"""Responses to the same prompt: statistics of each group, of the same bits in any order of the responses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.returns import discounted_sums
from rl_doctor.analyzer.formulas.segments import Floats, Splits, segment_sums
from rl_doctor.frozen import frozen


@frozen(eq=False)
class Groups:
    """The values of responses by group. NaN counts in no statistic, and a group of NaN alone has size 0.

    Attributes:
        values: float64 ``[sequences]``.
        place: int64 ``[sequences]``, the group of each response.
        order: int64 ``[known]``, the responses with a value, group after group, in increasing order of the value.
        splits: int64 ``[groups + 1]``, of ``order``.
        means: float64 ``[groups]``; between the smallest and the largest value.
    """

    values: Floats
    place: NDArray[np.int64]
    order: NDArray[np.int64]
    splits: Splits
    means: Floats

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of values in the group of each response, int64 ``[sequences]``."""
        return np.diff(self.splits)[self.place]

    @property
    def mean(self) -> Floats:
        """Mean of the group of each response, float64 ``[sequences]``."""
        return self.means[self.place]

    @property
    def centred(self) -> Floats:
        """Each value minus the mean of its group, float64 ``[sequences]``; exactly 0 where all of a group are equal."""
        return self.values - self.mean

    @property
    def squares(self) -> Floats:
        """Sum of squared ``centred`` over the group of each response, float64 ``[sequences]``."""
        return self.sum(self.centred**2)

    def sum(self, values: Floats) -> Floats:
        """Sum of ``values`` ``[sequences]`` over the group of each response, float64 ``[sequences]``."""
        given = values[self.order]
        place = self.place[self.order]
        found: Floats = segment_sums(given[np.lexsort((given, place))], self.splits)[self.place]
        return found

    def ranked(self, below: int) -> Floats:
        """The largest value but ``below`` of the group of each response, float64 ``[sequences]``; NaN where there is none."""
        return self._item(self.splits[1:] - 1 - below)

    @property
    def middle(self) -> Floats:
        """A value in the middle of the group of each response, float64 ``[sequences]``."""
        return self._item((self.splits[:-1] + self.splits[1:] - 1) // 2)

    def _item(self, at: NDArray[np.int64]) -> Floats:
        found = np.full(len(at), np.nan)
        there = (at >= self.splits[:-1]) & (at < self.splits[1:])
        found[there] = self.values[self.order][at[there]]
        return found[self.place]

    def others(self, values: Floats) -> Floats:
        """Sum of ``values`` ``[sequences]`` over the others of the group of each response, float64 ``[sequences]``.

        Added up from both ends of the group, so that nothing of its own value is subtracted again; NaN where that is unknown.
        """
        given = values[self.order]
        backwards = self.splits[-1] - self.splits[::-1]
        after = discounted_sums(given, self.splits, 1.0)
        before = discounted_sums(given[::-1], backwards, 1.0)[::-1]
        inner = np.zeros((2, len(given)))
        if len(given):
            starts, stops = np.zeros((2, len(given)), np.bool_)
            starts[self.splits[:-1][np.diff(self.splits) > 0]] = True
            stops[self.splits[1:][np.diff(self.splits) > 0] - 1] = True
            inner[0, 1:] = np.where(starts[1:], 0.0, before[:-1])
            inner[1, :-1] = np.where(stops[:-1], 0.0, after[1:])
        found = np.full(len(values), np.nan)
        found[self.order] = inner[0] + inner[1]
        return found


@checked
def group(values: Floats, labels: NDArray[Any]) -> Groups:
    """The values of responses by the prompt that they answer. Source: arithmetic.

    Args:
        values: float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``, of any type that can be sorted.
    """
    names, place = np.unique(labels, return_inverse=True)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((values[known], place[known]))]
    splits = np.zeros(len(names) + 1, np.int64)
    np.cumsum(np.bincount(place[known], minlength=len(names)), out=splits[1:])
    ordered = values[order]
    means = np.full(len(names), np.nan)
    filled = np.flatnonzero(np.diff(splits))
    with np.errstate(over="ignore", invalid="ignore"):
        sums = segment_sums(ordered, splits)[filled] / np.diff(splits)[filled]
    means[filled] = np.clip(sums, ordered[splits[filled]], ordered[splits[filled + 1] - 1])
    return Groups(values, place.astype(np.int64), order, splits, means)
