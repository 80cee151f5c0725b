"""One part of a run folder: its footers, and the decoding of its row groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor import schema
from rl_doctor.errors import ChangedError, InputError
from rl_doctor.frozen import frozen
from rl_doctor.schema import SCHEMA_VERSION
from rl_doctor.store.decode import decode
from rl_doctor.store.info import parse_json
from rl_doctor.store.layout import PART_METADATA_KEY, PartName
from rl_doctor.store.metric_log import Record
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.presence import Presence, chunks_of
from rl_doctor.store.rows import Rows, is_token, missing_values, splits_of

if TYPE_CHECKING:
    import pyarrow as pa

CONTEXT_KEYS: Final = ("step", "epoch", "minibatch", "microbatch", "rank", "window")
"""Columns that identify a micro-batch: they join ``contexts`` to ``sequences``."""
_METRIC_NAMES: Final = ("step", "name", "value", "split")


@frozen(eq=False)
class Part:
    """A sequences part with its matching tokens and contexts parts.

    Attributes:
        folder: the run folder.
        name: name of the sequences part.
        rows: number of sequences of each row group.
        tokens: number of tokens of each row group.
        steps: step of each row group.
        completes: steps that the part completes for its rank, increasing.
        attempt: how often the rank had gone back to an earlier step in its session when the part was written.
        columns: canonical column -> table that has it.
        unknown: names that the schema does not know.
        tokens_version: how often tokens were taken out of the part.
        tables: the tables that it has.
    """

    folder: Path
    name: PartName
    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    steps: tuple[int, ...]
    completes: tuple[int, ...]
    attempt: int
    columns: Mapping[str, str]
    unknown: tuple[str, ...]
    tokens_version: int
    tables: tuple[str, ...] = ("sequences",)

    def open(self, table: str) -> ParquetInput:
        """Open one of its tables."""
        return ParquetInput.open(self._path(table))

    @property
    def files(self) -> list[str]:
        """Names of its tables' files."""
        return [self._file(table) for table in self.tables]

    @property
    def paths(self) -> list[Path]:
        """Where its tables lie."""
        return [self.folder / name for name in self.files]

    def _file(self, table: str) -> str:
        return str(self.name.of(table, self.tokens_version if table == "tokens" else 0))

    def _path(self, table: str) -> Path:
        return self.folder / self._file(table)

    def has_changed(self) -> bool:
        """Whether tokens were taken out of the part since it was opened."""
        try:
            return int(footer(self.open("sequences")).get("tokens_version", 0)) != self.tokens_version
        except InputError:
            return False


def open_part(folder: Path, name: PartName, presence: Presence) -> Part:
    """Read the footers of a sequences part and of the parts that belong to it.

    Raises:
        InputError: one of them is missing, torn, or written by a newer version.
    """
    sequences = ParquetInput.open(folder / str(name))
    document = footer(sequences)
    version = int(document.get("tokens_version", 0))
    tables = {"sequences": sequences}
    for table in document["tables"]:
        if table != "sequences":
            tables[table] = ParquetInput.open(folder / str(name.of(table, version if table == "tokens" else 0)))
    groups = range(sequences.row_groups)
    rows = tuple(sequences.rows_of(group) for group in groups)
    tokens = tuple(0 for _ in groups)
    if "tokens" in tables:
        if tables["tokens"].row_groups != len(rows):
            raise InputError(f"{tables['tokens'].path}: does not fit its sequences part (row groups differ); record again")
        tokens = tuple(tables["tokens"].rows_of(group) for group in groups)
    columns: dict[str, str] = {}
    unknown: list[str] = []
    for table, source in tables.items():
        found = source.schema
        presence.add(source.file.metadata, found)
        for column in found.names:
            if schema.column(column) is None:
                unknown.append(column)
            else:
                columns.setdefault(column, table)
    steps = tuple(step_of(sequences, group) for group in groups)
    completes, attempt = tuple(document["completes"]), int(document.get("attempt", 0))
    return Part(folder, name, rows, tokens, steps, completes, attempt, columns, tuple(unknown), version, tuple(tables))


def footer(source: ParquetInput) -> dict[str, Any]:
    """What a sequences part says in its footer: the steps that it completes, its tables, the version of its tokens."""
    own = source.metadata(schema.METADATA_KEY)
    version = parse_json(own, str(source.path)).get("schema_version", 1) if own is not None else 1
    if version > SCHEMA_VERSION:
        raise InputError(f"{source.path}: schema version {version} is newer than {SCHEMA_VERSION}; install a newer rl-doctor")
    text = source.metadata(PART_METADATA_KEY)
    if text is None:
        raise InputError(f"{source.path}: its footer does not say which tables belong to it; it was not written by rl-doctor")
    document: dict[str, Any] = parse_json(text, str(source.path))
    return document


