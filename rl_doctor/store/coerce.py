"""Arrays that a caller hands in, brought to the convention of ``Batch.columns``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_doctor.errors import InputError
from rl_doctor.schema import MISSING_INT, ROLES, Column
from rl_doctor.store.decode import is_length

Locate = Callable[..., Sequence[int]]
"""From an index into an array to what messages call that place."""

_ROLE_ALIASES: Final[Mapping[str, str]] = {"environment": "tool", "observation": "tool"}


def _itself(*index: int) -> tuple[int, ...]:
    return index


def coerce(values: ArrayLike, column: Column, where: str, locate: Locate = _itself) -> NDArray[Any]:
    """Bring values of any shape to the column's type.

    Args:
        values: array, list or scalar; None and NaN mean unknown where the type has no NaN of its own.
        column: the canonical column.
        where: what messages call the caller.
        locate: index into the values, one integer per dimension -> place that messages name.

    Returns:
        An array of the same shape, of the type that ``Batch.columns`` has.

    Raises:
        InputError: the values are not what the column holds.
    """
    try:
        texts = column.dtype == "string" and not isinstance(values, np.ndarray)
        array = np.asarray(values, np.object_ if texts else None)
    except ValueError as error:
        raise InputError(f"{where}: {column.name} has rows of unequal length; pass one padded array") from error
    if column.name == "role":
        return _roles(array, where)
    if column.dtype == "string":
        return _texts(array)
    if array.dtype == object:
        array = np.array([np.nan if value is None else value for value in array.ravel()]).reshape(array.shape)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{where}: {column.name} holds {array.dtype} where numbers belong")
    if column.dtype == "bool":
        return _flags(array, column, where, locate)
    if column.dtype in MISSING_INT:
        return _integers(array, column, where, locate)
    return array.astype(column.dtype, copy=False)


def _flags(array: NDArray[Any], column: Column, where: str, locate: Locate) -> NDArray[Any]:
    if array.dtype == np.bool_:
        return array
    bad = (array != 0) & (array != 1)
    if bad.any():
        at = tuple(int(index) for index in np.argwhere(bad)[0])
        raise InputError(f"{where}: {column.name} is {array[at]} at {list(locate(*at))} where a mask has 0 or 1")
    flags: NDArray[Any] = array == 1
    return flags


def _integers(array: NDArray[Any], column: Column, where: str, locate: Locate) -> NDArray[Any]:
    limits = np.iinfo(column.dtype)
    lowest = 0 if is_length(column) else int(limits.min)
    missing = MISSING_INT[column.dtype]
    if array.dtype.kind != "f" and array.size and array.min() >= lowest and missing < array.min() and array.max() <= limits.max:
        return array.astype(column.dtype, copy=False)
    unknown = np.isnan(array) if array.dtype.kind == "f" else array == missing
    known = np.where(unknown, 0, array)
    bad = (known < lowest) | (known > limits.max) | (known != np.floor(known) if array.dtype.kind == "f" else False)
    if bad.any():
        at = tuple(int(index) for index in np.argwhere(bad)[0])
        wanted = f"where a whole number from {lowest} to {limits.max} belongs"
        raise InputError(f"{where}: {column.name} is {array[at]} at {list(locate(*at))} {wanted}")
    return (
        np.where(unknown, missing, known.astype(np.int64)).astype(column.dtype) if unknown.any() else known.astype(column.dtype)
    )


def _texts(array: NDArray[Any]) -> NDArray[Any]:
    texts = np.empty(array.shape, np.object_)
    for index, value in np.ndenumerate(array):
        missing = value is None or (isinstance(value, float | np.floating) and np.isnan(value))
        texts[index] = None if missing else _text(value)
    return texts


def _text(value: Any) -> str:
    """The value as a text; half of a surrogate pair, which no file can hold, becomes its escape."""
    text = str(value)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def unknown_roles(values: ArrayLike) -> tuple[str, ...]:
    """The texts among the values that are no role, sorted; those become unknown."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return ()
    found = {str(value) for value in array.ravel().tolist() if isinstance(value, str)}
    return tuple(sorted(found.difference(ROLES, _ROLE_ALIASES)))


def _roles(array: NDArray[Any], where: str) -> NDArray[Any]:
    if array.dtype.kind in "iu":
        if ((array < -1) | (array >= len(ROLES))).any():
            raise InputError(f"{where}: role is a name or an index into {', '.join(ROLES)}")
        return array.astype(np.int8)
    codes = np.full(array.shape, -1, np.int8)
    for code, role in enumerate(ROLES):
        codes[array == role] = code
    for alias, role in _ROLE_ALIASES.items():
        codes[array == alias] = ROLES.index(role)
    return codes
