"""What came of each group in each generation batch: read once per run, from its sequence columns alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.grouping import groups
from rl_doctor.analyzer.rollouts import KEYS, Rollouts
from rl_doctor.store.batch import Batch
from rl_doctor.store.run import Run
from rl_doctor.views.kept import kept
from rl_doctor.views.opened import Opened

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Kind = Literal["binary", "bounded", "graded"]

VALUES: Final = ("reward", "score")
BOUNDED: Final = 0.05
"""Share of the responses at the largest reward from which on that is taken for a right answer."""
_FEW: Final = 2
"""Different rewards that a verifier gives that says only right or wrong."""
_PATHS: Final = 16
"""Runs of which is kept what was read, so that only what was written since is read again."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """The groups of a run, each once for each generation batch that it is in, by step.

    Attributes:
        column: "reward" or "score": what the responses are told by.
        kind: "binary" where that has two values: the larger is right. "bounded" where a good part of the responses have the
            largest of more values: that is right. "graded" where no value says right.
        best: the largest value.
        worst: the smallest.
        names: the groups, in the order of their first step.
        group: int64 ``[n]``, index into ``names``.
        step: int64 ``[n]``, the first step that trained on the generation batch; in increasing order.
        size: int64 ``[n]``, number of responses with a known value.
        rate: float64 ``[n]``, share of these that are right where the kind is "binary", else the mean of the values.
        equal: bool ``[n]``, whether all of them have one value.
        right: bool ``[n]``, whether all of them are right.
    """

    column: str
    kind: Kind
    best: float
    worst: float
    names: tuple[str, ...]
    group: Counts
    step: Counts
    size: Counts
    rate: Floats
    equal: NDArray[np.bool_]
    right: NDArray[np.bool_]

    @property
    def steps(self) -> Counts:
        """The steps, int64 ``[k]``, increasing."""
        steps: Counts = self.step[np.flatnonzero(np.diff(self.step, prepend=self.step[0] - 1))]
        return steps

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest rate that there can be."""
        return (0.0, 1.0) if self.kind == "binary" else (self.worst, self.best)


def lacking(run: Run) -> tuple[str, ...]:
    """The columns without which nothing is known of groups, of those that the run does not have."""
    lacks = () if "group" in run.columns else ("group",)
    return lacks if any(name in run.columns for name in VALUES) else (*lacks, "reward")


@kept
def outcomes(opened: Opened) -> Outcomes | None:
    """The groups of a run; None where they, or their rewards, were not recorded.

    The reward is what they are told by, unless the score has two values only and the reward has more.

    Raises:
        InputError: a value cannot be read.
    """
    if lacking(opened.run):
        return None
    reader = _read(opened.run)
    found = {name: rows for name, rows in reader.read.items() if rows.sizes}
    if not found:
        return None
    name = next((name for name, rows in found.items() if len(rows.different) <= _FEW), next(iter(found)))
    return found[name].outcomes(name)


def _read(run: Run) -> _Reader:
    """The whole run, read to its end; of one that has grown what was read before is not read again."""
    names = tuple(name for name in VALUES if name in run.columns)
    steps, last = run.digests, max(run.digests, default=None)
    with _LOCK:
        before = _BEFORE.get(run.path)
    same = before is not None and before.names == names and before.steps == _until(steps, before.step)
    reader = before.reader.fork() if before is not None and same else _Reader(run, names)
    rest = run.only([step for step in steps if step >= before.step]) if before is not None and same else run
    kept_to = _extend(reader, rest, names, last)
    if last is not None:
        with _LOCK:
            _BEFORE[run.path] = _Before(kept_to, last, names, _until(steps, last))
            _BEFORE.move_to_end(run.path)
            while len(_BEFORE) > _PATHS:
                _BEFORE.popitem(last=False)
    reader.end()
    return reader


def _until(steps: Mapping[int, bytes], step: int) -> dict[int, bytes]:
    """What the steps before a step are made of."""
    return {one: digest for one, digest in steps.items() if one < step}


