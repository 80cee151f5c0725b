"""Writes a run folder: immutable part files, renamed into place once they are durable."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor import schema
from rl_doctor.errors import DoctorError, InputError, UsageError
from rl_doctor.schema import RunInfo
from rl_doctor.store import encode, layout
from rl_doctor.store.info import info_to_json, parse_info, parse_json
from rl_doctor.store.part import CONTEXT_KEYS
from rl_doctor.store.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_TOKENS: Final = 1 << 20
_SEQUENCE_BITS: Final = 32
_RANK_BITS: Final = 16


class RunWriter:
    """Writes the parts of one rank in one session.

    What ``write_part`` and ``write_metrics`` were given is on disk and survives a kill when they return.

    Args:
        path: the run folder; created if it is not there.
        info: the run's description; rank 0 writes it to ``run.json``.
        rank: the writing rank.
        session: number of the session; by default the newest one if this rank has not written in it, else a new one.

    Raises:
        UsageError: another writer has this session and rank.
        InputError: the path is a file, or its ``run.json`` cannot be read.
    """

    def __init__(self, path: str | Path, info: RunInfo, *, rank: int = 0, session: int | None = None) -> None:
        self.path = Path(path).absolute()
        self.rank = rank
        try:
            layout.make_folder(self.path)
        except FileExistsError as error:
            raise InputError(f"{self.path}: a file stands where the run folder should be; choose another path") from error
        self._info = info
        self._dropped = 0
        self._left_out = {"thinned_steps": 0, "tokenless_steps": 0}
        self._reason: str | None = None
        self._attempt = 0
        self._started = time.time()
        self._before: dict[str, int] = {}
        self.session = self._claim(session)
        self._numbers = dict.fromkeys(("sequences", "metrics"), 0)
        self._next_sequence = (self.session << (_SEQUENCE_BITS + _RANK_BITS)) | (rank << _SEQUENCE_BITS)
        if rank == 0:
            self._info = self._continued(info)
            self._write_info()

    @property
    def info(self) -> RunInfo:
        """The run's description as last written; on other ranks than 0, as given."""
        return self._info

    def write_part(self, rows: Rows, completes: Iterable[int] = ()) -> None:
        """Write rows of one or more steps as one part of each table.

        Args:
            rows: the rows; ``sequence`` is added where it is absent, ``stored_length`` is taken from the splits. May be empty,
                to say that steps are complete for a rank that has no rows in them.
            completes: steps that this rank has completed with this part.
        """
        if "step" not in rows.columns:
            raise UsageError("rows need the column 'step'")
        if (np.diff(rows.columns["step"]) < 0).any():
            rows = rows.take(np.argsort(rows.columns["step"], kind="stable"))
        columns = dict(rows.columns)
        n = rows.n_sequences
        if "sequence" not in columns:
            columns["sequence"] = np.arange(self._next_sequence, self._next_sequence + n, dtype=np.int64)
        self._next_sequence += n
        lengths = np.diff(rows.splits)
        columns["stored_length"] = lengths.astype(np.int32)
        name = layout.PartName(self.session, self.rank, self._numbers["sequences"], "sequences")
        tables = {"sequences": _level(columns, "sequence")}
        if tokens := _level(columns, "token"):
            keys = {key: np.repeat(columns[key], lengths) for key in ("step", "sequence")}
            tables["tokens"] = keys | tokens
        if contexts := _contexts(columns):
            tables["contexts"] = contexts
        groups = _row_groups(columns["step"], rows.splits)
        metadata = {"completes": sorted({int(step) for step in completes}), "tables": sorted(tables), "attempt": self._attempt}
        # The sequences part goes last: a part counts once its sequences are there.
        for table in sorted(tables, key=lambda table: table == "sequences"):
            bounds = {"sequences": groups, "tokens": rows.splits[groups]}.get(table)
            self._write_table(name.of(table), tables[table], bounds, metadata)
        self._numbers["sequences"] += 1

    def write_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write what the trainer logged.

        Args:
            records: mappings with ``step``, ``name``, ``value``; where known ``time``, ``split`` (default "train"), ``source``.
        """
        if not records:
            return
        columns = {
            "step": np.array([int(record["step"]) for record in records], np.int64),
            "time": np.array([_number(record.get("time")) for record in records], np.float64),
            "name": np.array([str(record["name"]) for record in records], np.object_),
            "value": np.array([_number(record["value"]) for record in records], np.float64),
            "split": np.array([record.get("split") or "train" for record in records], np.object_),
            "source": np.array([record.get("source") for record in records], np.object_),
        }
        import pyarrow as pa

        types = {"step": pa.int64(), "time": pa.float64(), "value": pa.float64()}
        table = pa.table({name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()})
        name = layout.PartName(self.session, self.rank, self._numbers["metrics"], "metrics")
        settings = {"compression": encode.COMPRESSION, "use_dictionary": ["name", "split", "source"]}
        self._write_parquet(name, table, None, settings)
        self._numbers["metrics"] += 1

    def begin_attempt(self) -> None:
        """The training goes back to an earlier step: of a step that comes again, the rows written from now on count."""
        self._attempt += 1

    def count_dropped(self, steps: int) -> None:
        """Add to the number of steps that this rank dropped; durable when it returns."""
        self._dropped += steps
        self._check_claim()
        self._write_claim()

    def count_left_out(self, *, thinned: int = 0, tokenless: int = 0) -> None:
        """Add to the numbers of steps whose tokens were taken out again, and were not written at all, to save space; durable.

        Args:
            thinned: steps whose tokens were taken out.
            tokenless: steps that were written without their tokens.
        """
        self._left_out["thinned_steps"] += thinned
        self._left_out["tokenless_steps"] += tokenless
        self._check_claim()
        self._write_claim()

    def update_info(self, info: RunInfo) -> None:
        """Replace the run's description; the sessions so far are kept.

        Of what another rank than 0 says, its claim keeps the type of its log-probabilities, which rank 0 need not know.
        """
        self._info = replace(info, sessions=self._info.sessions, status=info.status or self._info.status)
        self._check_claim()
        if self.rank == 0:
            self._write_info()
        else:
            self._write_claim()

    def set_status(self, status: str, reason: str | None = None) -> None:
        """Set the status of this writer, and on rank 0 that of the run: running, complete or detached.

        Args:
            status: the status.
            reason: why recording ended before the training did, in one line.
        """
        self._info = replace(self._info, status=status)
        self._reason = reason
        self._check_claim()
        self._write_claim()
        if self.rank == 0:
            self._write_info()

    def close(self, status: str | None = "complete") -> None:
        """Set the final status; parts are durable already."""
        if status is not None:
            self.set_status(status)

    def _claim(self, session: int | None) -> int:
        while True:
            chosen = self._next_session() if session is None else session
            try:
                with (self.path / layout.writer_name(chosen, self.rank)).open("x"):
                    pass
            except FileExistsError as error:
                if session is None:
                    continue
                raise UsageError(
                    f"{self.path}: session {chosen}, rank {self.rank} has a writer already; leave session out to start a new one"
                ) from error
            self.session = chosen
            self._write_claim()
            return chosen

    def _next_session(self) -> int:
        names = [path.name for path in self.path.iterdir()]
        parts = [part for name in names if (part := layout.parse_part(name))]
        used = {(part.session, part.rank) for part in parts}
        used |= {claim for name in names if (claim := layout.parse_writer(name))}
        self._before = {layout.writer_name(*writer): 0 for writer in used}
        for part in parts:
            writer = layout.writer_name(part.session, part.rank)
            self._before[writer] = max(self._before.get(writer, 0), part.number + 1)
        newest = max((session for session, _ in used), default=1)
        return newest + 1 if (newest, self.rank) in used else newest

    def _superseded(self) -> bool:
        """Whether a later session has begun, to which ``run.json`` belongs from then on."""
        claims = (layout.parse_writer(path.name) for path in self.path.iterdir())
        return any(claim is not None and claim[0] > self.session for claim in claims)

    def _check_claim(self) -> None:
        """Make sure that this is still the folder in which the session began.

        Raises:
            InputError: it was removed, or replaced by another.
        """
        path = self.path / layout.writer_name(self.session, self.rank)
        try:
            started = parse_json(path.read_bytes(), str(path)).get("started")
        except FileNotFoundError as error:
            raise InputError(f"{self.path}: was removed or emptied while it was recorded into") from error
        if started != self._started:
            raise InputError(f"{self.path}: was replaced while it was recorded into, another run is in it now")

    def _write_claim(self) -> None:
        document = {
            "session": self.session,
            "rank": self.rank,
            "started": self._started,
            "status": self._info.status,
            "dropped_steps": self._dropped,
            **self._left_out,
            "before": self._before,
        }
        if self.rank and self._info.logprob_dtype is not None:
            document["logprob_dtype"] = self._info.logprob_dtype
        if self._reason is not None:
            document["reason"] = self._reason
        layout.write_json_durably(self.path / layout.writer_name(self.session, self.rank), document)

    def _continued(self, info: RunInfo) -> RunInfo:
        entry: dict[str, Any] = {"session": self.session, "started": self._started}
        if info.world_size is not None:
            entry["world_size"] = info.world_size
        earlier = RunInfo()
        path = self.path / layout.INFO_NAME
        if path.exists():
            try:
                earlier = parse_info(path.read_bytes(), str(path))
            except DoctorError as error:
                raise InputError(f"{error}; or record into another folder") from error
        before = [dict(item) for item in earlier.sessions if item.get("session") != self.session]
        config = info_to_json(earlier)["config"]
        if before and config != json.loads(json.dumps(info_to_json(info)["config"])):
            before[-1]["config"] = config
        sessions = (*before, entry)
        unknown = info.unknown_columns or earlier.unknown_columns
        return replace(info, sessions=sessions, status=info.status or "running", unknown_columns=unknown)

    def _write_info(self) -> None:
        if not self._superseded():
            layout.write_json_durably(self.path / layout.INFO_NAME, info_to_json(self._info))

    def _write_table(
        self,
        name: layout.PartName,
        columns: Mapping[str, NDArray[Any]],
        bounds: NDArray[np.int64] | None,
        metadata: Mapping[str, Any],
    ) -> None:
        table = encode.table(columns).replace_schema_metadata(
            {
                layout.PART_METADATA_KEY: json.dumps(metadata),
                schema.METADATA_KEY: json.dumps({"schema_version": schema.SCHEMA_VERSION}),
            }
        )
        self._write_parquet(name, table, bounds, encode.parquet_settings(columns))

    def _write_parquet(
        self, name: layout.PartName, table: pa.Table, bounds: NDArray[np.int64] | None, settings: Mapping[str, Any]
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        cuts = [0, table.num_rows] if bounds is None else bounds.tolist()
        # Arrow calls into Python for a file of Python's, which aborts a process whose interpreter is just going.
        encoded = pa.BufferOutputStream()
        with pq.ParquetWriter(encoded, table.schema, **settings) as writer:
            for start, stop in itertools.pairwise(cuts):
                writer.write_table(table.slice(start, stop - start), row_group_size=max(stop - start, 1))
        content = memoryview(encoded.getvalue())
        self._check_claim()
        layout.write_durably(self.path / str(name), lambda file: file.write(content))


def _level(columns: Mapping[str, NDArray[Any]], level: str) -> dict[str, NDArray[Any]]:
    found = {name: schema.column(name) for name in columns}
    return {name: columns[name] for name, column in found.items() if column is not None and column.level == level}


def _contexts(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    values = _level(columns, "context")
    if not values or not len(columns["step"]):
        return {}
    keys = {name: columns[name] for name in CONTEXT_KEYS if name in columns}
    stacked = np.stack([array.astype(np.int64) for array in keys.values()], axis=1)
    _, first = np.unique(stacked, axis=0, return_index=True)
    first.sort()
    return {name: array[first] for name, array in (keys | values).items()}


def _row_groups(steps: NDArray[np.int64], splits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bounds of row groups: whole sequences of one step, about ``ROW_GROUP_TOKENS`` tokens at most."""
    n = len(steps)
    if n == 0:
        return np.array([0, 0], np.int64)
    change = np.flatnonzero(np.diff(steps)) + 1
    starts = np.concatenate([[0], change])
    bounds: list[int] = []
    for start, stop in zip(starts.tolist(), [*change.tolist(), n], strict=True):
        at = start
        while at < stop:
            bounds.append(at)
            full = int(np.searchsorted(splits, splits[at] + ROW_GROUP_TOKENS, side="right")) - 1
            at = max(at + 1, min(full, stop))
    return np.array([*bounds, n], np.int64)


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
