"""Sums of the finest parts of several steps at once, and what becomes of them in other stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.dialects.recipes import CELL
from rl_doctor.analyzer.recompute.measures import Varied
from rl_doctor.analyzer.recompute.registry import TOLERANCE
from rl_doctor.analyzer.recompute.stages import MINIBATCH, Share, keyed_rows
from rl_doctor.store.batch import Batch

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class PerStep:
    """Entries of a key at each of ``steps`` ``[n]``: their sum, their number, and what rounding can change in the sum."""

    steps: Ints
    total: Floats
    number: Floats
    tolerance: Floats


class Gathered:
    """Collects what sequences add, per part of a step, from the batches of some steps."""

    def __init__(self) -> None:
        self._keys: list[Ints] = []
        self._rows: list[Floats] = []
        self._sums: dict[Share, list[Floats]] = {}

    def add(self, batch: Batch, shares: Sequence[Share]) -> None:
        """Take one batch: the sums of each of ``shares`` over the sequences of each part."""
        if not batch.n_sequences:
            return
        keyed = keyed_rows(batch, CELL)
        order = np.concatenate([rows for _, rows in keyed])
        starts = np.cumsum([0, *(len(rows) for _, rows in keyed[:-1])])
        self._keys.append(np.array([(batch.step, *key) for key, _ in keyed], np.int64))
        for share in shares:
            found = share(batch)
            slack = np.zeros(batch.n_sequences) if found.slack is None else found.slack
            rows = np.stack([found.numerators, found.magnitudes, slack, found.weights.astype(np.float64)])
            self._sums.setdefault(share, []).append(np.add.reduceat(rows[:, order], starts, axis=1))
        self._rows.append(np.array([[len(rows)] for _, rows in keyed], np.float64).T)

    def finish(self) -> Cells:
        """The parts, each once, in order."""
        width = 1 + len(CELL)
        keys = np.concatenate([np.empty((0, width), np.int64), *self._keys])
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        new = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1))) if len(keys) else np.empty(0, np.int64)
        if not len(new):
            return Cells(keys, np.empty(0), {})

        def merged(parts: Sequence[Floats]) -> Floats:
            return np.asarray(np.add.reduceat(np.concatenate(parts, axis=1)[:, order], new, axis=1))

        return Cells(keys[new], merged(self._rows)[0], {share: merged(parts) for share, parts in self._sums.items()})


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The parts of some steps.

    Attributes:
        keys: int64 ``[k, 6]``, in order: step and the columns of ``CELL``.
        rows: float64 ``[k]``, sequences of each.
        sums: for each share float64 ``[4, k]``: numerators, magnitudes, slack, denominators.
        groups: groupings that were made already.
    """

    keys: Ints
    rows: Floats
    sums: Mapping[Share, Floats]
    groups: dict[tuple[tuple[str, ...], str], _Grouping] = field(default_factory=dict, repr=False)

    def kept(self, only: str) -> Flags:
        """Which parts ``only`` stands for, bool ``[k]``."""
        if only == FIRST_RANK:
            return np.asarray(self.keys[:, 1] == self.keys[:, 1].min(initial=0), np.bool_)
        if only.startswith(_RANK):
            return np.asarray(self.keys[:, 1] == int(only.removeprefix(_RANK)), np.bool_)
        return KEPT[only](self.keys) if only else np.ones(len(self.keys), np.bool_)

    def grouping(self, columns: tuple[str, ...], only: str = "") -> _Grouping:
        """The parts by step and ``columns``."""
        key = (columns, only)
        if key not in self.groups:
            self.groups[key] = _Grouping.of(self.keys[self.kept(only)], columns)
        return self.groups[key]

    def per_step(self, item: Varied) -> PerStep:
        """The entries of a hypothesis."""
        stages, kept = item.stages, self.kept(item.stages.only)
        group = self.grouping(stages.apart, stages.only)
        value = tolerance = weight = np.zeros(len(group.keys))
        for share, factor in item.terms:
            top, size, slack, bottom = group.summed(self.sums[share][:, kept])
            over = np.maximum(bottom, 1.0) if stages.divided else 1.0
            value = value + factor * top / over
            tolerance = tolerance + abs(factor) * (TOLERANCE * size + slack) / over
            weight = weight if weight.any() else bottom
        columns = stages.apart
        keys = group.keys
        if stages.by_rows:
            scale = self._row_share(group, kept)
            value, tolerance = value * scale, tolerance * scale
        for step in stages.steps:
            columns = tuple(name for name in columns if name not in step.columns)
            inner = _Grouping.of(keys, columns)
            value, tolerance, weight = _merged(inner, step.how, value, tolerance, weight)
            keys = inner.keys
        last = _Grouping.of(keys, ())
        total, slack = last.summed(np.stack([value, tolerance]))
        steps = last.keys[:, 0]
        scale = self._ranks(steps) if stages.by_ranks else 1.0
        return PerStep(steps, total * scale, last.counts.astype(np.float64), slack * scale)

    def _row_share(self, group: _Grouping, kept: Flags) -> Floats:
        rows = group.summed(self.rows[np.newaxis, kept])[0]
        whole = _Grouping.of(group.keys, ("rank", *MINIBATCH))
        share = np.empty(len(rows))
        share[whole.order] = rows[whole.order] / np.repeat(whole.summed(rows[np.newaxis])[0], whole.counts)
        return share

    def _ranks(self, steps: Ints) -> Floats:
        return self.numbers(("rank",), steps)

    def numbers(self, columns: tuple[str, ...], steps: Ints) -> Floats:
        """How many combinations of ``columns`` each of ``steps`` ``[n]`` has; NaN where it has no part."""
        inner = _Grouping.of(self.grouping(columns).keys, ())
        found = np.full(len(steps), np.nan)
        at = np.searchsorted(inner.keys[:, 0], steps)
        hit = at < len(inner.keys)
        hit[hit] = inner.keys[at[hit], 0] == steps[hit]
        found[hit] = inner.counts[at[hit]]
        return found


