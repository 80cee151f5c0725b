"""Sums of the finest parts of several steps at once, and what becomes of them in other stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.dialects.recipes import CELL
from rl_doctor.analyzer.recompute.registry import TOLERANCE
from rl_doctor.analyzer.recompute.stages import MINIBATCH, Share, keyed_rows
from rl_doctor.analyzer.recompute.variations.measures import Own, Stages, Varied
from rl_doctor.analyzer.states import Keyed, Sums
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

RANK: Final = "rank "
"""What ``Varied.only`` starts with for one rank alone."""
_NAMES: Final = ("step", *CELL)


@frozen(eq=False)
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


@frozen(eq=False)
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
        return KEPT[only](self.keys) if only in KEPT else np.ones(len(self.keys), np.bool_)

    def grouping(self, columns: tuple[str, ...], only: str = "") -> _Grouping:
        """The parts by step and ``columns``."""
        key = (columns, only)
        if key not in self.groups:
            self.groups[key] = _Grouping.of(self.keys[self.kept(only)], columns)
        return self.groups[key]

    def per_step(self, item: Varied) -> PerStep:
        """The entries of a hypothesis."""
        sums = [self.sums[share] for share in item.shares]
        if item.only.startswith(RANK):
            source = self._of_rank(int(item.only.removeprefix(RANK)))
            sums = [np.where(source < 0, np.nan, part[:, source]) for part in sums]
        kept = self.kept(item.only)
        sums = [part[:, kept] for part in sums]
        if isinstance(item.stages, Own):
            return self._own(item.stages, sums, item.only)
        return self._staged(item.stages, sums, item.only)

    def _of_rank(self, rank: int) -> Ints:
        """For each part the same one of ``rank``, its index or -1, ``[k]``."""
        place = {tuple(key): at for at, key in enumerate(self.keys.tolist())}
        return np.array([place.get((step, rank, *rest), -1) for step, _, *rest in self.keys.tolist()], np.int64)

    def _staged(self, stages: Stages, sums: Sequence[Floats], only: str) -> PerStep:
        group = self.grouping(stages.apart, only)
        value = tolerance = np.zeros(len(group.keys))
        for part in sums:
            top, size, slack, bottom = group.summed(part)
            over = np.maximum(bottom, 1.0)
            value, tolerance = value + top / over, tolerance + (TOLERANCE * size + slack) / over
        columns, keys = stages.apart, group.keys
        for stage in stages.steps:
            columns = tuple(name for name in columns if name not in stage.columns)
            inner = _Grouping.of(keys, columns)
            value, tolerance = inner.summed(np.stack([value, tolerance])) / (inner.counts if stage.how == "mean" else 1.0)
            keys = inner.keys
        last = _Grouping.of(keys, ())
        total, slack = last.summed(np.stack([value, tolerance]))
        return PerStep(last.keys[:, 0], total, last.counts.astype(np.float64), slack)

    def _own(self, own: Own, sums: Sequence[Floats], only: str) -> PerStep:
        group = self.grouping(tuple(name for name in own.columns if name in CELL), only)
        rows = group.summed(self.rows[np.newaxis, self.kept(only)])[0].tolist()
        parts = np.concatenate([group.summed(part) for part in sums]).T.tolist()
        places = [_NAMES.index(name) if name in _NAMES else None for name in own.columns]
        states: dict[int, dict[tuple[int, ...], Sums]] = {}
        for key, values, number in zip(group.keys.tolist(), parts, rows, strict=True):
            made: list[Any] = []
            for at in range(0, len(values), 4):
                top, size, slack, bottom = values[at : at + 4]
                made += [_Plain(top, int(bottom)), _Plain(size, 0), _Plain(slack, 0)]
            made.append(_Plain(0.0, int(number)))
            place = tuple(0 if at is None else key[at] for at in places)
            states.setdefault(key[0], {})[place] = Sums(tuple(made))
        found = [own.entries(Keyed(groups)) for groups in states.values()]
        number = np.array([float(entries.number) if own.how == "mean" else 1.0 for entries in found])
        total = np.array([entries.total for entries in found])
        return PerStep(np.array(list(states), np.int64), total, number, np.array([entries.tolerance for entries in found]))

    def numbers(self, columns: tuple[str, ...], steps: Ints) -> Floats:
        """How many combinations of ``columns`` each of ``steps`` ``[n]`` has; NaN where it has no part."""
        inner = _Grouping.of(self.grouping(columns).keys, ())
        found = np.full(len(steps), np.nan)
        at = np.searchsorted(inner.keys[:, 0], steps)
        hit = at < len(inner.keys)
        hit[hit] = inner.keys[at[hit], 0] == steps[hit]
        found[hit] = inner.counts[at[hit]]
        return found


@frozen
class _Plain:
    """A rounded sum that stands for a ``Sum``."""

    total: float
    count: int

    @property
    def value(self) -> float:
        """The sum."""
        return self.total

    @property
    def mean(self) -> float:
        """The sum over the count."""
        return self.total / self.count if self.count else math.nan

    def __add__(self, other: _Plain, /) -> _Plain:
        return _Plain(self.total + other.total, self.count + other.count)


@frozen(eq=False)
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


def ranks_of(cells: Cells, most: int) -> Iterator[int]:
    """The ranks, where there are several: all, or the first and the last where there are more than ``most``."""
    ranks = np.unique(cells.keys[:, 1])
    if len(ranks) > 1:
        yield from ranks.tolist() if len(ranks) <= most else ranks[[0, -1]].tolist()


def _end(columns: tuple[str, ...], within: tuple[str, ...], *, last: bool) -> Callable[[Ints], Flags]:
    """Parts at the first or last of ``columns`` among those that share ``within``."""
    inner, outer = [_NAMES.index(name) for name in columns], [0, *(_NAMES.index(name) for name in within)]

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
