"""Mergeable aggregates: ``+`` is exactly associative and commutative, so any split and any order gives the same bits.

Sums are integers in units of 2**-1126, below the smallest float64 mantissa bit, so adding loses nothing. Values are first
summed per sequence in float64 by the caller, which makes the result independent of how sequences were split into batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.exact import SHIFT, SHORT, UNIT, exact_quotient, exact_total, exact_totals, short_total
from rl_doctor.frozen import frozen

_TOP: Final = 3


class State(Protocol):
    """A mergeable aggregate. ``count`` is the number of items behind it."""

    @property
    def count(self) -> int:
        """Number of items behind the aggregate."""

    def __add__(self, other: Any, /) -> Self:
        """Merge; associative and commutative to the bit."""


@frozen
class Sum:
    """An exact sum with its count. NaN and infinities are counted apart and come back when the value is read."""

    total: int = 0
    count: int = 0
    nan: int = 0
    positive_inf: int = 0
    negative_inf: int = 0

    @classmethod
    def of(cls, values: NDArray[np.float64], count: int | None = None) -> Self:
        """Sum ``values`` (float64 ``[n]``); ``count`` is the number of items behind them, by default n."""
        values = np.asarray(values, dtype=np.float64)
        size = values.size if count is None else int(count)
        if values.size <= SHORT:
            with suppress(ValueError, OverflowError):  # NaN or infinity: counted below
                return cls(short_total(values.tolist()), size)
        finite = np.isfinite(values)
        if finite.all():
            return cls(exact_total(values), size)
        return cls(
            exact_total(values[finite]),
            size,
            int(np.isnan(values).sum()),
            int(np.isposinf(values).sum()),
            int(np.isneginf(values).sum()),
        )

    @classmethod
    def counted(cls, number: int, count: int, nan: int = 0) -> Self:
        """The sum of ``number`` ones among ``count`` items, ``nan`` of which cannot be told (then the mean is NaN)."""
        return cls(int(number) << SHIFT, int(count), int(nan))

    def __add__(self, other: Self, /) -> Self:
        return type(self)(
            self.total + other.total,
            self.count + other.count,
            self.nan + other.nan,
            self.positive_inf + other.positive_inf,
            self.negative_inf + other.negative_inf,
        )

    @property
    def value(self) -> float:
        """The sum, correctly rounded."""
        if self.nan or (self.positive_inf and self.negative_inf):
            return math.nan
        if self.positive_inf or self.negative_inf:
            return math.inf if self.positive_inf else -math.inf
        return exact_quotient(self.total, UNIT)

    @property
    def mean(self) -> float:
        """The sum over the count, correctly rounded; NaN for no items."""
        if self.count == 0 or not self.finite:
            return math.nan if self.count == 0 else self.value
        return exact_quotient(self.total, self.count * UNIT)

    @property
    def finite(self) -> bool:
        """Whether no NaN or infinity was added."""
        return not (self.nan or self.positive_inf or self.negative_inf)

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {
            "total": hex(self.total),
            "count": self.count,
            "nan": self.nan,
            "positive_inf": self.positive_inf,
            "negative_inf": self.negative_inf,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what ``to_row`` wrote."""
        return cls(int(row["total"], 16), row["count"], row["nan"], row["positive_inf"], row["negative_inf"])


@frozen
class Sums:
    """Several sums over the same items, e.g. of x and of its square. ``count`` is that of the first."""

    parts: tuple[Sum, ...] = ()

    @property
    def count(self) -> int:
        """Number of items behind the first sum."""
        return self.parts[0].count if self.parts else 0

    def __add__(self, other: Self, /) -> Self:
        if not self.parts or not other.parts:
            return self if self.parts else other
        return type(self)(tuple(mine + theirs for mine, theirs in zip(self.parts, other.parts, strict=True)))

    def __getitem__(self, index: int) -> Sum:
        return self.parts[index] if self.parts else Sum()

    @classmethod
    def of(cls, values: NDArray[np.float64], count: int) -> Self:
        """Sum each row of float64 values ``[k, n]``; ``count`` is the number of items behind every sum."""
        finite = np.isfinite(values)
        if not finite.all():
            return cls(tuple(Sum.of(row, count) for row in values))
        return cls(tuple(Sum(total, count) for total in exact_totals(values)))

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {"parts": [part.to_row() for part in self.parts]}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what ``to_row`` wrote."""
        return cls(tuple(Sum.from_row(part) for part in row["parts"]))


@frozen
class Extremes:
    """Smallest and largest value of ``count`` items; ``nan`` of them are NaN and leave ``low`` and ``high`` alone."""

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    nan: int = 0

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """Extremes of ``values`` ``[n]``; a zero has no sign, else it would depend on which of two came first."""
        if values.size == 0:
            return cls()
        low = float(values.min()) + 0.0
        if not math.isnan(low):
            return cls(low, float(values.max()) + 0.0, int(values.size))
        kept = values[~np.isnan(values)]
        nan = int(values.size - kept.size)
        if kept.size == 0:
            return cls(count=int(values.size), nan=nan)
        return cls(float(kept.min()) + 0.0, float(kept.max()) + 0.0, int(values.size), nan)

    @property
    def min(self) -> float:
        """The smallest value; NaN for no items, and where an item is NaN."""
        return math.nan if self.count == 0 or self.nan else self.low

    @property
    def max(self) -> float:
        """The largest value; NaN for no items, and where an item is NaN."""
        return math.nan if self.count == 0 or self.nan else self.high

    def __add__(self, other: Self, /) -> Self:
        return type(self)(min(self.low, other.low), max(self.high, other.high), self.count + other.count, self.nan + other.nan)

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {"low": self.low.hex(), "high": self.high.hex(), "count": self.count, "nan": self.nan}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what ``to_row`` wrote."""
        return cls(float.fromhex(row["low"]), float.fromhex(row["high"]), row["count"], row["nan"])


