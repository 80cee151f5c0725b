"""Token columns given as one list per sequence, of different lengths: padded, so that they are as good as ``[B, T]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.snapshot import Bits, to_array
from rl_doctor.errors import InputError
from rl_doctor.store.aliases import ATTENTION_MASK
from rl_doctor.store.normalise import WIDE


def padded(columns: Mapping[str, Any], *, full_width: bool) -> dict[str, Any]:
    """Pad the token columns whose rows differ in length; all others stay as they are.

    The lengths of the rows are the response lengths where neither ``attention_mask`` nor ``response_length`` says otherwise.

    Args:
        columns: canonical name -> snapshot.
        full_width: whether the token columns cover the prompt too.

    Raises:
        InputError: rows of two columns differ in length, or there are columns beside them that are not as wide.
    """
    ragged = {name: rows for name, value in columns.items() if name in WIDE and (rows := _rows(value)) is not None}
    lengths = {name: [len(row) for row in rows] for name, rows in ragged.items()}
    if all(len(set(found)) < 2 for found in lengths.values()):
        return dict(columns)
    first, wanted = next((name, found) for name, found in lengths.items() if len(set(found)) > 1)
    for name, found in lengths.items():
        if found != wanted:
            row = next((i for i, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), len(found))
            raise InputError(f"log_batch: rows {row} of {first} and {name} differ in length; give all columns padded, as [B, T]")
    width = max(wanted)
    wide = {name: np.shape(value) for name, value in columns.items() if name in WIDE and name not in ragged}
    others = [name for name, shape in wide.items() if len(shape) == 2 and shape[1] not in (1, width)]
    if full_width or others or ("prompt_length" in columns and ATTENTION_MASK in columns):
        raise InputError(f"log_batch: the rows of {first} differ in length; give all columns padded, as [B, T]")
    result = {**columns, **{name: _pad(rows, wanted, width) for name, rows in ragged.items()}}
    if ATTENTION_MASK not in columns and "response_length" not in columns:
        result["response_length"] = np.array(wanted, np.int64)
    return result


def _rows(value: Any) -> list[NDArray[Any]] | None:
    """One array for each row of a list of rows; None for anything else."""
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(row, (list, tuple, Bits)) or (isinstance(row, np.ndarray) and row.ndim == 1) for row in value):
        return None
    rows = [to_array(list(row) if isinstance(row, tuple) else row) for row in value]
    return rows if all(row.ndim == 1 for row in rows) else None


def _pad(rows: list[NDArray[Any]], lengths: list[int], width: int) -> NDArray[Any]:
    filled = [row for row in rows if len(row)]
    numeric = all(row.dtype.kind in "biuf" for row in filled)
    array = np.full((len(rows), width), 0 if numeric else None, np.result_type(*filled) if numeric else np.object_)
    for place, row, length in zip(array, rows, lengths, strict=True):
        place[:length] = row
    return array
