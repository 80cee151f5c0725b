"""Finds out by its columns what a Parquet file is, and opens it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor import schema
from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.schema import METADATA_KEY, RunInfo
from rl_doctor.store.aliases import resolve
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.index import REPEAT_KEYS, falls, repeats
from rl_doctor.store.info import info_from_json, parse_json
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.metrics_json import metrics_from_json
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.plan import Segment, rows_in_order, segments_of, windows_of
from rl_doctor.store.rows import is_token
from rl_doctor.store.run import Run
from rl_doctor.store.run_file import ListColumns, ListFragment

if TYPE_CHECKING:
    from rl_doctor.store.aliases import Resolution


def open_file(source: ParquetInput) -> Run:
    """Open a Parquet file of any recognised form; see ``open_run``."""
    where = str(source.path)
    info, metrics = _description(source)
    if source.file.metadata.num_rows == 0:
        raise NothingToJudgeError(f"{where}: has no row")
    resolution = resolve(source.schema.names, where)
    if "step" not in resolution.found:
        raise NothingToJudgeError(f"{where}: no column 'step' among {', '.join(source.schema.names[:12])}; add it or rename one")
    if len(resolution.found) == 1:
        raise NothingToJudgeError(f"{where}: no known column beside 'step' ({', '.join(resolution.unknown[:12])})")
    names = {name: found for name, found in resolution.found.items() if not _all_null(source, found)}
    return _list_run(source, names, resolution, info, metrics)


def _description(source: ParquetInput) -> tuple[RunInfo, MetricLog]:
    text = source.metadata(METADATA_KEY)
    if text is None:
        return RunInfo(), MetricLog()
    where = f"{source.path}: metadata 'rl_doctor'"
    document = parse_json(text, where)
    metrics = document.pop("metrics", None) if isinstance(document, dict) else None
    info = info_from_json(document, where)
    return info, MetricLog() if metrics is None else metrics_from_json(metrics, where)


def _all_null(source: ParquetInput, name: str) -> bool:
    import pyarrow as pa

    if pa.types.is_null(source.schema.field(name).type):
        return True
    for group in range(source.row_groups):
        row_group = source.file.metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            if column.path_in_schema.split(".")[0] != name and column.path_in_schema != name:
                continue
            statistics = column.statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count < column.num_values:
                return False
    return True


def _list_run(source: ParquetInput, names: Mapping[str, str], resolution: Resolution, info: RunInfo, metrics: MetricLog) -> Run:
    tokens = [name for name in names if is_token(name)]
    smallest = min(tokens, key=lambda name: _compressed(source, names[name]), default=None)
    columns = ListColumns(source, names, smallest)
    fragments: list[ListFragment] = []
    segments: list[Segment] = []
    steps: list[NDArray[np.int64]] = []
    first_row = 0
    for group in range(source.row_groups):
        rows = source.rows_of(group)
        values = _steps(columns, group, first_row)
        mean = _values_of(source, group, names[smallest]) / max(rows, 1) if smallest else 0.0
        steps.append(values)
        segments += segments_of(values, group, np.full(rows, int(mean), np.int64))
        fragments.append(ListFragment(columns, group, first_row, mean))
        first_row += rows

    def facts() -> StoreFacts:
        return _facts(fragments, segments, columns, falls(steps), resolution)

    return Run(source.path, info, frozenset(names), fragments, segments, facts, lambda: metrics)


def _steps(columns: ListColumns, group: int, first_row: int) -> NDArray[np.int64]:
    table = columns.source.read(group, [columns.names["step"]])
    values = columns.scalar(table.column(0), "step", first_row)
    missing = values == schema.MISSING_INT["int64"]
    if missing.any():
        row = first_row + int(np.argmax(missing))
        raise InputError(f"{columns.where('step')} is null in row {row}; every row needs its optimizer step")
    return values


def _facts(
    fragments: list[ListFragment], segments: list[Segment], columns: ListColumns, unsorted: int, resolution: Resolution
) -> StoreFacts:
    keys = sorted({*REPEAT_KEYS, "stored_length"} & columns.names.keys())
    sequences = tokens = repeated = 0
    step: int | None = None
    held: list[dict[str, NDArray[Any]]] = []
    for at, rows in rows_in_order(fragments, windows_of(segments), keys):
        if at != step:
            repeated += _repeats(held)
            held, step = [], at
        sequences += rows.n_sequences
        tokens += rows.n_tokens
        held.append({name: rows.columns[name] for name in REPEAT_KEYS if name in rows.columns})
    repeated += _repeats(held)
    steps = [segment.step for segment in segments]
    return StoreFacts(
        first_step=min(steps),
        last_step=max(steps),
        sequences=sequences,
        tokens=tokens,
        unknown_columns=resolution.unknown,
        renamed_columns=resolution.renamed,
        notes=resolution.notes,
        unsorted_steps=unsorted,
        repeated_rows=repeated,
    )


def _repeats(held: list[dict[str, NDArray[Any]]]) -> int:
    if not held:
        return 0
    return repeats({name: np.concatenate([part[name] for part in held]) for name in held[0]})


def _column_chunks(source: ParquetInput, group: int, name: str) -> list[Any]:
    row_group = source.file.metadata.row_group(group)
    columns = (row_group.column(index) for index in range(row_group.num_columns))
    return [column for column in columns if column.path_in_schema == name or column.path_in_schema.startswith(f"{name}.")]


def _compressed(source: ParquetInput, name: str) -> int:
    return sum(
        column.total_compressed_size for group in range(source.row_groups) for column in _column_chunks(source, group, name)
    )


def _values_of(source: ParquetInput, group: int, name: str) -> int:
    return sum(column.num_values for column in _column_chunks(source, group, name))
