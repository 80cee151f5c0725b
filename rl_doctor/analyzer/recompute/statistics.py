"""Sums and extremes of several quantities at once, over rows or tokens, from which statistics of a whole batch follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, column_sums, per_sequence_counts, per_sequence_sums, picked, span
from rl_doctor.analyzer.moments import variance
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, Entries, entry
from rl_doctor.analyzer.recompute.stages import rounded_sum
from rl_doctor.analyzer.states import Extremes, Sum, Sums
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch


@frozen
class Statistic:
    """One quantity: ``sums`` of x, of x squared, of the size of x's own summands, and of what may flip; and its extremes."""

    sums: Sums = Sums()
    extremes: Extremes = Extremes()

    @property
    def count(self) -> int:
        """Number of items."""
        return self.sums.count

    def __add__(self, other: Statistic, /) -> Statistic:
        return Statistic(self.sums + other.sums, self.extremes + other.extremes)

    @property
    def mean(self) -> float:
        """The mean."""
        return self.sums[0].mean

    @property
    def square(self) -> float:
        """The mean square."""
        return self.sums[1].mean

    @property
    def size(self) -> float:
        """The mean absolute summand."""
        return self.sums[2].mean

    @property
    def slack(self) -> float:
        """What of the mean may flip at a threshold."""
        return self.sums[3].mean if len(self.sums.parts) > 3 else 0.0

    def variance(self, ddof: int) -> float:
        """The variance; NaN for count <= ddof."""
        return variance(self.sums, ddof)


@frozen
class Statistics:
    """Quantities by name."""

    named: Mapping[str, Statistic]

    @property
    def count(self) -> int:
        """Number of items behind the largest."""
        return max((item.count for item in self.named.values()), default=0)

    def __add__(self, other: Statistics, /) -> Statistics:
        merged = dict(self.named)
        for name, item in other.named.items():
            merged[name] = merged[name] + item if name in merged else item
        return Statistics(merged)

    def __getitem__(self, name: str) -> Statistic:
        return self.named.get(name, Statistic())


Numbers = NDArray[Any]
NONE: Final = Statistics({})


def of_rows(values: Numbers, size: Floats | None = None, slack: Numbers | None = None) -> Statistic:
    """A quantity of ``values`` ``[n]``, one per row; ``size`` is by default their absolute value."""
    numbers = values.astype(np.float64)
    parts = (numbers, numbers * numbers, np.abs(numbers) if size is None else size, *(() if slack is None else (slack * 1.0,)))
    return Statistic(Sums(tuple(map(Sum.of, parts))), Extremes.of(values))


def of_tokens(
    batch: Batch, values: Numbers, size: Floats | None = None, slack: Numbers | None = None, *, squared: bool = False
) -> Statistic:
    """A quantity of ``values`` ``[n_selected]``, one per selected token; summed per sequence first.

    What only bounds an error, and with ``squared`` not asked for the squares, is not summed as carefully.
    """
    count = int(per_sequence_counts(batch).sum())
    sums = [Sum.of(per_sequence_sums(batch, values), count)]
    sums.append(Sum.of(per_sequence_sums(batch, values * values), count) if squared else Sum(0, count))
    sums.append(rounded_sum(np.abs(values) if size is None else size, count))
    if slack is not None:
        sums.append(rounded_sum(slack, count))
    return Statistic(Sums(tuple(sums)), Extremes.of(values))


def ends_of(values: Numbers, size: Floats) -> Statistic:
    """The extremes of a quantity of ``values`` ``[n]``, one per token, and the sum of ``size``; without its sums."""
    nothing = Sum(0, len(values))
    return Statistic(Sums((nothing, nothing, rounded_sum(size, len(values)))), Extremes.of(values))


def of_column(batch: Batch, name: str) -> Statistic:
    """The column ``name`` at the selected tokens, without its squares."""
    count = int(per_sequence_counts(batch).sum())
    low, high = span(batch, name)
    sums = (Sum.of(column_sums(batch, name), count), Sum(0, count), rounded_sum(np.abs(picked(batch, name)), count))
    return Statistic(Sums(sums), Extremes(low, high, count, int(math.isnan(low))) if count else Extremes())


Reading = Callable[[Statistics], Entries]


def mean_of(name: str, offset: float = 0.0) -> Reading:
    """The mean of a quantity, plus a constant."""

    def read(found: Statistics) -> Entries:
        item = found[name]
        return entry(item.mean + offset, TOLERANCE * item.size + item.slack) if item.count else Entries()

    return read


def largest_of(name: str) -> Reading:
    """The largest value of a quantity."""
    return _end_of(name, lambda ends: ends.max)


def smallest_of(name: str) -> Reading:
    """The smallest value of a quantity."""
    return _end_of(name, lambda ends: ends.min)


def _end_of(name: str, pick: Callable[[Extremes], float]) -> Reading:
    def read(found: Statistics) -> Entries:
        item = found[name]
        value = pick(item.extremes)
        return entry(value, TOLERANCE * max(abs(value), item.size)) if item.count else Entries()

    return read


def deviation_of(name: str, *, ddof: int) -> Reading:
    """The standard deviation of a quantity; float32 loses most where it is small against the mean."""

    def read(found: Statistics) -> Entries:
        item = found[name]
        if not item.count:
            return Entries()
        if item.count <= ddof:
            return entry(math.nan)
        value = math.sqrt(item.variance(ddof))
        lost = EPSILON32 * item.square
        return entry(value, TOLERANCE * max(value, item.size) + min(lost / value if value else math.inf, math.sqrt(lost)))

    return read


STATISTICS: Final[tuple[tuple[str, Callable[[str], Reading]], ...]] = (
    ("mean", mean_of),
    ("max", largest_of),
    ("min", smallest_of),
)
"""The three that are logged of most quantities."""