def step_of(source: ParquetInput, group: int) -> int:
    """The one step of a row group, from its footer."""
    for chunk in chunks_of(source.file.metadata, group, "step"):
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
            return int(statistics.min)
    if not source.rows_of(group):
        return 0
    raise InputError(f"{source.path}: row group {group} holds several steps; it was not written by rl-doctor")


@frozen(eq=False)
class PartFragment:
    """A row group of a part: whole sequences of one step."""

    part: Part
    group: int

    def read(self, columns: Sequence[str], start: int, stop: int) -> Iterator[Rows]:
        """Decode the sequences ``start`` to ``stop`` of the row group.

        Raises:
            ChangedError: tokens were taken out of the part since it was opened.
            InputError: it cannot be read.
        """
        try:
            rows = self._read(columns)
        except InputError as error:
            if self.part.has_changed():
                raise ChangedError(f"{self.part.folder}: was thinned while it was read; read it again") from error
            raise
        yield rows if (start, stop) == (0, rows.n_sequences) else rows.slice(start, stop)

    def _read(self, columns: Sequence[str]) -> Rows:
        homes = self.part.columns
        own = [name for name in columns if homes.get(name) == "sequences"]
        contexts = [name for name in columns if homes.get(name) == "contexts"]
        keys = [name for name in CONTEXT_KEYS if homes.get(name) == "sequences"] if contexts else []
        sequences = self._decode("sequences", [*dict.fromkeys([*own, *keys, "stored_length"])])
        splits = splits_of(sequences["stored_length"])
        if splits[-1] != self.part.tokens[self.group]:
            raise InputError(
                f"{self.part.folder / str(self.part.name)}: column 'stored_length' adds up to {splits[-1]} tokens in row group "
                f"{self.group}, the tokens part has {self.part.tokens[self.group]}; the folder mixes files of different runs"
            )
        found = {name: sequences[name] for name in own}
        if tokens := [name for name in columns if homes.get(name) == "tokens"]:
            found |= self._decode("tokens", tokens)
        if contexts:
            found |= self._join(contexts, {name: sequences[name] for name in keys})
        for name in columns:
            if name not in found:
                found[name] = missing_values(name, int(splits[-1]) if is_token(name) else len(splits) - 1)
        return Rows(found, splits)

    def _decode(self, table: str, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        source = self.part.open(table)
        return _arrays(source.read(self.group, names), source.path)

    def _join(self, names: Sequence[str], keys: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Context values of each sequence, by the keys of its micro-batch."""
        source = self.part.open("contexts")
        there = source.schema.names
        shared = [name for name in keys if name in there]
        table: dict[str, list[NDArray[Any]]] = {name: [] for name in [*shared, *names]}
        for group in range(source.row_groups):
            for name, values in _arrays(source.read(group, [*shared, *names]), source.path).items():
                table[name].append(values)
        joined = {name: np.concatenate(values) for name, values in table.items()}
        ours = np.stack([keys[name].astype(np.int64) for name in shared], axis=1)
        theirs = np.stack([joined[name].astype(np.int64) for name in shared], axis=1)
        _, codes = np.unique(np.concatenate([theirs, ours]), axis=0, return_inverse=True)
        codes = codes.reshape(-1)
        row = np.full(codes.max() + 1, -1, np.int64)
        row[codes[: len(theirs)]] = np.arange(len(theirs))
        at = row[codes[len(theirs) :]]
        found: dict[str, NDArray[Any]] = {}
        for name in names:
            values = missing_values(name, len(ours))
            values[at >= 0] = joined[name][at[at >= 0]]
            found[name] = values
        return found


def _arrays(table: pa.Table, path: Path) -> dict[str, NDArray[Any]]:
    def locate(index: int) -> str:
        return f"row {index} of its row group"

    return {
        name: decode(table.column(name), schema.canonical(name), f"{path}: column {name!r}", locate)
        for name in table.column_names
    }


def open_metrics(path: Path) -> ParquetInput:
    """Open a metrics part.

    Raises:
        InputError: it is torn, or its columns are not those of a metrics part.
    """
    source = ParquetInput.open(path)
    names = source.schema.names  # made anew each time that it is asked for
    if lacking := [name for name in _METRIC_NAMES if name not in names]:
        raise InputError(f"{path}: column {lacking[0]!r} is missing; it was not written by rl-doctor")
    return source


def read_metrics(source: ParquetInput) -> Iterator[Record]:
    """Read a metrics part."""
    for group in range(source.row_groups):
        table = source.read(group, _METRIC_NAMES)
        steps, keys, values, splits = (table.column(name).to_pylist() for name in _METRIC_NAMES)
        for step, name, value, split in zip(steps, keys, values, splits, strict=True):
            yield step, name, float("nan") if value is None else value, split or "train"
