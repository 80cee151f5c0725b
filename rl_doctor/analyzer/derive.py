"""Values that several metrics derive from the same batch, computed once per batch.

Every function here works on the *selected* tokens: those that the policy is trained on. They are compressed, not
multiplied, so whatever stands at a masked position, NaN included, cannot leak.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_doctor.store.batch import Batch

Floats = NDArray[np.float64]
T = TypeVar("T")


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
def selection(batch: Batch) -> NDArray[np.bool_]:
    """Bool ``[n_tokens]``: tokens trained on. Without a response_mask every stored token; padding rows never."""
    mask = batch.get("response_mask")
    chosen = np.ones(batch.n_tokens, np.bool_) if mask is None else mask.astype(np.bool_)
    padding = batch.get("is_padding")
    if padding is not None and padding.any():
        chosen = chosen & ~np.repeat(padding.astype(np.bool_), np.diff(batch.splits))
    return chosen


@derived
def selected_splits(batch: Batch) -> NDArray[np.int64]:
    """Int64 ``[n_sequences + 1]``: splits of the selected tokens."""
    before = np.zeros(batch.n_tokens + 1, np.int64)
    np.cumsum(selection(batch), out=before[1:])
    return before[batch.splits]


def selected(batch: Batch, name: str) -> Floats:
    """Column ``name`` at the selected tokens, float64 ``[n_selected]``; computed once per batch."""
    key = ("selected", name)
    if key not in batch.scratch:
        batch.scratch[key] = batch.columns[name][selection(batch)].astype(np.float64)
    values: Floats = batch.scratch[key]
    return values


def segment_sums(values: Floats, splits: NDArray[np.int64]) -> Floats:
    """Sum of ``values`` ``[n]`` per segment, ``[len(splits) - 1]``; 0 for an empty segment."""
    sums = np.zeros(len(splits) - 1, np.float64)
    filled = np.flatnonzero(np.diff(splits))
    if filled.size:
        sums[filled] = np.add.reduceat(values, splits[filled])
    return sums


def per_sequence_sums(batch: Batch, values: Floats) -> Floats:
    """Sum of selected ``values`` ``[n_selected]`` per sequence, ``[n_sequences]``."""
    return segment_sums(values, selected_splits(batch))


def per_sequence_counts(batch: Batch) -> NDArray[np.int64]:
    """Number of selected tokens per sequence, int64 ``[n_sequences]``."""
    return np.diff(selected_splits(batch))


def codes(values: NDArray[Any]) -> NDArray[np.int64]:
    """Codes 0..k-1 of equal values, in order of first appearance; None (or a missing integer) is a value like any other."""
    import pyarrow as pa

    encoded = pa.array(values, from_pandas=True).dictionary_encode(null_encoding="encode")
    indices: NDArray[np.int64] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return indices
