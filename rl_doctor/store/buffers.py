"""Arrow arrays as numpy, straight from their buffers.

Arrow's own conversions (``to_numpy``, ``pa.array``, ``pa.scalar``) import pandas wherever it is installed, which costs a
check of a small run more than everything else it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


_KEPT: Final = (1 << 25) - (1 << 16)
"""Bytes: just below the largest block for which glibc raises its limits."""


def keep_freed_memory() -> None:
    """Let what numpy frees serve its next arrays, instead of going back to the system and being mapped page by page again.

    The C library of Linux raises the size from which on it asks the system for memory to that of the largest block freed
    so far. This block is never touched, so it takes no memory; elsewhere nothing comes of it.
    """
    np.empty(_KEPT, np.uint8)


def _bits(buffer: pa.Buffer, offset: int, length: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(buffer, np.uint8, (offset + length + 7) // 8)
    return np.unpackbits(packed, bitorder="little", count=offset + length)[offset:].view(np.bool_)


def validity(array: pa.Array) -> NDArray[np.bool_]:
    """Which values are not null, bool ``[n]``; any type but a dictionary, union or run-end encoding."""
    import pyarrow as pa

    if pa.types.is_null(array.type):
        return np.zeros(len(array), np.bool_)
    bitmap = array.buffers()[0] if array.null_count else None
    return np.ones(len(array), np.bool_) if bitmap is None else _bits(bitmap, array.offset, len(array))


def values(array: pa.Array) -> NDArray[Any]:
    """The values of a boolean, integer or floating array, ``[n]``; what stands at a null is arbitrary.

    Except for booleans this is a read-only view of Arrow's memory.
    """
    import pyarrow as pa

    data = array.buffers()[1]
    dtype = np.dtype(array.type.to_pandas_dtype())
    if data is None or len(array) == 0:
        return np.zeros(len(array), dtype)
    if pa.types.is_boolean(array.type):
        return _bits(data, array.offset, len(array))
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def list_lengths(array: pa.Array) -> NDArray[np.int64]:
    """Number of values of each list, int64 ``[n]``; 0 where null."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size, np.int64)
    else:
        dtype = np.int64 if pa.types.is_large_list(array.type) else np.int32
        offsets = array.buffers()[1]
        if offsets is None or len(array) == 0:
            return np.zeros(len(array), np.int64)
        lengths = np.diff(np.frombuffer(offsets, dtype, len(array) + 1, array.offset * np.dtype(dtype).itemsize)).astype(np.int64)
    return np.where(validity(array), lengths, 0)


def list_values(array: pa.Array) -> pa.Array:
    """All values of a list array, without those that Arrow keeps under a null list."""
    import pyarrow as pa

    if array.null_count or pa.types.is_fixed_size_list(array.type):
        return array.flatten()
    lengths = list_lengths(array)
    if not len(array):
        return array.values.slice(0, 0)
    return array.values.slice(array.offsets[0].as_py(), int(lengths.sum()))
