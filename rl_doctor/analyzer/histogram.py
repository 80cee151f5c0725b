"""Counts of values by their size, from which quantiles follow: merges exactly, as every state does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen

_INFINITE_TOP: Final = 0x7F80


@frozen(eq=False)
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
        at = int(np.searchsorted(np.cumsum(self.counts), rank, side="right"))
        return float(_centres(self.keys[at : at + 1])[0])

    @property
    def centres(self) -> NDArray[np.float32]:
        """The value in the middle of each bin, float32 ``[k]``, increasing; 0 and infinities are themselves."""
        return _centres(self.keys)

    def to_row(self) -> dict[str, Any]:
        """A JSON-compatible form that loses nothing."""
        return {"keys": self.keys.tolist(), "counts": self.counts.tolist(), "nan": self.nan}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what ``to_row`` wrote."""
        return cls(np.asarray(row["keys"], np.int32), np.asarray(row["counts"], np.int64), row["nan"])


def _centres(keys: NDArray[np.int32]) -> NDArray[np.float32]:
    """The value in the middle of the bins of these keys of a ``Histogram``."""
    tops = np.where(keys >= 0x8000, keys - 0x8000, 0xFFFF - keys)
    of_exponent = tops & 0x7FFF
    exact = (of_exponent == 0) | (of_exponent == _INFINITE_TOP)
    return ((tops.astype(np.uint32) << 16) | np.where(exact, 0, 0x8000).astype(np.uint32)).view(np.float32)
