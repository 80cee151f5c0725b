"""Packs a run into one run file, for exchange and CI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.schema import METADATA_KEY
from rl_doctor.store import encode
from rl_doctor.store.batch import Batch
from rl_doctor.store.info import info_to_json
from rl_doctor.store.layout import keep_apart, write_durably
from rl_doctor.store.members import (
    CRITIC_FILE_MEMBER,
    FACTS_MEMBER,
    METRICS_FILE_MEMBER,
    RECORDED_IN_MEMBER,
    facts_to_json,
    stretches_of,
)
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.metrics_json import metrics_to_json
from rl_doctor.store.rows import is_token
from rl_doctor.store.run import Run

if TYPE_CHECKING:
    import pyarrow as pa

METRICS_LIMIT: Final = 5_000_000
"""Bytes of JSON above which the logged metrics go to a file beside the run file."""
ROW_GROUP_TOKENS: Final = 1 << 20


def pack(run: Run, file: str | Path) -> None:
    """Write a run as one Parquet file: one row per sequence and pass, token columns as lists, everything else in its metadata.

    Args:
        run: an opened run of any form.
        file: the file to write; an existing one is replaced once the new one is whole. Logged metrics of more than 5 MB go to
            ``<name>.metrics.parquet`` beside it, passes of a critic to ``<name>.critic.parquet``.

    Raises:
        NothingToJudgeError: the run has no sequence rows.
        InputError: the run cannot be read.
        UsageError: the file is the run itself or lies in its folder.
    """
    file = Path(file)
    keep_apart(file, run.path)
    batches = run.batches(run.columns, max_tokens=ROW_GROUP_TOKENS)
    first = next(batches, None)
    if first is None:
        hint = "a log has none, and `rl-doctor import` makes a run folder of it"
        raise NothingToJudgeError(f"{run.path}: no sequence rows to pack; {hint}")
    metrics = run.metrics()
    document = info_to_json(run.info)
    if stretches := stretches_of(run.recorded_in):
        document[RECORDED_IN_MEMBER] = stretches
    if facts := facts_to_json(run.facts):
        document[FACTS_MEMBER] = facts
    if len(metrics):
        document["metrics"] = metrics_to_json(metrics)
        if len(json.dumps(document["metrics"])) > METRICS_LIMIT:
            del document["metrics"]
            beside = file.with_name(f"{file.stem}.metrics.parquet")
            keep_apart(beside, run.path)
            _write_metrics(beside, metrics)
            document[METRICS_FILE_MEMBER] = beside.name
    if (critic := run.critic) is not None and critic.facts.sequences:
        beside = file.with_name(f"{file.stem}.critic.parquet")
        keep_apart(beside, run.path)
        try:
            pack(critic, beside)
            document[CRITIC_FILE_MEMBER] = beside.name
        except InputError as error:
            told = document.setdefault(FACTS_MEMBER, {})
            told["notes"] = [*told.get("notes", ()), f"passes of the critic are left out: {error}"]
    schema = _schema(sorted(run.columns, key=lambda name: (is_token(name), name)))
    write_durably(file, lambda target: _write(target, schema, chain([first], batches), json.dumps(document)))


def _write(target: BinaryIO, schema: pa.Schema, batches: Iterator[Batch], document: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    settings = encode.parquet_settings(schema.names, suffix=".list.element")
    with pq.ParquetWriter(target, schema, **settings) as writer:
        for group in _row_groups(batches):
            table = pa.concat_tables([_table(batch, schema) for batch in group])
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
        # Set apart from the schema: Arrow would store a second copy of the schema's metadata.
        writer.add_key_value_metadata({METADATA_KEY: document})


def _row_groups(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    """Batches joined to row groups: small steps share one, whose fixed cost would else be most of a small file."""
    group: list[Batch] = []
    tokens = 0
    for batch in batches:
        if group and tokens + batch.n_tokens > ROW_GROUP_TOKENS:
            yield group
            group, tokens = [], 0
        group.append(batch)
        tokens += batch.n_tokens
    yield group


def _schema(names: list[str]) -> pa.Schema:
    import pyarrow as pa

    fields = []
    for name in names:
        field = encode.field(name)
        if is_token(name):
            element = pa.field("element", field.type, nullable=field.nullable)
            field = pa.field(name, pa.list_(element), nullable=False)
        fields.append(field)
    return pa.schema(fields)


def _table(batch: Batch, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    offsets = pa.array(batch.splits.astype(np.int32))
    arrays: list[Any] = []
    for field in schema:
        values = encode.to_arrow(field.name, batch.columns[field.name])
        arrays.append(pa.ListArray.from_arrays(offsets, values, type=field.type) if is_token(field.name) else values)
    return pa.Table.from_arrays(arrays, schema=schema)


def _write_metrics(path: Path, log: MetricLog) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    steps, names, values, splits = zip(*log.records(), strict=True)
    columns = {
        "step": pa.array(steps, pa.int64()),
        "name": pa.array(names, pa.string()),
        "value": pa.array(values, pa.float64()),
        "split": pa.array(splits, pa.string()),
    }
    settings: dict[str, Any] = {"compression": encode.COMPRESSION, "use_dictionary": ["name", "split"]}
    write_durably(path, lambda target: pq.write_table(pa.table(columns), target, **settings))
