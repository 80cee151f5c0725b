"""Where the tokens stand that a pass goes over: stretches of the stored columns, so that nothing is copied to leave some out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from rl_doctor.store.rows import splits_of

Floats = NDArray[np.float64]
Single = NDArray[Any]
Counts = NDArray[np.int64]
Bools = NDArray[np.bool_]

BLOCK: Final = 1 << 15
"""Tokens taken at once, more where one row has more: a handful of float64 arrays of it fit into two megabytes of cache."""


@dataclass(frozen=True, eq=False)
class Stretches:
    """Tokens of rows in columns that may hold other tokens between them.

    Attributes:
        edges: int64 ``[rows + 1]``, splits of the tokens by row, counted without those between them; no row is empty.
        starts: int64 ``[k]``, where neighbouring tokens begin in the columns, increasing. A stretch may go on over rows.
        stops: int64 ``[k]``, where they end.
    """

    edges: Counts
    starts: Counts
    stops: Counts

    @classmethod
    def whole(cls, edges: Counts) -> Self:
        """All tokens of columns ``[edges[-1]]`` that hold nothing else."""
        return cls(edges, edges[:1], edges[-1:])

    @cached_property
    def pieces(self) -> tuple[Counts, Counts, Counts]:
        """The stretches cut where a row ends, in order: row, start and stop of each, int64 ``[pieces]``."""
        before = splits_of(self.stops - self.starts)
        bounds = np.unique(np.concatenate([before, self.edges]), return_index=True)[0]  # without, numpy.ma is imported
        stretch = np.searchsorted(before, bounds[:-1], side="right") - 1
        starts = self.starts[stretch] + bounds[:-1] - before[stretch]
        return np.searchsorted(self.edges, bounds[:-1], side="right") - 1, starts, starts + np.diff(bounds)

    @cached_property
    def _first(self) -> Counts:
        """Each row's first piece, int64 ``[rows]``."""
        return np.searchsorted(self.pieces[0], np.arange(len(self.edges) - 1))

    @property
    def begins(self) -> Counts:
        """Where each row's first token stands, int64 ``[rows]``."""
        return self.pieces[1][self._first]

    def of(self, chosen: Bools) -> Self:
        """The tokens of the rows that ``chosen`` ``[rows]`` holds for."""
        rows, starts, stops = self.pieces
        kept = chosen[rows]
        return type(self)(splits_of(np.diff(self.edges)[chosen]), starts[kept], stops[kept])

    def ends(self, column: Single) -> tuple[Single, Single]:
        """Smallest and largest value of each row, both ``[rows]``; NaN where one is NaN."""
        _, starts, stops = self.pieces
        if not starts.size:
            return column[:0], column[:0]
        around = np.stack([starts, stops], axis=1).reshape(-1)
        around = around[:-1] if around[-1] == len(column) else around
        low, high = (end.reduceat(column, around)[::2] for end in (np.minimum, np.maximum))
        return np.minimum.reduceat(low, self._first), np.maximum.reduceat(high, self._first)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The rows in order, cut into blocks."""
        return tuple(self._cut())

    def _cut(self) -> Iterator[Block]:
        edges, starts, stops = self.edges.tolist(), self.starts.tolist(), self.stops.tolist()
        first, stretch, begin = 0, 0, starts[0] if starts else 0
        while first < len(edges) - 1:
            last = max(first + 1, bisect_right(edges, edges[first] + BLOCK) - 1)
            left = edges[last] - edges[first]
            pieces: list[slice] = []
            while left:
                end = min(begin + left, stops[stretch])
                pieces.append(slice(begin, end))
                left -= end - begin
                if end == stops[stretch] and stretch + 1 < len(starts):
                    stretch, end = stretch + 1, starts[stretch + 1]
                begin = end
            yield Block(slice(first, last), pieces, self.edges[first : last + 1] - edges[first], edges[first])
            first = last


class Block:
    """Neighbouring rows, and their tokens: ``bounds`` splits them by row, ``first`` of the pass come before them."""

    def __init__(self, rows: slice, pieces: list[slice], bounds: Counts, first: int) -> None:
        self.rows = rows
        self.bounds = bounds
        self.starts = bounds[:-1]
        self.lengths = np.diff(bounds)
        self.tokens = slice(first, first + int(bounds[-1]))
        self._pieces = pieces

    def wide(self, column: Single, dtype: type[np.generic] = np.float64) -> NDArray[Any]:
        """A copy of the block's part of a column, by default in float64."""
        if len(self._pieces) == 1:
            return column[self._pieces[0]].astype(dtype)
        return np.concatenate([column[piece] for piece in self._pieces], dtype=dtype)

    def sums(self, values: Floats) -> Floats:
        """Sum per row."""
        found: Floats = np.add.reduceat(values, self.starts)
        return found

    def number(self, flags: Bools) -> Counts:
        """Number of true flags per row."""
        count = int(np.count_nonzero(flags))
        if count == 0:
            return np.zeros(len(self.starts), np.int64)
        if count == flags.size:
            return self.lengths
        return self.number_at(np.flatnonzero(flags))

    def number_at(self, at: NDArray[np.intp]) -> Counts:
        """Number of the block's tokens ``at``, increasing, per row."""
        return np.diff(np.searchsorted(at, self.bounds))

    def of_rows(self, values: Floats, rows: Bools) -> tuple[Floats, Counts]:
        """Values ``[n]`` at the tokens of the ``rows`` alone, and where each of those rows begins in them."""
        if rows.all():
            return values, self.starts
        return values[np.repeat(rows, self.lengths)], splits_of(self.lengths[rows])[:-1]
