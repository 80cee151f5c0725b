"""Reads a flat table: one row per token, the rows of a sequence together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor import schema
from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.store.decode import decode, is_list
from rl_doctor.store.index import falls
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.plan import Opened, Segment
from rl_doctor.store.rows import Rows, concatenate, is_token

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS: Final = 1 << 19
POSITIONS: Final = ("position", "pos", "token_index", "token_idx", "token_pos", "token_position", "t")
"""Names under which files count the tokens of a sequence from 0. No canonical column: only read where no id tells sequences."""
_KEYS: Final = ("step", "sequence", "uid", "epoch", "minibatch", "microbatch", "rank")
"""A change in one of these from one row to the next begins a sequence."""


_POSITION: Final = "position"
_COUNT: Final = schema.Column(_POSITION, "int64", "token", "", "Place of the token in its sequence, from 0.")


def open_flat(source: ParquetInput, names: Mapping[str, str], position: str | None = None) -> Opened:
    """Open a table with one row per token.

    Args:
        source: the file.
        names: canonical name -> name in the file: ``step``, and ``sequence`` or ``uid`` unless ``position`` is given.
        position: name in the file of a column that counts the tokens of each sequence from 0.

    Raises:
        InputError: a key is null, the rows of a sequence are not together, or the positions do not count.
    """
    for found in names.values():
        if is_list(source.schema.field(found).type):
            raise InputError(f"{source.path}: column {found!r} holds lists in a table with one row per token; flatten it")
    table = _Table(source, names if position is None else {**names, _POSITION: position})
    segments: list[Segment] = []
    rows: list[int] = []
    stretches: list[tuple[int, int, int]] = []
    for stretch in _stretches(table):
        segments.append(Segment(stretch.step, 0, stretch.first, stretch.first + stretch.sequences, stretch.rows))
        rows.append(stretch.row)
        stretches.append((stretch.step, stretch.step, 0))
    at = {segment.start: row for segment, row in zip(segments, rows, strict=True)}
    columns = frozenset(names) | {"stored_length"}
    return Opened([FlatFragment(table, at)], segments, columns, falls(stretches))


@frozen(eq=False)
class _Table:
    """The file's columns, read as a stream of pieces of neighbouring rows."""

    source: ParquetInput
    names: Mapping[str, str]

    @property
    def keys(self) -> list[str]:
        """Canonical names of the keys that the table has."""
        found = [name for name in (*_KEYS, _POSITION) if name in self.names]
        return [name for name in found if name != "uid"] if "sequence" in found else found

    def stream(self, columns: Sequence[str], from_row: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        """Decoded pieces, each with the row of the file at which it starts, from ``from_row`` on."""
        first = 0
        for group in range(self.source.row_groups):
            count = self.source.rows_of(group)
            if first + count > from_row:
                at = first
                for piece in self.source.stream(group, [self.names[name] for name in columns], PIECE_ROWS):
                    skip = min(max(from_row - at, 0), piece.num_rows)
                    if skip < piece.num_rows:
                        yield at + skip, self._arrays(piece.slice(skip), columns, at + skip)
                    at += piece.num_rows
            first += count

    def _arrays(self, piece: pa.RecordBatch, columns: Sequence[str], row: int) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}
        for name in columns:
            where = f"{self.source.path}: column {self.names[name]!r}"
            array = piece.column(self.names[name])
            column = _COUNT if name == _POSITION else schema.canonical(name)
            found[name] = decode(array, column, where, lambda index: f"row {row + index}")
        return found


@dataclass(slots=True)
class _Stretch:
    """Neighbouring rows of one step: first row, first sequence, and how many there are of both."""

    step: int
    row: int
    first: int
    rows: int = 0
    sequences: int = 0


def _stretches(table: _Table) -> Iterator[_Stretch]:
    current: _Stretch | None = None
    last: dict[str, Any] | None = None
    seen: set[tuple[int, ...]] = set()
    total = 0
    for row, arrays in table.stream(table.keys, 0):
        _check_keys(table, arrays, row)
        begins = _begins(arrays, last)
        if _POSITION in arrays:
            _check_counting(table, arrays[_POSITION], begins, last, row)
        last = {name: values[-1] for name, values in arrays.items()}
        steps = arrays["step"]
        cuts = np.concatenate([[0], np.flatnonzero(np.diff(steps)) + 1, [len(steps)]])
        for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            if current is None or current.step != int(steps[start]):
                if current is not None:
                    yield current
                current = _Stretch(int(steps[start]), row + start, total)
                seen = set()
            fresh = np.flatnonzero(begins[start:stop]) + start
            current.rows += stop - start
            current.sequences += len(fresh)
            total += len(fresh)
            if "sequence" in arrays:
                _check_together(table, arrays, fresh, seen, row)
    if current is not None:
        yield current


