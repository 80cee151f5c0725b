"""Stages of a recipe: sums of the finest parts of a step, pooled, divided and put together as the trainer does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, known, per_sequence_counts, real_rows
from rl_doctor.analyzer.dialects.recipes import CELL, UNDIVIDED, Fold, How
from rl_doctor.analyzer.recompute.registry import TOLERANCE, Entries
from rl_doctor.analyzer.recompute.stages import Shares, Terms, average, certain
from rl_doctor.analyzer.states import Keyed, Sum, Sums
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

_ODD: Final = 0x9E3779B97F4A7C15 - (1 << 64)
"""Spreads the numbers of sequences over 64 bits, away from hashes of names."""
Pair = tuple[float, float]
"""A value, and what rounding can change in it."""


def shares_of(batch: Batch, sums: tuple[Floats, Floats, Floats | None], fold: Fold) -> Shares:
    """What each sequence adds to its part.

    Args:
        batch: the sequences.
        sums: values summed per sequence, the size of their summands, and what may flip at a threshold, each ``[n_sequences]``.
        fold: the stages.
    """
    counts = per_sequence_counts(batch)
    value, size, slack = sums
    scale = row_scale(batch, fold)
    weights: NDArray[np.int64] = counts if fold.row == "tokens" else (counts > 0) * 1
    if fold.empty:
        weights = np.maximum(weights, real_rows(batch) * 1)
    if fold.divisor:
        if fold.divisor != UNDIVIDED:
            scale = scale / _column(batch, fold.divisor)
        weights = np.zeros_like(counts)
    return Shares(value * scale, size * scale, weights, None if slack is None else slack * scale)


def row_scale(batch: Batch, fold: Fold) -> Floats:
    """What the sum of a row's values is multiplied by for what the row adds, ``[n_sequences]``."""
    if fold.row != "mean":
        return np.ones(batch.n_sequences)
    return 1.0 / np.maximum(per_sequence_counts(batch), 1)


def _column(batch: Batch, name: str) -> Floats:
    column = batch.columns[name]
    return np.where(known(column), column.astype(np.float64), np.nan)


@frozen(eq=False)
class Pieces:
    """Rows that are parts of something longer.

    Attributes:
        keys: int64 ``[n]``, the same for the parts of one.
        sums: float64 ``[3, n]``, of each row the sum of its values, the size of its summands, and what may flip.
        tokens: int64 ``[n]``.
    """

    keys: NDArray[np.int64]
    sums: Floats
    tokens: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.keys)

    def __add__(self, other: Pieces, /) -> Pieces:
        keys, tokens = (np.concatenate(both) for both in ((self.keys, other.keys), (self.tokens, other.tokens)))
        return Pieces(keys, np.concatenate([self.sums, other.sums], axis=1), tokens)

    @classmethod
    def of(cls, batch: Batch, sums: tuple[Floats, Floats, Floats | None], column: str) -> Pieces:
        """The rows of a batch that are no padding; one without a value in ``column`` is a part of nothing but itself."""
        names = batch.columns[column]
        keys = np.fromiter(map(hash, names.tolist()), np.int64, len(names))
        alone = ~known(names)
        keys[alone] = batch.columns["sequence"][alone] * _ODD
        slack = np.zeros(batch.n_sequences) if sums[2] is None else sums[2]
        real = real_rows(batch)
        return cls(keys[real], np.stack([*sums[:2], slack])[:, real], per_sequence_counts(batch)[real])

    def mean(self) -> Entries:
        """One entry: the mean over those that the rows are parts of, of the mean over all their tokens; 0 without a token."""
        if not self.count:
            return Entries()
        order = np.lexsort((self.sums[0], self.keys))
        keys = self.keys[order]
        starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        tokens = np.maximum(np.add.reduceat(self.tokens[order], starts), 1)
        value, size, slack = (Sum.of(np.add.reduceat(part[order], starts) / tokens).mean for part in self.sums)
        return certain(value, TOLERANCE * size + slack)


def total(values: Iterable[float]) -> float:
    """The sum, correctly rounded; NaN where infinities of both signs are among them."""
    return Sum.of(np.array(list(values), np.float64)).value


NO_PIECES: Final = Pieces(np.zeros(0, np.int64), np.zeros((3, 0)), np.zeros(0, np.int64))


def folded(fold: Fold, columns: tuple[str, ...] = CELL) -> Callable[[Terms], Callable[[Keyed], Entries]]:
    """Which averages to add up -> how the sums of parts, keyed by ``columns``, become the entries of a step."""

    def staged(terms: Terms = ()) -> Callable[[Keyed], Entries]:
        def entries(state: Keyed) -> Entries:
            kept = [columns.index(column) for column in fold.apart]
            parts: dict[tuple[int, ...], Sums] = {}
            for key, sums in state.groups.items():
                place = tuple(key[at] for at in kept)
                parts[place] = parts[place] + sums if place in parts else sums
            if fold.filled:
                parts = {key: sums for key, sums in parts.items() if sums[0].count or sums[0].total}
            found = {key: average(sums, terms) for key, sums in parts.items()}
            return staged_values(found, fold)

        return entries

    return staged


def staged_values(found: dict[tuple[int, ...], Pair], fold: Fold) -> Entries:
    """The values of the parts that ``fold.apart`` tells apart, put through the stages."""
    columns = fold.apart
    for stage in fold.stages:
        columns, found = _stage(columns, found, stage.columns, stage.how)
    return sum((certain(*found[key]) for key in sorted(found)), Entries())


def _stage(
    columns: tuple[str, ...], found: dict[tuple[int, ...], Pair], over: tuple[str, ...], how: How
) -> tuple[tuple[str, ...], dict[tuple[int, ...], Pair]]:
    kept = [at for at, column in enumerate(columns) if column not in over]
    groups: dict[tuple[int, ...], list[Pair]] = {}
    for key in sorted(found):
        groups.setdefault(tuple(key[at] for at in kept), []).append(found[key])
    return tuple(columns[at] for at in kept), {key: _one(pairs, how) for key, pairs in groups.items()}


def _one(pairs: Sequence[Pair], how: How) -> Pair:
    values, slack = zip(*pairs, strict=True)
    if how in {"first", "last"}:
        return pairs[0 if how == "first" else -1]
    if how in {"max", "min"}:
        chosen = math.nan if any(map(math.isnan, values)) else (max if how == "max" else min)(values)
        return chosen, max(slack)
    summed, rounding = total(values), total(slack)
    return (summed, rounding) if how == "sum" else (summed / len(pairs), rounding / len(pairs))
