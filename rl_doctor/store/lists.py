"""List columns of a table with one row per sequence: lengths, values, and what makes them unreadable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.schema import Column
from rl_doctor.store import buffers
from rl_doctor.store.decode import decode, is_list
from rl_doctor.store.rows import missing_values, splits_of

if TYPE_CHECKING:
    import pyarrow as pa


@frozen(eq=False)
class Lists:
    """A list column of neighbouring rows.

    Attributes:
        where: what messages call it.
        first_row: row of the file at which it starts.
        lengths: number of values of each row, int64 ``[n]``; 0 where null.
        valid: rows that are not null, ``[n]``.
        values: Arrow array of all values.
    """

    where: str
    first_row: int
    lengths: NDArray[np.int64]
    valid: NDArray[np.bool_]
    values: pa.Array

    @classmethod
    def of(cls, array: pa.Array, where: str, first_row: int) -> Lists:
        """Take apart an Arrow array.

        Raises:
            InputError: it has one value per row, or lists of lists.
        """
        import pyarrow as pa

        if pa.types.is_null(array.type):
            n = len(array)
            return cls(where, first_row, np.zeros(n, np.int64), np.zeros(n, np.bool_), pa.nulls(0))
        if not is_list(array.type):
            raise InputError(
                f"{where} has one value per row (row {first_row}: {array[0].as_py()!r}) where a list of its tokens belongs; "
                "store lists, or one row per token with a column 'sequence' or 'uid' (or 'position', from 0 in each sequence)"
            )
        if is_list(array.type.value_type):
            raise InputError(f"{where} holds lists of lists; store one flat list of tokens per row")
        return cls(where, first_row, buffers.list_lengths(array), buffers.validity(array), buffers.list_values(array))

    def decode(self, column: Column) -> NDArray[Any]:
        """All values, in the convention of ``Batch.columns``."""
        own = splits_of(self.lengths)

        def locate(index: int) -> str:
            row = int(np.searchsorted(own, index, side="right")) - 1
            return f"row {self.first_row + row}, position {index - int(own[row])}"

        return decode(self.values, column, self.where, locate)

    def ragged(self, column: Column, splits: NDArray[np.int64]) -> NDArray[Any]:
        """Values ``[n_tokens]``, unknown in rows where this column is null."""
        values = self.decode(column)
        if len(values) == splits[-1]:
            return values
        filled = missing_values(column.name, int(splits[-1]))
        filled[np.repeat(self.valid, np.diff(splits))] = values
        return filled

    def padded(self, column: Column) -> NDArray[Any]:
        """Values ``[n, width]``, left-aligned, unknown beyond a row's length."""
        width = int(self.lengths.max(initial=0))
        values = self.decode(column)
        if len(values) == width * len(self.lengths):
            return values.reshape(len(self.lengths), width)
        filled = missing_values(column.name, width * len(self.lengths)).reshape(len(self.lengths), width)
        filled[np.arange(width) < self.lengths[:, None]] = values
        return filled


def common_lengths(lists: dict[str, Lists], known: NDArray[Any] | None, known_as: str) -> NDArray[np.int64]:
    """Number of tokens of each row, int64 ``[n]``.

    Args:
        lists: list columns by their name in the file.
        known: lengths that the file states, ``[n]``; negative where unknown.
        known_as: name in the file of the column that states them.

    Raises:
        InputError: the lists of a row are not equally long.
    """
    size = len(known) if known is not None else len(next(iter(lists.values())).lengths) if lists else 0
    lengths = np.full(size, -1, np.int64) if known is None else np.where(known >= 0, known, -1).astype(np.int64)
    names = [] if known is None else [known_as]
    for name, one in lists.items():
        wrong = one.valid & (lengths >= 0) & (lengths != one.lengths)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InputError(
                f"{one.where} has {one.lengths[at]} tokens in row {one.first_row + at} where "
                f"{' and '.join(map(repr, names))} has {lengths[at]}; the lists of a row must be equally long"
            )
        lengths = np.where(one.valid & (lengths < 0), one.lengths, lengths)
        names = [*names[:1], name] if len(names) < 2 else names
    return np.maximum(lengths, 0)
