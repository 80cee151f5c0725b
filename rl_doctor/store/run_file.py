"""Reads a file with one row per sequence and pass, token columns as lists: a run file, or an export of padded tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_doctor import schema
from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.schema import canonical
from rl_doctor.store import buffers
from rl_doctor.store.aliases import ATTENTION_MASK, FULL_WIDTH
from rl_doctor.store.alignment import MASKS
from rl_doctor.store.decode import decode, is_list
from rl_doctor.store.index import falls
from rl_doctor.store.lists import Lists, common_lengths
from rl_doctor.store.normalise import normalise
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.plan import Opened, Segment, segments_of
from rl_doctor.store.presence import chunks_of
from rl_doctor.store.rows import Rows, is_token, splits_of

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_TOKENS: Final = 1 << 20
"""About how many tokens are decoded at once."""
_FLAGS: Final = (*MASKS, "is_padding", "chosen")


@frozen(eq=False)
class ListTable:
    """The columns of a file with one row per sequence.

    Attributes:
        source: the file.
        names: canonical name -> name in the file.
        whole: token columns without a null in any row: each tells the number of tokens.
        padded: the lists are padded and have to be cut (see ``normalise``).
    """

    source: ParquetInput
    names: Mapping[str, str]
    whole: frozenset[str]
    padded: bool

    @property
    def tokens(self) -> list[str]:
        """Canonical token columns."""
        return [name for name in self.names if is_token(name)]

    def where(self, name: str) -> str:
        """What messages call a column."""
        return f"{self.source.path}: column {self.names[name]!r}"

    def needed(self, columns: Collection[str]) -> list[str]:
        """What must be decoded to give these columns: also what tells the number of tokens."""
        wanted = [name for name in columns if name in self.names]
        if self.padded:
            extra = [ATTENTION_MASK, *MASKS, "prompt_length", "response_length", "prompt_loss_tokens", "left_padding"]
            tensors = [name for name in self.tokens if name not in MASKS and name != "token_id"]
            # One tensor beside the masks, so that its width is known whichever columns are asked for.
            extra += tensors[:1] or [name for name in self.tokens if name == "token_id"]
            # And always the same log-probabilities, which tell whether the columns cover the prompt.
            extra += [name for name in schema.LOGPROBS if name in self.names][:1]
            return list(dict.fromkeys([*wanted, *(name for name in extra if name in self.names)]))
        if "stored_length" in self.names:
            return list(dict.fromkeys([*wanted, "stored_length"]))
        if self.whole.isdisjoint(wanted):
            wanted += [min(self.whole)] if self.whole else self.tokens
        return list(dict.fromkeys(wanted))

    def rows(self, table: pa.RecordBatch, columns: Collection[str], first_row: int) -> Rows:
        """Turn decoded columns of neighbouring rows into ``Rows``.

        Args:
            table: has the columns of ``needed`` by their names in the file.
            columns: canonical names to give.
            first_row: row of the file at which the table starts.
        """
        scalars: dict[str, NDArray[Any]] = {}
        lists: dict[str, Lists] = {}
        for name in self.needed(columns):
            array = table.column(self.names[name])
            if is_token(name) or name == ATTENTION_MASK:
                lists[name] = Lists.of(array, self.where(name), first_row)
            else:
                scalars[name] = self.scalar(array, name, first_row)
        rows = self._cut(scalars, lists) if self.padded else self._trusted(scalars, lists)
        found = {name: values for name, values in rows.columns.items() if name in columns}
        if "stored_length" in columns and self.tokens:
            found["stored_length"] = np.diff(rows.splits).astype(np.int32)
        return Rows(found, rows.splits)

    def scalar(self, array: pa.Array, name: str, first_row: int) -> NDArray[Any]:
        """Decode a sequence column.

        Raises:
            InputError: it holds lists, or values of the wrong type.
        """
        if is_list(array.type):
            raise InputError(f"{self.where(name)} holds lists where one value per sequence belongs; reduce it to one value")
        return decode(array, canonical(name), self.where(name), lambda index: f"row {first_row + index}")

    def _trusted(self, scalars: Mapping[str, NDArray[Any]], lists: Mapping[str, Lists]) -> Rows:
        stored = scalars.get("stored_length")
        if not lists and (stored is None or not self.tokens):
            n = len(next(iter(scalars.values()), ()))
            return Rows(scalars, np.zeros(n + 1, np.int64))
        by_name = {self.names[name]: one for name, one in lists.items()}
        splits = splits_of(common_lengths(by_name, stored, self.names.get("stored_length", "")))
        tokens = {name: one.ragged(canonical(name), splits) for name, one in lists.items()}
        return Rows({**scalars, **tokens}, splits)

    def _cut(self, scalars: Mapping[str, NDArray[Any]], lists: Mapping[str, Lists]) -> Rows:
        tensors = {self.names[name]: one for name, one in lists.items() if name not in (ATTENTION_MASK, *MASKS, "token_id")}
        common_lengths(tensors, None, "")
        flags = canonical("response_mask")
        arrays: dict[str, ArrayLike] = {
            name: one.padded(flags if name == ATTENTION_MASK else canonical(name)) for name, one in lists.items()
        }
        arrays |= {name: values for name, values in scalars.items() if name != "stored_length"}
        full = self.names.get("token_id") in FULL_WIDTH and "prompt_length" in scalars and _as_wide(lists, "token_id")
        return normalise(arrays, full_width=full, where=str(self.source.path))


def _as_wide(lists: Mapping[str, Lists], name: str) -> bool:
    """Whether no list column is narrower than that one."""
    if name not in lists:
        return False
    width = lists[name].lengths.max(initial=0)
    return all(one.lengths.max(initial=0) >= width for one in lists.values())


@frozen(eq=False)
class ListFragment:
    """A row group of a file with one row per sequence."""

    table: ListTable
    group: int
    first_row: int
    mean_tokens: float

    def read(self, columns: Sequence[str], start: int, stop: int) -> Iterator[Rows]:
        """Decode the rows ``start`` to ``stop`` of the row group, in pieces that do not depend on the two."""
        needed = [self.table.names[name] for name in self.table.needed(columns)]
        if not needed:
            yield Rows({}, np.zeros(stop - start + 1, np.int64))
            return
        size = max(1, int(PIECE_TOKENS / max(self.mean_tokens, 1.0)))
        at = 0
        for piece in self.table.source.stream(self.group, needed, size):
            first, last = max(start - at, 0), min(stop - at, piece.num_rows)
            if first < last:
                rows = self.table.rows(piece, columns, self.first_row + at)
                yield rows if last - first == rows.n_sequences else rows.slice(first, last)
            at += piece.num_rows
            if at >= stop:
                return


def open_lists(source: ParquetInput, names: Mapping[str, str]) -> Opened:
    """Open a file with one row per sequence.

    Args:
        source: the file.
        names: canonical name -> name in the file.

    Raises:
        InputError: a step is null, or the columns do not fit together.
    """
    tokens = [name for name in names if is_token(name)]
    nulls = {name: _nulls(source, names[name]) for name in tokens}
    table = ListTable(source, names, frozenset(name for name in tokens if not nulls[name]), _is_padded(source, names, tokens))
    fragments: list[ListFragment] = []
    segments: list[Segment] = []
    stretches: list[tuple[int, int, int]] = []
    first_row = 0
    for group in range(source.row_groups):
        rows = source.rows_of(group)
        if rows:
            steps = _steps(table, group, first_row)
            mean = max((_values_in(source, group, names[name]) for name in tokens), default=0) / rows
            segments += segments_of(steps, len(fragments), np.full(rows, int(mean), np.int64))
            stretches.append((int(steps[0]), int(steps[-1]), int((np.diff(steps) < 0).sum())))
            fragments.append(ListFragment(table, group, first_row, mean))
        first_row += rows
    columns = _given(table, fragments[0])
    return Opened(fragments, segments, columns, falls(stretches), partial(_null_notes, table))


def _given(table: ListTable, first: ListFragment) -> frozenset[str]:
    """Canonical columns that reading gives; what ``normalise`` adds is found out from the first row."""
    names = set(table.names) - {ATTENTION_MASK}
    if table.tokens:
        names.add("stored_length")
    if table.padded:
        derived = ["response_length", "left_padding", "prompt_loss_tokens"]
        piece = next(table.source.stream(first.group, [table.names[name] for name in table.needed(table.tokens)], 64))
        names |= table.rows(piece, [*derived, *table.tokens], first.first_row).columns.keys()
    return frozenset(names)


def _is_padded(source: ParquetInput, names: Mapping[str, str], tokens: Sequence[str]) -> bool:
    """Whether lists have to be cut: an attention mask is there, or all are equally long and a mask or length tells where."""
    import pyarrow as pa

    lists = [name for name in tokens if is_list(source.schema.field(names[name]).type)]
    if not lists or ("stored_length" in names and ATTENTION_MASK not in names):
        return False
    if ATTENTION_MASK in names or (names.get("token_id") in FULL_WIDTH and "prompt_length" in names):
        return True
    if {"response_mask", "loss_mask", "response_length"}.isdisjoint(names):
        return False
    fixed = any(pa.types.is_fixed_size_list(source.schema.field(names[name]).type) for name in lists)
    return fixed or (source.file.metadata.num_rows > 1 and _equally_long(source, names[lists[0]]))


def _equally_long(source: ParquetInput, name: str) -> bool:
    widths = set()
    for group in range(source.row_groups):
        rows = source.rows_of(group)
        if rows:
            widths.add(_values_in(source, group, name) / rows)
    if len(widths) != 1 or not next(iter(widths)).is_integer():
        return False
    width = int(widths.pop())
    for group in range(source.row_groups):
        for piece in source.stream(group, [name], max(1, PIECE_TOKENS // max(width, 1))):
            lengths = Lists.of(piece.column(0), name, 0).lengths
            if (lengths != width).any():
                return False
    return True


def _steps(table: ListTable, group: int, first_row: int) -> NDArray[np.int64]:
    column = table.source.read(group, [table.names["step"]]).column(0)
    values = table.scalar(column, "step", first_row)
    missing = values == schema.MISSING_INT["int64"]
    if missing.any():
        row = first_row + int(np.argmax(missing))
        raise InputError(f"{table.where('step')} is null in row {row}; every row needs its optimizer step")
    return values


def _values_in(source: ParquetInput, group: int, name: str) -> int:
    return sum(chunk.num_values for chunk in chunks_of(source.file.metadata, group, name))


def _nulls(source: ParquetInput, name: str) -> bool:
    """Whether a column may have a null; an empty list counts as one in the footer."""
    for group in range(source.row_groups):
        for chunk in chunks_of(source.file.metadata, group, name):
            if chunk.statistics is None or not chunk.statistics.has_null_count or chunk.statistics.null_count:
                return True
    return False


def _null_notes(table: ListTable) -> Iterator[str]:
    """A note on each flag column with nulls: they count as not set."""
    for name in _FLAGS:
        if name not in table.names or not _nulls(table.source, table.names[name]):
            continue
        rows, first, at = 0, -1, 0
        for group in range(table.source.row_groups):
            for piece in table.source.stream(group, [table.names[name]], 4096):
                missing = _null_rows(piece.column(0))
                if missing.any() and not rows:
                    first = at + int(np.argmax(missing))
                rows += int(missing.sum())
                at += piece.num_rows
        if rows:
            where = f"row {first}" if rows == 1 else f"{rows} rows (first: row {first})"
            yield f"{table.names[name]} is null in {where}; there it counts as not set"


def _null_rows(array: pa.Array) -> NDArray[np.bool_]:
    missing = ~buffers.validity(array)
    if is_list(array.type):
        inner = ~buffers.validity(buffers.list_values(array))
        if inner.any():
            row = np.repeat(np.arange(len(array)), Lists.of(array, "", 0).lengths)
            missing = missing.copy()
            missing[row[inner]] = True
    return missing
