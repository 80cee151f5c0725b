"""Reads a run file: one row per sequence and pass, token columns as lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor import schema
from rl_doctor.errors import InputError
from rl_doctor.store.decode import decode, is_list
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.rows import Rows, is_token, missing_values, splits_of

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_TOKENS: Final = 1 << 20
"""About how many tokens are decoded at once."""


@dataclass(frozen=True, slots=True, eq=False)
class ListColumns:
    """The columns of a file with one row per sequence.

    Attributes:
        source: the file.
        names: canonical name -> name in the file.
        lengths_from: names in the file of the columns that give the list lengths where no token column is asked for.
    """

    source: ParquetInput
    names: Mapping[str, str]
    lengths_from: str | None

    def where(self, name: str) -> str:
        """What messages call a column."""
        return f"{self.source.path}: column {self.names[name]!r}"

    def rows(self, table: pa.Table | pa.RecordBatch, columns: Sequence[str], first_row: int) -> Rows:
        """Turn decoded columns of neighbouring rows into ``Rows``.

        Args:
            table: has the columns by their names in the file.
            columns: canonical names to take.
            first_row: row of the file at which the table starts.
        """
        scalars: dict[str, NDArray[Any]] = {}
        lists: dict[str, _Lists] = {}
        for name in columns:
            array = table.column(self.names[name])
            if is_token(name):
                lists[name] = _Lists.of(array, self.where(name), first_row)
            else:
                scalars[name] = self.scalar(array, name, first_row)
        lengths = self._lengths(table, lists, scalars.get("stored_length"), first_row)
        splits = splits_of(lengths)
        tokens = {name: _values(found, name, splits, self.where(name), first_row) for name, found in lists.items()}
        return Rows(scalars | tokens, splits)

    def scalar(self, array: pa.Array, name: str, first_row: int) -> NDArray[Any]:
        """Decode a sequence column."""
        column = schema.column(name)
        if column is None:
            raise KeyError(name)
        if is_list(array.type):
            raise InputError(f"{self.where(name)} holds lists where one value per sequence belongs; reduce it to one value")
        return decode(array, column, self.where(name), lambda index: f"row {first_row + index}")

    def _lengths(
        self,
        table: pa.Table | pa.RecordBatch,
        lists: Mapping[str, _Lists],
        stored: NDArray[Any] | None,
        first_row: int,
    ) -> NDArray[np.int64]:
        found = dict(lists)
        if not found and stored is None and self.lengths_from is not None:
            found = {
                self.lengths_from: _Lists.of(
                    table.column(self.names[self.lengths_from]), self.where(self.lengths_from), first_row
                )
            }
        lengths = np.full(table.num_rows, -1, np.int64)
        known_from: dict[str, str] = {}
        if stored is not None:
            self._check_lengths(stored, first_row)
            lengths = np.where(stored >= 0, stored, -1).astype(np.int64)
            known_from["stored_length"] = self.names["stored_length"]
        for name, one in found.items():
            wrong = one.valid & (lengths >= 0) & (lengths != one.lengths)
            if wrong.any():
                at = int(np.argmax(wrong))
                other = ", ".join(repr(value) for value in known_from.values())
                raise InputError(
                    f"{self.where(name)} has {one.lengths[at]} tokens in row {first_row + at} where {other} "
                    f"has {lengths[at]}; the lists of a row must be equally long"
                )
            lengths = np.where(one.valid & (lengths < 0), one.lengths, lengths)
            known_from[name] = self.names[name]
        return np.maximum(lengths, 0)

    def _check_lengths(self, stored: NDArray[Any], first_row: int) -> None:
        wrong = (stored < 0) & (stored != schema.MISSING_INT["int32"])
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InputError(f"{self.where('stored_length')} is {stored[at]} in row {first_row + at}; a length is 0 or more")


@dataclass(frozen=True, slots=True, eq=False)
class ListFragment:
    """A row group of a file with one row per sequence."""

    columns: ListColumns
    group: int
    first_row: int
    mean_tokens: float

    def read(self, columns: Sequence[str], start: int, stop: int) -> Iterator[Rows]:
        """Decode the rows ``start`` to ``stop`` of the row group."""
        wanted = list(columns)
        if "stored_length" in self.columns.names and "stored_length" not in wanted:
            wanted.append("stored_length")
        needed = [self.columns.names[name] for name in wanted]
        if self.columns.lengths_from is not None and not any(is_token(name) or name == "stored_length" for name in wanted):
            needed.append(self.columns.names[self.columns.lengths_from])
        if not needed:
            yield Rows({}, np.zeros(stop - start + 1, np.int64))
            return
        size = max(1, int(PIECE_TOKENS / max(self.mean_tokens, 1.0)))
        at = 0
        for piece in self.columns.source.stream(self.group, needed, size):
            first, last = max(start - at, 0), min(stop - at, piece.num_rows)
            if first < last:
                yield self.columns.rows(piece.slice(first, last - first), wanted, self.first_row + at + first)
            at += piece.num_rows
            if at >= stop:
                return


@dataclass(frozen=True, slots=True, eq=False)
class _Lists:
    """A list column: lengths ``[n]``, which rows are not null ``[n]``, and the values of those rows, flat."""

    lengths: NDArray[np.int64]
    valid: NDArray[np.bool_]
    values: pa.Array

    @classmethod
    def of(cls, array: pa.Array, where: str, first_row: int) -> _Lists:
        import pyarrow as pa
        import pyarrow.compute as pc

        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if pa.types.is_null(array.type):
            n = len(array)
            return cls(np.zeros(n, np.int64), np.zeros(n, np.bool_), pa.nulls(0))
        if not is_list(array.type):
            raise InputError(
                f"{where} has one value per row (row {first_row}: {array[0].as_py()!r}) where a list of its tokens belongs; "
                "store lists, or one row per token with a 'sequence' column"
            )
        if is_list(array.type.value_type):
            raise InputError(f"{where} holds lists of lists; store one flat list of tokens per row")
        lengths = pc.list_value_length(array)
        valid = np.asarray(array.is_valid())
        return cls(np.asarray(lengths.fill_null(0)).astype(np.int64), valid, array.flatten())


def _values(found: _Lists, name: str, splits: NDArray[np.int64], where: str, first_row: int) -> NDArray[Any]:
    column = schema.column(name)
    if column is None:
        raise KeyError(name)
    own = splits_of(found.lengths)

    def locate(index: int) -> str:
        row = int(np.searchsorted(own, index, side="right")) - 1
        return f"row {first_row + row}, position {index - int(own[row])}"

    values = decode(found.values, column, where, locate)
    if own[-1] == splits[-1]:
        return values
    # Rows whose list is null while other columns have tokens.
    filled = missing_values(name, int(splits[-1]))
    filled[np.repeat(found.valid, np.diff(splits))] = values
    return filled
