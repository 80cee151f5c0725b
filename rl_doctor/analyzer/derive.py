"""Values that several metrics derive from the same batch, computed once per batch.

Most work on the *selected* tokens: those that the policy is trained on. They are compressed, not multiplied, so whatever
stands at a masked position, NaN included, cannot leak.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer import kernels
from rl_doctor.analyzer.formulas.segments import kept_splits
from rl_doctor.analyzer.states import Sum, Sums
from rl_doctor.analyzer.stretches import Stretches
from rl_doctor.schema import MISSING_INT
from rl_doctor.store.batch import Batch
from rl_doctor.store.rows import is_token, splits_of

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
T = TypeVar("T")

FIRST_STEP: Final = "rollout_first_step"
"""Sequence column that the engine adds: the first step that trained on the row's generation batch (needs rollout_step)."""
SEEN: Final = MappingProxyType({"group_seen": "group", "prompt_seen": "prompt"})
"""Sequence columns that the engine adds, each with what it follows from: 1 where that was in an earlier batch, else 0."""

_SHORT_STRETCH: Final = 128
"""Mean number of tokens below which going over stretches costs more than taking their tokens by a mask first."""


def derived(function: Callable[[Batch], T]) -> Callable[[Batch], T]:
    """Keep the function's value in the batch's scratch."""

    @wraps(function)
    def cached(batch: Batch) -> T:
        if function not in batch.scratch:
            batch.scratch[function] = function(batch)
        value: T = batch.scratch[function]
        return value

    return cached


@derived
def real_rows(batch: Batch) -> Bools:
    """Bool ``[n_sequences]``: rows that are not there only to fill the batch."""
    padding = batch.get("is_padding")
    return np.ones(batch.n_sequences, np.bool_) if padding is None else ~padding.astype(np.bool_)


@derived
def selection(batch: Batch) -> Bools:
    """Bool ``[n_tokens]``: tokens trained on. Without a response_mask every stored token; padding rows never."""
    mask = batch.get("response_mask")
    chosen = np.ones(batch.n_tokens, np.bool_) if mask is None else mask.astype(np.bool_)
    real = real_rows(batch)
    return chosen if real.all() else chosen & spread(batch, real)


@derived
def selected_splits(batch: Batch) -> NDArray[np.int64]:
    """Int64 ``[n_sequences + 1]``: splits of the selected tokens."""
    if not in_place(batch):
        return kept_splits(batch.splits, selection(batch))
    starts, stops = _stretches(batch)
    before = np.searchsorted(starts, batch.splits)  # they begin before the sequence, and the last may reach into it
    inside = np.append(0, stops)[before] - batch.splits
    splits: NDArray[np.int64] = splits_of(stops - starts)[before] - np.maximum(inside, 0)
    return splits


def flags_in(splits: NDArray[np.int64], flags: Bools) -> NDArray[np.int64]:
    """Number of true ``flags`` ``[n]`` in each segment, int64 ``[segments]``; costs little where few are true."""
    return np.diff(np.searchsorted(np.flatnonzero(flags), splits))


def spread(batch: Batch, rows: NDArray[Any]) -> NDArray[Any]:
    """A value per sequence ``[n_sequences]`` at each of its stored tokens, ``[n_tokens]``."""
    return np.repeat(rows, batch.lengths)


@derived
def positions(batch: Batch) -> NDArray[np.int64]:
    """Int64 ``[n_tokens]``: position of each stored token in its row, from 0."""
    return np.arange(batch.n_tokens, dtype=np.int64) - np.repeat(batch.splits[:-1], batch.lengths)


@derived
def selected_positions(batch: Batch) -> NDArray[np.int64]:
    """Int64 ``[n_selected]``: position of each selected token in its row."""
    return positions(batch)[selection(batch)]


def finite(batch: Batch, name: str) -> Bools:
    """Bool ``[n_tokens]``: stored tokens at which the token column ``name`` is finite; computed once per batch."""
    key = ("finite", name)
    if key not in batch.scratch:
        batch.scratch[key] = np.isfinite(batch.columns[name])
    flags: Bools = batch.scratch[key]
    return flags


