"""From Arrow arrays to the numpy arrays of a batch, with one clear line for whatever does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.errors import InputError
from rl_doctor.schema import MISSING_INT, ROLES, Column
from rl_doctor.store import buffers
from rl_doctor.store.unknown import UNKNOWN

if TYPE_CHECKING:
    import pyarrow as pa

Locate = Callable[[int], str]
"""Says where the value of a flat index stands, e.g. ``row 3, position 7``."""

_WORDS: Final = {
    "int64": "whole numbers",
    "int32": "whole numbers",
    "float64": "numbers",
    "float32": "numbers",
    "bool": "true or false",
}


def decode(array: pa.Array, column: Column, where: str, locate: Locate) -> NDArray[Any]:
    """Decode one column.

    Args:
        array: Arrow array ``[n]`` of any type.
        column: the canonical column that it is.
        where: what messages call it: the file and the column's name in it.
        locate: says where an index stands.

    Returns:
        ``[n]`` in the convention of ``Batch.columns``: null is ``MISSING_INT``, NaN, False, None or role -1.

    Raises:
        InputError: the values are not what the column holds.
    """
    import pyarrow as pa

    array = _plain(array)
    if pa.types.is_null(array.type):
        array = pa.nulls(len(array), _target(column))
    if column.name == "role":
        return _role(array, where, locate)
    if column.dtype == "string":
        return _text(array, where)
    if not _is_number(array.type):
        shown = next((repr(value.as_py()) for value in array if value.is_valid), "nothing")
        at = next((index for index, value in enumerate(array) if value.is_valid), 0)
        raise InputError(
            f"{where} holds {array.type} where {_WORDS[column.dtype]} belong ({locate(at)}: {shown[:40]}); convert the column"
        )
    if column.dtype == "bool":
        return _flag(array, where, locate)
    if column.dtype in MISSING_INT:
        return _no_negative_length(_integer(array, column, where, locate), column, where, locate)
    return _float(array, column)


def is_list(type_: pa.DataType) -> bool:
    """Whether the type is a list of any kind."""
    import pyarrow as pa

    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def is_length(column: Column) -> bool:
    """Whether the column counts tokens of a sequence, so that it cannot be negative."""
    return column.level == "sequence" and column.unit == "tokens"


def _target(column: Column) -> pa.DataType:
    import pyarrow as pa

    return pa.type_for_alias({"bool": "bool", "string": "string"}.get(column.dtype, column.dtype))


def _plain(array: pa.Array) -> pa.Array:
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array


def _is_number(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_) or pa.types.is_decimal(type_)
    )


def _float(array: pa.Array, column: Column) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    # numpy converts: Arrow's own cast imports pyarrow.compute, a tenth of what checking a small run costs.
    with np.errstate(over="ignore", invalid="ignore"):
        found = buffers.values(array).astype(column.dtype, copy=False)
    if not array.null_count:
        return found
    filled: NDArray[Any] = np.where(buffers.validity(array), found, UNKNOWN.astype(found.dtype))
    return filled


def _integer(array: pa.Array, column: Column, where: str, locate: Locate) -> NDArray[Any]:
    import pyarrow as pa

    missing = MISSING_INT[column.dtype]
    limits = np.iinfo(column.dtype)
    valid = buffers.validity(array) if array.null_count else None
    if pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
        real = buffers.values(array.cast(pa.float64()))
        known = ~np.isnan(real) if valid is None else valid & ~np.isnan(real)
        bad = known & ((real != np.floor(real)) | (real < limits.min) | (real >= -float(limits.min)))
        if bad.any():
            at = int(np.argmax(bad))
            raise InputError(
                f"{where}: {real[at]} at {locate(at)} where a whole number ({column.dtype}) belongs; convert the column"
            )
        return np.where(known, np.where(known, real, 0).astype(np.int64), missing).astype(column.dtype)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    values = buffers.values(array)
    if valid is not None:
        values = np.where(valid, values, np.zeros(1, values.dtype))
    bad = (values < limits.min) | (values > limits.max) if values.dtype != column.dtype else np.zeros(0, np.bool_)
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(f"{where}: {values[at]} at {locate(at)} does not fit {column.dtype}; convert the column")
    values = values.astype(column.dtype, copy=False)
    return values if valid is None else np.where(valid, values, np.asarray(missing, column.dtype))


def _no_negative_length(values: NDArray[Any], column: Column, where: str, locate: Locate) -> NDArray[Any]:
    if is_length(column):
        wrong = (values < 0) & (values != MISSING_INT[column.dtype])
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InputError(f"{where} is {values[at]} in {locate(at)}; a length is 0 or more")
    return values


def _flag(array: pa.Array, where: str, locate: Locate) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_boolean(array.type):
        return buffers.values(array) & buffers.validity(array) if array.null_count else buffers.values(array)
    values = buffers.values(array.cast(pa.float64(), safe=False))
    known = buffers.validity(array) & ~np.isnan(values)
    bad = known & (values != 0) & (values != 1)
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(f"{where}: {values[at]:g} at {locate(at)} where a mask has 0 or 1; store true and false")
    flagged: NDArray[Any] = known & (values == 1)
    return flagged


def _text(array: pa.Array, where: str) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_floating(array.type):
        real = np.where(buffers.validity(array), buffers.values(array), np.nan)
        if np.all(np.isnan(real) | (real == np.floor(real))):
            array = pa.array(np.where(np.isnan(real), 0, real).astype(np.int64), mask=np.isnan(real))
    try:
        text = array if pa.types.is_string(array.type) else array.cast(pa.string())
        plain = text.to_pylist()
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise InputError(f"{where}: text that is not valid UTF-8; convert the column") from error
    except pa.ArrowNotImplementedError as error:
        raise InputError(f"{where} holds {array.type} where text belongs; convert the column") from error
    values = np.empty(len(plain), np.object_)
    values[:] = plain
    return values


def _role(array: pa.Array, where: str, locate: Locate) -> NDArray[Any]:
    import pyarrow as pa

    if pa.types.is_integer(array.type):
        codes = np.where(buffers.validity(array), buffers.values(array).astype(np.int64), -1)
        bad = (codes < -1) | (codes >= len(ROLES))
        if bad.any():
            at = int(np.argmax(bad))
            raise InputError(f"{where}: role {codes[at]} at {locate(at)}; roles are {', '.join(ROLES)}")
        roles: NDArray[Any] = codes.astype(np.int8)
        return roles
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type) or pa.types.is_null(array.type)):
        raise InputError(f"{where} holds {array.type} where roles belong: {', '.join(ROLES)}")
    encoded = array.cast(pa.string()).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    table = np.array([ROLES.index(name) if name in ROLES else -1 for name in names] or [-1], np.int8)
    named: NDArray[Any] = np.where(buffers.validity(encoded.indices), table[buffers.values(encoded.indices)], np.int8(-1))
    return named
