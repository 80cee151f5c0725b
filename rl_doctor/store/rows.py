"""Ragged rows of one or more steps: the form between padded tensors, files and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor import schema
from rl_doctor.frozen import frozen
from rl_doctor.store.unknown import UNKNOWN


@frozen(eq=False)
class Rows:
    """Whole sequences of one or more steps; the column ``step`` is among the columns.

    Attributes:
        columns: canonical name -> flat array, in the same convention as ``Batch.columns``: ``[n_sequences]`` for sequence
            and context columns, ``[n_tokens]`` for token columns.
        splits: int64 ``[n_sequences + 1]``; sequence i owns the tokens ``splits[i]:splits[i + 1]``.
    """

    columns: Mapping[str, NDArray[Any]]
    splits: NDArray[np.int64]

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return len(self.splits) - 1

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return int(self.splits[-1]) if len(self.splits) else 0

    def slice(self, start: int, stop: int) -> Rows:
        """Sequences ``start`` to ``stop``, as views."""
        first, last = int(self.splits[start]), int(self.splits[stop])
        columns = {name: values[first:last] if is_token(name) else values[start:stop] for name, values in self.columns.items()}
        return Rows(columns, self.splits[start : stop + 1] - first)

    def take(self, index: NDArray[np.int64]) -> Rows:
        """The sequences of ``index``, in its order."""
        lengths = np.diff(self.splits)[index]
        splits = splits_of(lengths)
        tokens = np.arange(splits[-1]) + np.repeat(self.splits[:-1][index] - splits[:-1], lengths)
        columns = {name: values[tokens] if is_token(name) else values[index] for name, values in self.columns.items()}
        return Rows(columns, splits)


def without_tokens(rows: Rows, dropped: NDArray[np.bool_]) -> Rows:
    """The same sequences without the tokens of those that are ``dropped``, bool ``[n_sequences]``, which are marked so."""
    earlier = rows.columns.get("tokens_dropped")
    marks = dropped if earlier is None else dropped | earlier.astype(np.bool_)
    lengths = np.diff(rows.splits)
    tokens = np.repeat(~dropped, lengths) if dropped.any() else slice(None)
    splits = splits_of(np.where(dropped, 0, lengths))
    columns = {name: values[tokens] if is_token(name) else values for name, values in rows.columns.items()}
    return Rows({**columns, "tokens_dropped": marks}, splits)


def is_token(name: str) -> bool:
    """Whether the canonical column has one value per token."""
    column = schema.column(name)
    return column is not None and column.level == "token"


def splits_of(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Splits, int64 ``[n + 1]``, of sequences of ``lengths`` ``[n]``."""
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=splits[1:])
    return splits


def missing_values(name: str, size: int) -> NDArray[Any]:
    """An array ``[size]`` of "unknown" for the canonical column."""
    column = schema.canonical(name)
    if name == "role":
        return np.full(size, -1, np.int8)
    if column.dtype == "string":
        return np.full(size, None, np.object_)
    if column.dtype == "bool":
        return np.zeros(size, np.bool_)
    if column.dtype in schema.MISSING_INT:
        return np.full(size, schema.MISSING_INT[column.dtype], column.dtype)
    return np.full(size, UNKNOWN, column.dtype)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Join rows in order; a column that only some of them have is unknown in the others."""
    if len(parts) == 1:
        return parts[0]
    names = list(dict.fromkeys(name for part in parts for name in part.columns))
    columns = {name: np.concatenate([_column(part, name) for part in parts]) for name in names}
    return Rows(columns, splits_of(np.concatenate([np.diff(part.splits) for part in parts])))


def _column(part: Rows, name: str) -> NDArray[Any]:
    values = part.columns.get(name)
    if values is None:
        return missing_values(name, part.n_tokens if is_token(name) else part.n_sequences)
    return values
