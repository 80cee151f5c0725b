"""Numbers with how often each is there, of histograms put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.histogram import Histogram

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Numbers with how often each is there; NaN apart.

    Attributes:
        values: float64 ``[k]``, in increasing order.
        counts: int64 ``[k]``.
        nan: number of NaN.
    """

    values: Floats
    counts: Counts
    nan: int

    @classmethod
    def of(cls, histograms: Iterable[Histogram], value: Callable[[Floats], Floats]) -> Counted:
        """All values of the histograms together."""
        return cls.of_numbers(*numbers_of(histograms), value)

    @classmethod
    def of_numbers(cls, counts: Counts, nan: int, value: Callable[[Floats], Floats]) -> Counted:
        """The values of a histogram's bins, of which there are ``counts`` by key, int64 ``[2**16]``."""
        there = np.flatnonzero(counts)
        values = value(Histogram(there.astype(np.int32), counts[there]).centres.astype(np.float64))
        order = np.argsort(values, kind="stable")
        return cls(values[order], counts[there][order], nan)

    @property
    def n(self) -> int:
        """How many numbers there are, without NaN."""
        return int(self.counts.sum())

    def quantiles(self, at: Sequence[float]) -> Floats:
        """The value at rank floor(q n) of each q, float64 ``[len(at)]``; NaN for no numbers."""
        if not self.counts.size:
            return np.full(len(at), np.nan)
        ranks = np.minimum((np.asarray(at) * self.n).astype(np.int64), self.n - 1)
        return self.values[np.searchsorted(np.cumsum(self.counts), ranks, side="right")]


def numbers_of(histograms: Iterable[Histogram]) -> tuple[Counts, int]:
    """How many values of all histograms are in each bin, int64 ``[2**16]`` by its key, and how many are NaN."""
    each = list(histograms)
    weights = np.concatenate([one.counts for one in each])
    counts = np.bincount(np.concatenate([one.keys for one in each]), weights, 1 << 16)
    return counts.astype(np.int64), sum(one.nan for one in each)
