"""Sequence rows of each generation batch, gathered over the steps that train on it: each uid once, never by position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import known
from rl_doctor.analyzer.registry import SequenceValue
from rl_doctor.frozen import frozen
from rl_doctor.schema import MISSING_INT, RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

KEYS: Final = frozenset({"rollout_step", "uid", "epoch", "minibatch", "sequence", "is_padding"})
"""Sequence columns that tell the rows of a generation batch apart."""
PASSES: Final = "passes"
"""Sequence column that a generation batch has beside the stored ones: how many rows its uid had."""

_Rows = dict[str, NDArray[Any]]


@dataclass(slots=True)
class _Open:
    """A generation batch that later steps may still train on."""

    first_step: int
    last_step: int
    parts: list[_Rows] = field(default_factory=list)


@frozen(eq=False)
class Gathered:
    """What was gathered of a run at the end of a step.

    Attributes:
        rows: generation batch that is still open -> first step, last step, and its rows by column.
        closed: generation batches that are finished.
        reopened: how often one of them came back.
    """

    rows: Mapping[int, tuple[int, int, Mapping[str, NDArray[Any]]]] = field(default_factory=dict)
    closed: frozenset[int] = frozenset()
    reopened: int = 0


class Rollouts:
    """Collects the rows of generation batches until no later step is expected to train on them.

    Args:
        info: the run's description, handed on to the generation batches.
        columns: sequence columns that rollout reductions read.
        values: per-sequence values to compute from the tokens of each batch.
    """

    def __init__(self, info: RunInfo, columns: Collection[str], values: Sequence[SequenceValue]) -> None:
        self.reopened = 0
        self._info = info
        self._values = tuple(values)
        self._columns = frozenset(columns) | KEYS
        self._open: dict[int, _Open] = {}
        self._closed: set[int] = set()

    def add(self, batch: Batch) -> None:
        """Take the sequence rows of one batch."""
        rows: _Rows = {name: batch.columns[name] for name in self._columns if name in batch.columns}
        rows |= {value.name: value.function(batch) for value in self._values}
        rows["step"] = np.full(batch.n_sequences, batch.step, np.int64)
        keys = rows["step"]
        if (rollout := rows.get("rollout_step")) is not None:
            keys = np.where(rollout == MISSING_INT["int64"], batch.step, rollout)
        unique = np.unique(keys, return_index=True)[0]  # without, numpy.ma is imported
        for key in unique:
            number = int(key)
            if number not in self._open:
                self.reopened += number in self._closed
                self._open[number] = _Open(batch.step, batch.step)
            self._open[number].last_step = batch.step
            chosen = keys == key
            self._open[number].parts.append(rows if len(unique) == 1 else {name: rows[name][chosen] for name in rows})

    @property
    def first_step(self) -> int | None:
        """The earliest first step of the generation batches that are still open."""
        return min((item.first_step for item in self._open.values()), default=None)

    def finished(self, step: int) -> Iterator[Batch]:
        """After ``step``: the generation batches that had no row in it and are not the newest."""
        newest = max(self._open, default=step)
        for key in sorted(self._open):
            if key < newest and self._open[key].last_step < step:
                yield self._close(key)

    def rest(self) -> Iterator[Batch]:
        """The generation batches that are still open, as they are now; they stay open."""
        for key in sorted(self._open):
            yield self._batch(self._open[key])

    def gathered(self) -> Gathered:
        """What is held now."""
        rows = {key: (item.first_step, item.last_step, _joined(item)) for key, item in self._open.items()}
        return Gathered(rows, frozenset(self._closed), self.reopened)

    def go_on(self, gathered: Gathered) -> None:
        """Go on from what was held."""
        names = self._columns | {value.name for value in self._values} | {"step"}
        self._closed, self.reopened = set(gathered.closed), gathered.reopened
        self._open = {
            key: _Open(first, last, [{name: column for name, column in rows.items() if name in names}])
            for key, (first, last, rows) in gathered.rows.items()
        }

    def _close(self, key: int) -> Batch:
        """One generation batch without tokens, at the first step that trained on it."""
        self._closed.add(key)
        return self._batch(self._open.pop(key))

    def _batch(self, item: _Open) -> Batch:
        columns = _joined(item)
        keep, passes = _first_passes(columns)
        columns = {name: column[keep] for name, column in columns.items()}
        columns[PASSES] = passes
        return Batch(item.first_step, columns, np.zeros(len(keep) + 1, np.int64), self._info)


def _joined(item: _Open) -> _Rows:
    if len(item.parts) > 1:
        item.parts = [{name: np.concatenate([rows[name] for rows in item.parts]) for name in item.parts[0]}]
    return item.parts[0]


def _first_passes(columns: _Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to keep, and how many rows the uid of each had: no padding rows, each uid once, in its first pass.

    Rows without a uid are kept if they are of the first epoch.
    """
    rows = np.arange(len(columns["step"]))
    if (padding := columns.get("is_padding")) is not None:
        rows = rows[~padding.astype(np.bool_)]
    order = [columns[name][rows] for name in ("sequence", "minibatch", "epoch", "step") if name in columns]
    rows = rows[np.lexsort(order)]
    uid = columns.get("uid")
    named = np.zeros(len(rows), np.bool_) if uid is None else known(uid[rows])
    unnamed = rows[~named]
    if (epoch := columns.get("epoch")) is not None and len(unnamed):
        unnamed = unnamed[epoch[unnamed] == epoch[unnamed].min()]
    passes = np.ones(len(unnamed), np.int64)
    if uid is None or not named.any():
        return unnamed, passes
    rows = rows[named]
    _, first, counts = np.unique(codes(uid[rows]), return_index=True, return_counts=True)
    return np.concatenate([rows[first], unnamed]), np.concatenate([counts, passes])
