"""Extremes over sequences, per micro-batch: as they are, and with the slack at a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.recompute.registry import TOLERANCE, UNKNOWN, Entries, entry
from rl_doctor.analyzer.recompute.stages import MICROBATCH, keyed_rows
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch


@frozen
class Range:
    """Extremes over the sequences of a micro-batch, as they are and with the slack at a threshold; NaN is left out."""

    low: float = math.inf
    high: float = -math.inf
    lowest: float = math.inf
    highest: float = -math.inf
    rows: int = 0

    @classmethod
    def of(cls, values: Floats, slack: Floats) -> Range:
        """The range of ``values`` ``[n]``, each uncertain by ``slack`` ``[n]``; a zero has no sign, as in ``Extremes``."""
        kept = ~np.isnan(values)
        if not kept.any():
            return cls(rows=len(values))
        value, wide = values[kept], slack[kept]
        ends = (value.min(), value.max(), (value - wide).min(), (value + wide).max())
        low, high, lowest, highest = (float(end) + 0.0 for end in ends)
        return cls(low, high, lowest, highest, len(values))

    def __add__(self, other: Range, /) -> Range:
        return Range(
            min(self.low, other.low),
            max(self.high, other.high),
            min(self.lowest, other.lowest),
            max(self.highest, other.highest),
            self.rows + other.rows,
        )


@frozen
class Ranges:
    """One ``Range`` per micro-batch."""

    groups: Mapping[tuple[int, ...], Range]

    @property
    def count(self) -> int:
        """Number of sequences."""
        return sum(item.rows for item in self.groups.values())

    def __add__(self, other: Ranges, /) -> Ranges:
        merged = dict(self.groups)
        for key, item in other.groups.items():
            merged[key] = merged[key] + item if key in merged else item
        return Ranges(dict(sorted(merged.items())))


def ranges_by(
    values: Callable[[Batch], tuple[Floats, Floats]], *, needs: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Reduction:
    """A token reduction: the range over sequences, per micro-batch, of (value, slack), each ``[n_sequences]``."""

    def partial(batch: Batch) -> Ranges:
        value, slack = values(batch)
        return Ranges({key: Range.of(value[rows], slack[rows]) for key, rows in keyed_rows(batch, MICROBATCH)})

    return Reduction(partial, Ranges({}), ("microbatch", *needs), (*MICROBATCH, *optional), "token")


def smallest(expected_rows: int | None) -> Callable[[Ranges], Entries]:
    """One entry per micro-batch: the smallest value of a sequence."""
    return _extreme(expected_rows, lambda item: (item.low, item.low - item.lowest))


def largest(expected_rows: int | None) -> Callable[[Ranges], Entries]:
    """One entry per micro-batch: the largest value of a sequence."""
    return _extreme(expected_rows, lambda item: (item.high, item.highest - item.high))


def _extreme(expected_rows: int | None, pick: Callable[[Range], tuple[float, float]]) -> Callable[[Ranges], Entries]:
    def entries(state: Ranges) -> Entries:
        if expected_rows is not None and any(item.rows != expected_rows for item in state.groups.values()):
            return UNKNOWN
        total = Entries()
        for item in state.groups.values():
            value, slack = pick(item)
            total += entry(value, slack + TOLERANCE * abs(value)) if math.isfinite(value) else Entries()
        return total

    return entries