def picked(batch: Batch, name: str) -> NDArray[Any]:
    """Column ``name`` at the selected tokens as it is stored, ``[n_selected]``; computed once per batch."""
    key = ("picked", name)
    if key not in batch.scratch:
        column, (starts, stops) = batch.columns[name], _stretches(batch)
        if not in_place(batch):
            batch.scratch[key] = column[selection(batch)]
        elif len(starts) == 1 and stops[0] - starts[0] == batch.n_tokens:
            batch.scratch[key] = column
        else:
            pieces = [column[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
            batch.scratch[key] = np.concatenate([column[:0], *pieces])
    values: NDArray[Any] = batch.scratch[key]
    return values


def columns_of(batch: Batch, *names: str) -> tuple[NDArray[Any], ...]:
    """Columns ``names`` at the selected tokens, for a pass over ``tokens``: as they are stored, or ``picked``."""
    return tuple(batch.columns[name] if in_place(batch) else picked(batch, name) for name in names)


@derived
def in_place(batch: Batch) -> bool:
    """Whether the selected tokens stand in stretches that are worth a pass over the columns as they are stored."""
    return len(_stretches(batch)[0]) <= 1 + batch.n_tokens // _SHORT_STRETCH


@derived
def _stretches(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where stretches of selected tokens start and stop, int64 ``[k]``."""
    chosen = np.concatenate([[False], selection(batch), [False]])
    bounds = np.flatnonzero(chosen[1:] != chosen[:-1])
    return bounds[::2], bounds[1::2]


@derived
def tokens(batch: Batch) -> Stretches:
    """The selected tokens in ``columns_of``; rows are the sequences that have one."""
    return Stretches(edges(batch), *_stretches(batch)) if in_place(batch) else Stretches.whole(edges(batch))


def first_tokens(batch: Batch, name: str) -> NDArray[Any]:
    """Column ``name`` at the first selected token of each sequence that has one, ``[n_filled]``."""
    values: NDArray[Any] = columns_of(batch, name)[0][tokens(batch).begins]
    return values


def selected(batch: Batch, name: str) -> Floats:
    """Column ``name`` at the selected tokens, float64 ``[n_selected]``; computed once per batch."""
    key = ("selected", name)
    if key not in batch.scratch:
        batch.scratch[key] = picked(batch, name).astype(np.float64)
    values: Floats = batch.scratch[key]
    return values


def span(batch: Batch, name: str) -> tuple[float, float]:
    """Smallest and largest value of column ``name`` at the selected tokens, NaN where one is NaN or there is none."""
    key = ("span", name)
    if key not in batch.scratch:
        batch.scratch[key] = kernels.of(batch.run_tokens).span(*columns_of(batch, name), tokens(batch))
    ends: tuple[float, float] = batch.scratch[key]
    return ends


def per_sequence_sums(batch: Batch, values: NDArray[Any]) -> Floats:
    """Sum of selected ``values`` ``[n_selected]`` per sequence, ``[n_sequences]``."""
    rows, starts = _filled(batch)
    sums = np.zeros(batch.n_sequences, np.float64)
    if rows.size:
        with np.errstate(over="ignore", invalid="ignore"):
            sums[rows] = np.add.reduceat(values, starts, dtype=np.float64)
    return sums


@derived
def _filled(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequences with a selected token, and where their selected tokens start."""
    rows, edges = filled_rows(selected_splits(batch))
    return rows, edges[:-1]


@derived
def edges(batch: Batch) -> NDArray[np.int64]:
    """Int64 ``[n_filled + 1]``: splits of the selected tokens, without the sequences that have none."""
    return filled_rows(selected_splits(batch))[1]


def filled_rows(splits: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The segments of ``splits`` that are not empty, int64 ``[n_filled]``, and their splits, int64 ``[n_filled + 1]``."""
    rows = np.flatnonzero(np.diff(splits))
    return rows, np.append(splits[rows], splits[-1])


def tokens_of_rows(splits: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the items of the segments ``rows`` stand, int64 ``[n]``, and their own splits, int64 ``[len(rows) + 1]``."""
    lengths = np.diff(splits)[rows]
    inner = np.append(0, np.cumsum(lengths))
    return np.arange(inner[-1]) + np.repeat(splits[rows] - inner[:-1], lengths), inner


def in_rows(splits: NDArray[np.int64], rows: Bools) -> slice | Bools:
    """What picks the items of the segments ``rows`` ``[segments]``: a slice where they follow each other, else flags ``[n]``."""
    at = np.flatnonzero(rows)
    if at.size and at[-1] - at[0] + 1 == at.size:
        return slice(int(splits[at[0]]), int(splits[at[-1] + 1]))
    return np.repeat(rows, np.diff(splits))


def restricted(batch: Batch, rows: Bools, names: tuple[str, ...]) -> Batch:
    """The sequences ``rows`` of the batch, bool ``[n_sequences]``, with those of the columns ``names`` that it has."""
    index, splits = tokens_of_rows(batch.splits, np.flatnonzero(rows))
    present = {name: batch.columns[name] for name in names if name in batch.columns}
    columns = {name: values[index] if is_token(name) else values[rows] for name, values in present.items()}
    return Batch(batch.step, columns, splits, batch.info)


def of_rows(batch: Batch, values: NDArray[Any], empty: float = 0) -> NDArray[Any]:
    """Values ``[..., n_filled]`` of the sequences with a selected token as ``[..., n_sequences]``, ``empty`` for the others."""
    return over_rows(values, _filled(batch)[0], batch.n_sequences, empty)


def over_rows(values: NDArray[Any], rows: NDArray[np.int64], count: int, empty: float = 0) -> NDArray[Any]:
    """Values ``[..., k]`` at ``rows`` of ``count`` rows, ``empty`` at the others."""
    if values.shape[-1] == count:
        return values
    spread_out = np.full((*values.shape[:-1], count), empty, values.dtype)
    spread_out[..., rows] = values
    return spread_out


def column_sums(batch: Batch, name: str) -> Floats:
    """Sum of column ``name`` at the selected tokens per sequence, float64 ``[n_sequences]``; computed once per batch."""
    key = ("sums", name)
    if key not in batch.scratch:
        batch.scratch[key] = of_rows(batch, kernels.of(batch.run_tokens).column(*columns_of(batch, name), tokens(batch)))
    sums: Floats = batch.scratch[key]
    return sums


@derived
def per_sequence_counts(batch: Batch) -> NDArray[np.int64]:
    """Number of selected tokens per sequence, int64 ``[n_sequences]``."""
    return np.diff(selected_splits(batch))


def token_sum(batch: Batch, values: NDArray[Any], rows: Bools | None = None) -> Sum:
    """Exact sum of selected ``values`` ``[n_selected]`` with their number, over the sequences ``rows`` (default all)."""
    return row_sums(batch, per_sequence_sums(batch, values)[np.newaxis], rows)[0]


def row_sums(batch: Batch, sums: Floats, rows: Bools | None = None) -> Sums:
    """Exact totals of sums per sequence ``[k, n_sequences]`` with the number of selected tokens, over ``rows`` (default all)."""
    counts = per_sequence_counts(batch)
    if rows is not None:
        sums, counts = sums[:, rows], counts[rows]
    return Sums.of(sums, int(counts.sum()))


def share(flags: Bools, *inputs: Floats) -> Sum:
    """Number of true ``flags`` ``[n]`` among n; NaN where one of ``inputs`` ``[n]``, from which they follow, is NaN."""
    nan = sum(int(np.count_nonzero(np.isnan(values))) for values in inputs)
    return Sum.counted(int(np.count_nonzero(flags)), flags.size, nan)


@derived
def first_rows(batch: Batch) -> Bools:
    """Bool ``[n_sequences]``: rows of the first mini-batch, before any optimizer step on their generation batch."""
    first: Bools = (batch.columns["epoch"] == 0) & (batch.columns["minibatch"] == 0)
    started = batch.get(FIRST_STEP)
    return first if started is None else first & (started == batch.step)


@derived
def later_rows(batch: Batch) -> Bools:
    """Bool ``[n_sequences]``: rows before which a step was taken on their generation batch."""
    later: Bools = (batch.columns["epoch"] > 0) | (batch.columns["minibatch"] > 0)
    started = batch.get(FIRST_STEP)
    return later if started is None else later | (started < batch.step)


def known(values: NDArray[Any]) -> Bools:
    """Bool ``[n]``: values that are not null (None, NaN, or the integer that stands for null)."""
    if values.dtype.kind == "f":
        return np.asarray(~np.isnan(values), np.bool_)
    if values.dtype.kind == "O":
        return np.asarray(values != None, np.bool_)  # noqa: E711 - elementwise
    missing = MISSING_INT.get(values.dtype.name)
    if missing is None:
        return np.ones(len(values), np.bool_)
    return np.asarray(values != missing, np.bool_)