def _begins(arrays: Mapping[str, NDArray[Any]], last: Mapping[str, Any] | None) -> NDArray[np.bool_]:
    """Rows at which a sequence begins, given the keys of the row before the first."""
    begins = np.zeros(len(arrays["step"]), np.bool_)
    keys = {name: values for name, values in arrays.items() if name != _POSITION}
    begins[0] = last is None or any(values[0] != last[name] for name, values in keys.items())
    for values in keys.values():
        begins[1:] |= values[1:] != values[:-1]
    if _POSITION in arrays:
        begins |= arrays[_POSITION] == 0
    return begins


def _check_counting(
    table: _Table, position: NDArray[np.int64], begins: NDArray[np.bool_], last: Mapping[str, Any] | None, row: int
) -> None:
    """Positions are 0 where a sequence begins and one more than before elsewhere: only then do they tell sequences apart."""
    before = np.concatenate([[-1 if last is None else last[_POSITION]], position[:-1]])
    wrong = position != np.where(begins, 0, before + 1)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InputError(
            f"{table.source.path}: column {table.names[_POSITION]!r} is {position[at]} in row {row + at}, where "
            f"{0 if begins[at] else before[at] + 1} would count the tokens of a sequence; add a 'sequence' column"
        )


def _check_keys(table: _Table, arrays: Mapping[str, NDArray[Any]], row: int) -> None:
    identity = next((name for name in ("sequence", "uid", _POSITION) if name in arrays), "step")
    for name in ("step", identity):
        values = arrays[name]
        missing = values == np.array(None) if name == "uid" else values == schema.MISSING_INT["int64"]
        if missing.any():
            raise InputError(
                f"{table.source.path}: column {table.names[name]!r} is null in row {row + int(np.argmax(missing))}; "
                "every token needs its step and its sequence"
            )


def _check_together(
    table: _Table, arrays: Mapping[str, NDArray[Any]], fresh: NDArray[np.int64], seen: set[tuple[int, ...]], row: int
) -> None:
    keys = np.stack([arrays[name][fresh] for name in arrays if name not in ("step", "uid")], axis=1)
    for at, key in zip(fresh.tolist(), map(tuple, keys.tolist()), strict=True):
        if key in seen:
            raise InputError(
                f"{table.source.path}: the rows of sequence {arrays['sequence'][at]} are not together (again in row {row + at}); "
                "sort the table by step, sequence and position"
            )
        seen.add(key)


@frozen(eq=False)
class FlatFragment:
    """The whole of a flat table; ``row_of`` has the row at which the first sequence of each segment begins."""

    table: _Table
    row_of: Mapping[int, int]

    def read(self, columns: Sequence[str], start: int, stop: int) -> Iterator[Rows]:
        """Decode the sequences ``start`` to ``stop``; ``start`` begins a segment."""
        wanted = [name for name in dict.fromkeys([*columns, *self.table.keys]) if name in self.table.names]
        held: list[Rows] = []
        last: dict[str, Any] | None = None
        left = stop - start
        for _, arrays in self.table.stream(wanted, self.row_of[start]):
            keys = {name: arrays[name] for name in self.table.keys}
            begins = np.flatnonzero(_begins(keys, last))
            last = {name: values[-1] for name, values in keys.items()}
            for rows in self._pieces(arrays, begins, columns, held):
                yield rows.slice(0, min(left, rows.n_sequences))
                left -= min(left, rows.n_sequences)
                if not left:
                    return
        if held:
            yield _joined(held)

    def _pieces(
        self, arrays: Mapping[str, NDArray[Any]], begins: NDArray[np.int64], columns: Sequence[str], held: list[Rows]
    ) -> Iterator[Rows]:
        """Whole sequences so far; the last one, which may go on in the next piece, stays in ``held``."""
        n = len(next(iter(arrays.values())))
        if len(begins) == 0 or begins[0] > 0:
            end = int(begins[0]) if len(begins) else n
            held.append(self._rows(arrays, columns, np.array([0]), end))
        if not len(begins):
            return
        if held:
            yield _joined(held)
            held.clear()
        if len(begins) > 1:
            yield self._rows(arrays, columns, begins[:-1], int(begins[-1]))
        held.append(self._rows(arrays, columns, begins[-1:], n))

    def _rows(self, arrays: Mapping[str, NDArray[Any]], columns: Sequence[str], begins: NDArray[np.int64], end: int) -> Rows:
        first = int(begins[0])
        splits = np.append(begins, end).astype(np.int64) - first
        found = {
            name: arrays[name][first:end] if is_token(name) else arrays[name][begins]
            for name in columns
            if name in self.table.names and name != "stored_length"
        }
        if "stored_length" in columns:
            found["stored_length"] = np.diff(splits).astype(np.int32)
        return Rows(found, splits)


def _joined(held: Sequence[Rows]) -> Rows:
    """One sequence whose rows came in several pieces."""
    if len(held) == 1:
        return held[0]
    tokens = concatenate(held)
    columns = {name: values if is_token(name) else values[:1] for name, values in tokens.columns.items()}
    if "stored_length" in columns:
        columns["stored_length"] = np.array([tokens.n_tokens], np.int32)
    return Rows(columns, np.array([0, tokens.n_tokens], np.int64))
