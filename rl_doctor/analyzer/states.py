"""Mergeable aggregates: ``+`` is exactly associative and commutative, so any split and any order gives the same bits.

Sums are integers in units of 2**-1126, below the smallest float64 mantissa bit, so adding loses nothing. Values are first
summed per sequence in float64 by the caller, which makes the result independent of how sequences were split into batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.exact import SHIFT, UNIT, exact_quotient, exact_total, exact_totals, short_total

_SHORT: Final = 64
_INFINITE_TOP: Final = 0x7F80


class State(Protocol):
    """A mergeable aggregate. ``count`` is the number of items behind it."""

    @property
    def count(self) -> int:
        """Number of items behind the aggregate."""

    def __add__(self, other: Any, /) -> Self:
        """Merge; associative and commutative to the bit."""


@dataclass(frozen=True, slots=True)
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
        if values.size <= _SHORT:
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Extremes:
    """Smallest and largest value of ``count`` items; ``nan`` of them are NaN and leave ``low`` and ``high`` alone."""

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    nan: int = 0

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """Extremes of ``values`` ``[n]``."""
        if values.size == 0:
            return cls()
        low = float(values.min())
        if not math.isnan(low):
            return cls(low, float(values.max()), int(values.size))
        kept = values[~np.isnan(values)]
        nan = int(values.size - kept.size)
        if kept.size == 0:
            return cls(count=int(values.size), nan=nan)
        return cls(float(kept.min()), float(kept.max()), int(values.size), nan)

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


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Counts by the top 16 bits of the float32 value: merges exactly, quantiles within .4% of the value.

    Values closer to zero than the smallest normal float32 (1.2e-38) share few bins, so the bound does not hold there.
    ``keys`` are ordered so that a larger key is a larger value (int32 ``[k]``, increasing), ``counts`` int64 ``[k]``.
    """

    keys: NDArray[np.int32]
    counts: NDArray[np.int64]
    nan: int = 0

    @classmethod
    def zero(cls) -> Self:
        """The empty histogram."""
        return cls(np.empty(0, np.int32), np.empty(0, np.int64))

    @classmethod
    def of(cls, values: NDArray[Any]) -> Self:
        """Histogram of ``values`` ``[n]``; they are rounded to float32 first."""
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        return cls.of_counts(np.bincount(single.view(np.uint32) >> 16, minlength=1 << 16))

    @classmethod
    def of_counts(cls, counts: NDArray[np.integer[Any]]) -> Self:
        """Histogram from the number of values that share their top 16 bits, ``[2**16]``; NaN have bits of their own."""
        top = np.flatnonzero(counts)
        missing = (top & 0x7FFF) > _INFINITE_TOP
        nan = int(counts[top[missing]].sum())
        top = top[~missing]
        half = int(np.searchsorted(top, 0x8000))  # negative values stand behind, the closest to zero first
        keys = np.concatenate([0xFFFF - top[half:][::-1], top[:half] + 0x8000])
        ordered = np.concatenate([counts[top[half:]][::-1], counts[top[:half]]])
        return cls(keys.astype(np.int32), ordered.astype(np.int64), nan)

    @property
    def count(self) -> int:
        """Number of values, NaN included."""
        return int(self.counts.sum()) + self.nan

    def __add__(self, other: Self, /) -> Self:
        if not self.keys.size or not other.keys.size:
            some = self if self.keys.size else other
            return type(self)(some.keys, some.counts, self.nan + other.nan)
        counts = np.zeros(max(int(self.keys[-1]), int(other.keys[-1])) + 1, np.int64)
        counts[self.keys] = self.counts
        counts[other.keys] += other.counts
        keys = np.flatnonzero(counts)
        return type(self)(keys.astype(np.int32), counts[keys], self.nan + other.nan)

    def quantile(self, q: float) -> float:
        """The value at rank floor(q * n), ``q`` in [0, 1]: the centre of the bin that holds it; NaN for no values or any NaN."""
        total = self.count
        if total == 0 or self.nan:
            return math.nan
        rank = min(int(q * total), total - 1)
        key = int(self.keys[int(np.searchsorted(np.cumsum(self.counts), rank, side="right"))])
        top = key - 0x8000 if key >= 0x8000 else 0x8000 | (0x7FFF - key)
        exact = top & 0x7FFF in (0, _INFINITE_TOP)
        centre = np.uint32((top << 16) | (0 if exact else 0x8000))
        return float(centre.view(np.float32))

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {"keys": self.keys.tolist(), "counts": self.counts.tolist(), "nan": self.nan}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what ``to_row`` wrote."""
        return cls(np.asarray(row["keys"], np.int32), np.asarray(row["counts"], np.int64), row["nan"])


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