def _merged(group: _Grouping, how: str, value: Floats, tolerance: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    scale = weight if how == "weighted" else np.ones(len(value))
    top, slack, bottom = group.summed(np.stack([value * scale, tolerance * scale, scale]))
    over = 1.0 if how == "sum" else np.maximum(bottom, 1e-300)
    return top / over, slack / over, group.summed(weight[np.newaxis])[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Grouping:
    """Rows of keys by some of their columns.

    Attributes:
        keys: int64 ``[g, 6]`` in order, 0 in the columns that do not tell apart.
        order: int64 ``[k]``, the rows sorted by group.
        starts: int64 ``[g]``, where each group starts in ``order``.
        counts: int64 ``[g]``, rows of each.
    """

    keys: Ints
    order: Ints
    starts: Ints
    counts: Ints

    @classmethod
    def of(cls, keys: Ints, columns: tuple[str, ...]) -> _Grouping:
        """Group int64 keys ``[k, 6]``."""
        masked = keys * np.array([1, *(name in columns for name in CELL)], np.int64)
        order = np.lexsort(masked.T[::-1])
        ordered = masked[order]
        if not len(ordered):
            none = np.empty(0, np.int64)
            return cls(ordered, none, none, none)
        starts = np.flatnonzero(np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1)))
        return cls(ordered[starts], order, starts, np.diff(np.append(starts, len(ordered))))

    def summed(self, values: Floats) -> Floats:
        """Values ``[m, k]`` summed by group, ``[m, g]``."""
        if not len(self.starts):
            return np.zeros((len(values), 0))
        return np.asarray(np.add.reduceat(values[:, self.order], self.starts, axis=1))


FIRST_RANK: Final = "first rank"
_RANK: Final = "rank "


def ranks_of(cells: Cells, most: int) -> Iterator[str]:
    """Names for ``Stages.only`` of each rank alone: of all, or of the first and the last where there are more than ``most``."""
    ranks = np.unique(cells.keys[:, 1])
    if len(ranks) > 1:
        for rank in ranks.tolist() if len(ranks) <= most else ranks[[0, -1]].tolist():
            yield f"{_RANK}{rank}"


def _end(columns: tuple[str, ...], within: tuple[str, ...], *, last: bool) -> Callable[[Ints], Flags]:
    """Parts at the first or last of ``columns`` among those that share ``within``."""
    names = ("step", *CELL)
    inner, outer = [names.index(name) for name in columns], [0, *(names.index(name) for name in within)]

    def kept(keys: Ints) -> Flags:
        order = np.lexsort([*(keys[:, at] for at in reversed(inner)), *(keys[:, at] for at in reversed(outer))])
        ordered = keys[order]
        if not len(ordered):
            return np.empty(0, np.bool_)
        starts = np.flatnonzero(np.append(True, (np.diff(ordered[:, outer], axis=0) != 0).any(axis=1)))
        ends = np.append(starts[1:], len(ordered)) - 1
        which = ends if last else starts
        chosen = np.repeat(ordered[which][:, inner], np.diff(np.append(starts, len(ordered))), axis=0)
        flags = np.empty(len(keys), np.bool_)
        flags[order] = (ordered[:, inner] == chosen).all(axis=1)
        return flags

    return kept


KEPT: Final[Mapping[str, Callable[[Ints], Flags]]] = {
    "first micro-batch": _end(("microbatch",), ("rank", *MINIBATCH), last=False),
    "last micro-batch": _end(("microbatch",), ("rank", *MINIBATCH), last=True),
    "first mini-batch": _end(("epoch", "minibatch"), ("rollout_step",), last=False),
    "last mini-batch": _end(("epoch", "minibatch"), ("rollout_step",), last=True),
    "first epoch": _end(("epoch",), ("rollout_step",), last=False),
    "last epoch": _end(("epoch",), ("rollout_step",), last=True),
}
"""What of a step a number may be taken from alone."""
