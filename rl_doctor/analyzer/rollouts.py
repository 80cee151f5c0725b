"""Sequence rows of each generation batch, gathered over the steps that train on it: each uid once, never by position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import codes
from rl_doctor.analyzer.registry import SequenceValue
from rl_doctor.store.batch import Batch

_KEYS = frozenset({"rollout_step", "uid", "epoch", "is_padding"})


class Rollouts:
    """Collects the rows of generation batches until they are complete.

    Args:
        columns: sequence columns that rollout reductions read.
        values: per-sequence values to compute from the tokens of each batch.
    """

    def __init__(self, columns: Collection[str], values: Sequence[SequenceValue]) -> None:
        self.values = tuple(values)
        self.keys = _KEYS
        self._columns = frozenset(columns) | _KEYS
        self._rows: dict[int, list[tuple[int, dict[str, NDArray[Any]]]]] = {}

    def add(self, batch: Batch) -> None:
        """Take the sequence rows of one batch."""
        rows = {name: batch.columns[name] for name in self._columns if name in batch.columns}
        rows |= {value.name: value.function(batch) for value in self.values}
        rollout = rows.get("rollout_step")
        if rollout is None:
            self._rows.setdefault(batch.step, []).append((batch.step, rows))
            return
        for key in np.unique(rollout):
            chosen = rollout == key
            self._rows.setdefault(int(key), []).append((batch.step, {name: rows[name][chosen] for name in rows}))

    def flush(self) -> Iterator[Batch]:
        """Give each generation batch as one Batch without tokens, at the first step that trained on it."""
        for key in sorted(self._rows):
            parts = self._rows[key]
            step = min(step for step, _ in parts)
            columns = {name: np.concatenate([rows[name] for _, rows in parts]) for name in parts[0][1]}
            keep = _first_pass(columns)
            columns = {name: column[keep] for name, column in columns.items()}
            yield Batch(step, columns, np.zeros(len(keep) + 1, np.int64))
        self._rows = {}


def _first_pass(columns: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Rows to keep: no padding rows, each uid once; without uids the rows of the first epoch."""
    size = len(next(iter(columns.values())))
    rows = np.arange(size)
    if (padding := columns.get("is_padding")) is not None:
        rows = rows[~padding.astype(np.bool_)]
    if (uid := columns.get("uid")) is not None:
        _, first = np.unique(codes(uid[rows]), return_index=True)
        return rows[np.sort(first)]
    if (epoch := columns.get("epoch")) is not None and len(rows):
        return rows[epoch[rows] == epoch[rows].min()]
    return rows