def _extend(reader: _Reader, run: Run, names: Sequence[str], last: int | None) -> _Reader:
    """Read a run on; what was read before its ``last`` step, to which rows may still come."""
    before = None
    for batch in run.batches(KEYS | {"group", *names}):
        if batch.step == last and before is None:
            before = reader.fork()
        reader.add(batch)
    return before or reader.fork()


class _Reader:
    """Reads batches in the order of steps: each response of a generation batch once."""

    def __init__(self, run: Run, names: Sequence[str]) -> None:
        self.read = {name: _Read() for name in names}
        self.rows = 0
        self.rollouts = Rollouts(run.info, {"group", *names}, ())
        self._step: int | None = None

    def fork(self) -> _Reader:
        """A reader that goes on from here and leaves this one as it is."""
        other = copy(self)
        other.read = {name: one.fork() for name, one in self.read.items()}
        other.rollouts = deepcopy(self.rollouts)
        return other

    def add(self, batch: Batch) -> None:
        """Take the rows of one batch."""
        if self._step is not None and batch.step != self._step:
            self._take(self.rollouts.finished(self._step))
        self._step = batch.step
        self.rows += batch.n_sequences
        self.rollouts.add(batch)

    def end(self) -> None:
        """Take the generation batches that are still open."""
        self._take(self.rollouts.rest())

    def _take(self, generations: Iterable[Batch]) -> None:
        for batch in generations:
            for name, rows in self.read.items():
                rows.add(batch, name)


@dataclass(frozen=True, slots=True, eq=False)
class _Before:
    """What was read of a run before: up to ``step``, without it; ``steps`` tells what these are made of."""

    reader: _Reader
    step: int
    names: tuple[str, ...]
    steps: Mapping[int, bytes]


_BEFORE: Final[OrderedDict[Path, _Before]] = OrderedDict()
_LOCK: Final = Lock()


class _Read:
    """What is read of one column."""

    def __init__(self) -> None:
        self.different: set[float] = set()
        self.sizes: list[Counts] = []
        self.names: dict[str, int] = {}
        self.steps: list[Counts] = []
        self.groups: list[Counts] = []
        self.numbers: list[Floats] = []

    def fork(self) -> _Read:
        """A copy that can be added to."""
        other = copy(self)
        other.different, other.names = set(self.different), dict(self.names)
        other.sizes, other.steps = list(self.sizes), list(self.steps)
        other.groups, other.numbers = list(self.groups), list(self.numbers)
        return other

    def add(self, batch: Batch, column: str) -> None:
        """Take one generation batch."""
        found = groups(batch, column)
        if not found.sizes.size:
            return
        if len(self.different) <= _FEW:
            self.different |= set(np.unique(found.values, return_index=True)[0][: _FEW + 1].tolist())
        low, high = found.low, found.high
        means = np.clip(np.add.reduceat(found.values, found.splits[:-1]) / found.sizes, low, high)
        at_high = np.add.reduceat(found.values == found.spread(high), found.splits[:-1], dtype=np.int64)
        names = batch.columns["group"][found.rows[found.splits[:-1]]].tolist()
        self.groups.append(np.array([self.names.setdefault(str(name), len(self.names)) for name in names], np.int64))
        self.steps.append(np.full(len(names), batch.step, np.int64))
        self.sizes.append(found.sizes)
        self.numbers.append(np.stack([low, high, means, at_high]))

    def outcomes(self, column: str) -> Outcomes:
        """Everything together."""
        step, group, size = (np.concatenate(each) for each in (self.steps, self.groups, self.sizes))
        low, high, means, at_high = np.concatenate(self.numbers, axis=1)
        best, worst = float(high.max()), float(low.min())
        right = np.where(high == best, at_high, 0.0)
        kind: Kind = "graded"
        if len(self.different) <= _FEW:
            kind = "binary"
            right = right if best > worst or best > 0 else np.zeros_like(right)
        elif right.sum() >= BOUNDED * size.sum():
            kind = "bounded"
        all_right = (right == size) & (kind != "graded")
        order = np.argsort(step, kind="stable")
        rate = right / size if kind == "binary" else means
        return Outcomes(
            column, kind, best, worst, tuple(self.names), group[order], step[order], size[order], rate[order],
            (low == high)[order], all_right[order],
        )  # fmt: skip
