"""From numpy arrays to Arrow tables, and the Parquet settings of each column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor import schema
from rl_doctor.store.rows import missing_values

if TYPE_CHECKING:
    import pyarrow as pa

FLOATS: Final = ("float32", "float64")
COMPRESSION: Final = "lz4"
_DICTIONARY: Final = frozenset({"role", "turn", "token_version", "data_source", "finish_reason", "group", "session_id"})
"""Columns with few different values. Token ids are not among them: split into bytes they are smaller and faster."""


def arrow_type(name: str) -> pa.DataType:
    """The stored type of a canonical column."""
    import pyarrow as pa

    dtype = schema.canonical(name).dtype
    return pa.string() if dtype == "string" else pa.type_for_alias(dtype)


def field(name: str) -> pa.Field:
    """The stored field; floats, masks and keys have no nulls, so that they decode without a validity bitmap."""
    import pyarrow as pa

    type_ = arrow_type(name)
    never_null = pa.types.is_floating(type_) or pa.types.is_boolean(type_) or name in ("sequence", "step")
    return pa.field(name, type_, nullable=not never_null)


def to_arrow(name: str, values: NDArray[Any]) -> pa.Array:
    """An Arrow array of a canonical column from its in-memory form (see ``Batch.columns``)."""
    import pyarrow as pa

    if name == "role":
        indices = pa.array(values.astype(np.int8), mask=values < 0)
        return pa.DictionaryArray.from_arrays(indices, pa.array(schema.ROLES)).cast(pa.string())
    type_ = arrow_type(name)
    dtype = schema.canonical(name).dtype
    if dtype in schema.MISSING_INT:
        missing = values == schema.MISSING_INT[dtype]
        return pa.array(values, type_, mask=missing if missing.any() else None)
    if pa.types.is_string(type_):
        return pa.array(values, type_, from_pandas=True)
    return pa.array(values, type_, from_pandas=False)


def table(columns: Mapping[str, NDArray[Any]]) -> pa.Table:
    """An Arrow table of flat columns."""
    import pyarrow as pa

    fields = pa.schema([field(name) for name in columns])
    return pa.Table.from_arrays([to_arrow(name, values) for name, values in columns.items()], schema=fields)


def parquet_settings(names: Iterable[str], *, suffix: str = "") -> dict[str, Any]:
    """Arguments of ``ParquetWriter`` for canonical columns: floats byte-stream-split, keys and repeated texts in a dictionary.

    Args:
        names: canonical names of the table's columns.
        suffix: path of the values below the column, for lists.
    """
    dictionary: list[str] = []
    encoding: dict[str, str] = {}
    for name in names:
        column = schema.canonical(name)
        path = name + (suffix if column.level == "token" else "")
        if column.dtype in FLOATS or (suffix == "" and name == "token_id"):
            encoding[path] = "BYTE_STREAM_SPLIT"
        elif name in _DICTIONARY or (suffix == "" and name in ("step", "sequence")):
            dictionary.append(path)
    return {
        "compression": COMPRESSION,
        "use_dictionary": dictionary or False,
        "column_encoding": encoding or None,
        "data_page_size": 1 << 20,
        "write_statistics": True,
    }


def import_all() -> None:
    """Import everything that encoding and writing need, much of which Arrow itself imports late.

    A thread that writes while the interpreter ends can no longer do that.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: missing_values(name, 1) for name in ("uid", "turns", "role", "logprob", "response_mask")}
    pq.write_table(table(columns), pa.BufferOutputStream(), **parquet_settings(columns))