@frozen
class Keyed:
    """One ``Sums`` per key, for metrics that a trainer averages in stages: the key names the stage (micro-batch, rank ...).

    Merged ones have their keys in order, so that what is made of them does not depend on the order of the parts.
    """

    groups: Mapping[tuple[int, ...], Sums]

    @property
    def count(self) -> int:
        """Number of items over all keys."""
        return sum(sums.count for sums in self.groups.values())

    def __add__(self, other: Self, /) -> Self:
        merged = dict(self.groups)
        for key, sums in other.groups.items():
            merged[key] = merged[key] + sums if key in merged else sums
        return type(self)(dict(sorted(merged.items())))

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {"groups": [[list(key), sums.to_row()] for key, sums in sorted(self.groups.items())]}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what ``to_row`` wrote."""
        return cls({tuple(key): Sums.from_row(sums) for key, sums in row["groups"]})


@frozen
class Named:
    """One ``Sums`` per name, for metrics that are told apart by something: a position, a rank, a data source."""

    groups: Mapping[str, Sums]

    @property
    def count(self) -> int:
        """Number of items over all names."""
        return sum(sums.count for sums in self.groups.values())

    @classmethod
    def of(cls, keys: Sequence[str], member: NDArray[np.int64], values: NDArray[np.float64], counts: NDArray[np.int64]) -> Self:
        """Sums of values by name.

        Args:
            keys: the names.
            member: int64 ``[n]``, index into ``keys`` of each value; negative for values that belong to none.
            values: float64 ``[k, n]``, k sums of each sequence (or of each part of it that belongs to a name).
            counts: int64 ``[n]``, items behind each value.
        """
        groups = {}
        order = np.argsort(member, kind="stable")
        edges = np.searchsorted(member[order], np.arange(len(keys) + 1))
        for index, key in enumerate(keys):
            chosen = order[edges[index] : edges[index + 1]]
            if chosen.size and (number := int(counts[chosen].sum())):
                groups[key] = Sums.of(np.ascontiguousarray(values[:, chosen]), number)
        return cls(groups)

    def __add__(self, other: Self, /) -> Self:
        merged = dict(self.groups)
        for key, sums in other.groups.items():
            merged[key] = merged[key] + sums if key in merged else sums
        return type(self)(dict(sorted(merged.items())))

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {"groups": {key: sums.to_row() for key, sums in sorted(self.groups.items())}}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what ``to_row`` wrote."""
        return cls({key: Sums.from_row(sums) for key, sums in row["groups"].items()})


@frozen
class Top:
    """The sequences with the largest values, as (value, sequence, uid), largest first; of equal ones the first sequence.

    ``count`` is the number of sequences that they were chosen from.
    """

    items: tuple[tuple[float, int, str | None], ...] = ()
    count: int = 0

    @classmethod
    def of(cls, values: NDArray[np.float64], sequences: NDArray[np.int64], uids: NDArray[Any] | None) -> Self:
        """The largest of ``values`` float64 ``[n]`` of the sequences int64 ``[n]``; NaN are left out.

        ``uids`` are strings ``[n]``, or None where none were recorded.
        """
        order = np.lexsort((sequences, -values))[: _TOP + int(np.isnan(values).sum())]
        kept = [index for index in order.tolist() if not math.isnan(values[index])][:_TOP]
        told = (None if uids is None or uids[index] is None else str(uids[index]) for index in kept)
        items = tuple((float(values[i]), int(sequences[i]), uid) for i, uid in zip(kept, told, strict=True))
        return cls(items, int(values.size))

    def __add__(self, other: Self, /) -> Self:
        items = sorted((*self.items, *other.items), key=lambda item: (-item[0], item[1]))
        return type(self)(tuple(items[:_TOP]), self.count + other.count)

    @property
    def largest(self) -> float:
        """The largest value; NaN for none."""
        return self.items[0][0] if self.items else math.nan

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {"items": [[value.hex(), sequence, uid] for value, sequence, uid in self.items], "count": self.count}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what ``to_row`` wrote."""
        items = tuple((float.fromhex(value), sequence, uid) for value, sequence, uid in row["items"])
        return cls(items, row["count"])


@frozen
class Counts:
    """How many items each name has."""

    names: Mapping[str, int]

    @property
    def count(self) -> int:
        """Number of items over all names."""
        return sum(self.names.values())

    def __add__(self, other: Self, /) -> Self:
        merged = dict(self.names)
        for name, number in other.names.items():
            merged[name] = merged.get(name, 0) + number
        return type(self)(merged)

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {"names": dict(sorted(self.names.items()))}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what ``to_row`` wrote."""
        return cls(dict(row["names"]))


def mean(state: Sum) -> float:
    """The mean of a ``Sum``."""
    return state.mean


def total(state: Sum) -> float:
    """The value of a ``Sum``."""
    return state.value
