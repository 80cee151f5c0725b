"""Histograms of many steps, packed: a few bytes for a bin, and an object only for what is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.histogram import Histogram


class Stack(Mapping[int, Histogram]):
    """Step -> histogram, in the order of steps.

    Args:
        steps: int64 ``[n]``.
        ends: int64 ``[n]``, where the bins of each step end.
        keys: uint16 ``[k]``, of all steps in turn.
        counts: ``[k]``, integers.
        nan: int64 ``[n]``.
    """

    def __init__(
        self,
        steps: NDArray[np.int64] | None = None,
        ends: NDArray[np.int64] | None = None,
        keys: NDArray[np.uint16] | None = None,
        counts: NDArray[np.integer] | None = None,
        nan: NDArray[np.int64] | None = None,
    ) -> None:
        self._steps = np.empty(0, np.int64) if steps is None else steps
        self._ends = np.empty(0, np.int64) if ends is None else ends
        self._keys = np.empty(0, np.uint16) if keys is None else keys
        self._counts = np.empty(0, np.int64) if counts is None else counts
        self._nan = np.empty(0, np.int64) if nan is None else nan
        self._fresh: dict[int, Histogram] = {}

    def __len__(self) -> int:
        return len(self._steps) + len(self._fresh)

    def __iter__(self) -> Iterator[int]:
        yield from self._steps.tolist()
        yield from self._fresh

    def __getitem__(self, step: int) -> Histogram:
        if step in self._fresh:
            return self._fresh[step]
        at = int(np.searchsorted(self._steps, step))
        if at == len(self._steps) or self._steps[at] != step:
            raise KeyError(step)
        bins = slice(int(self._ends[at - 1]) if at else 0, int(self._ends[at]))
        return Histogram(self._keys[bins].astype(np.int32), self._counts[bins].astype(np.int64), int(self._nan[at]))

    def add(self, step: int, state: Histogram) -> None:
        """Add the histogram of a later step."""
        self._fresh[step] = state

    def copy(self) -> Stack:
        """The same as it is now."""
        other = Stack(self._steps, self._ends, self._keys, self._counts, self._nan)
        other._fresh = dict(self._fresh)
        return other

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint16], NDArray[np.integer], NDArray[np.int64]]:
        """All of it as the constructor takes it."""
        states = list(self._fresh.values())
        lengths = [len(state.keys) for state in states]
        counts = np.concatenate([self._counts, *(state.counts for state in states)])
        if counts.size and counts.max() < 1 << 32:
            counts = counts.astype(np.uint32)
        return (
            np.concatenate([self._steps, np.array(list(self._fresh), np.int64)]),
            np.concatenate([self._ends, len(self._keys) + np.cumsum(np.array(lengths, np.int64))]),
            np.concatenate([self._keys, *(state.keys.astype(np.uint16) for state in states)]),
            counts,
            np.concatenate([self._nan, np.array([state.nan for state in states], np.int64)]),
        )

    def pack(self) -> None:
        """Pack what was added since."""
        if self._fresh:
            self._steps, self._ends, self._keys, self._counts, self._nan = self.arrays()
            self._fresh = {}

    def head(self, size: int) -> Stack:
        """The first ``size`` of them."""
        if size >= len(self._steps):
            return self
        bins = int(self._ends[size - 1]) if size else 0
        return Stack(self._steps[:size], self._ends[:size], self._keys[:bins], self._counts[:bins], self._nan[:size])
