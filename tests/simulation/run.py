"""A run in memory: what the analyzer reads, what a test may damage, and what can be written as a run file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.schema import MISSING_INT, ROLES, RunInfo, column
from rl_doctor.store.batch import Batch
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.metric_log import MetricLog

Array = NDArray[Any]
_ROW_KEYS = ("step", "epoch", "minibatch", "microbatch", "rank", "uid")


@dataclass(eq=False)
class SimulatedRun:
    """A run whose columns lie in memory; satisfies ``analyzer.engine.Source`` and what ``api.check`` asks of a run.

    Attributes:
        info: the run's description.
        arrays: canonical name -> flat array, ``[n_sequences]`` or ``[n_tokens]``.
        splits: int64 ``[n_sequences + 1]``.
        log: what the trainer logged.
        dropped_steps: steps that the recorder counted as dropped.
        skipped_parts: part files that the reader left out.
        parts: into how many batches a step is split.
        critic: passes of a critic recorded apart; there are none.
        recorded_in: step -> session.
    """

    info: RunInfo
    arrays: dict[str, Array]
    splits: NDArray[np.int64]
    log: MetricLog = field(default_factory=MetricLog)
    path: Path = Path("simulated")
    dropped_steps: int = 0
    skipped_parts: tuple[str, ...] = ()
    parts: int = 1
    critic: None = None
    recorded_in: Mapping[int, int] = field(default_factory=dict)

    @property
    def columns(self) -> Collection[str]:
        """Canonical columns that the run has."""
        return frozenset(self.arrays)

    @property
    def facts(self) -> StoreFacts:
        """Facts that a reader would find in these rows."""
        step = self.arrays["step"]
        keys = [self.arrays[name].tolist() for name in _ROW_KEYS if name in self.arrays]
        repeated = len(step) - len(set(zip(*keys, strict=True))) if "uid" in self.arrays else 0
        return StoreFacts(
            int(step.min()) if len(step) else None, int(step.max()) if len(step) else None, len(step), int(self.splits[-1]),
            skipped_parts=self.skipped_parts, dropped_steps=self.dropped_steps,
            unsorted_steps=int((np.diff(step) < 0).sum()), repeated_rows=repeated,
        )  # fmt: skip

    def metrics(self) -> MetricLog:
        """What the trainer logged."""
        return self.log

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        """Batches in the order of steps, up to ``parts`` for each step."""
        step = self.arrays["step"]
        order = np.argsort(step, kind="stable")
        starts = np.flatnonzero(np.diff(step[order], prepend=step[order][:1] - 1))
        for start, stop in zip(starts, [*starts[1:], len(step)], strict=True):
            for rows in np.array_split(order[start:stop], min(self.parts, stop - start)):
                yield self._batch(rows, columns)

    def _batch(self, rows: NDArray[np.int64], columns: Collection[str]) -> Batch:
        lengths = np.diff(self.splits)[rows]
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        if (np.diff(rows) == 1).all():
            tokens: Any = slice(int(self.splits[rows[0]]), int(self.splits[rows[-1] + 1]))
        else:
            tokens = np.repeat(self.splits[rows] - splits[:-1], lengths) + np.arange(splits[-1])
        taken = {name: self.arrays[name][tokens if is_token(name) else rows] for name in columns if name in self.arrays}
        return Batch(int(self.arrays["step"][rows[0]]), taken, splits, self.info)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row of each token, int64 ``[n_tokens]``."""
        return np.repeat(np.arange(len(self.splits) - 1), np.diff(self.splits))

    @property
    def token_step(self) -> NDArray[np.int64]:
        """Step of each token, int64 ``[n_tokens]``."""
        return self.arrays["step"][self.rows]

    def copy(self) -> SimulatedRun:
        """A run whose arrays can be damaged without harm to this one."""
        return replace(self, arrays={name: array.copy() for name, array in self.arrays.items()}, splits=self.splits.copy())

    def with_config(self, **changes: Any) -> SimulatedRun:
        """The run with other configuration fields."""
        return replace(self, info=replace(self.info, config=replace(self.info.config, **changes)))

    def take(self, rows: NDArray[np.int64]) -> SimulatedRun:
        """The run with these rows, in this order; rows may repeat."""
        lengths = np.diff(self.splits)[rows]
        splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tokens = np.repeat(self.splits[rows] - splits[:-1], lengths) + np.arange(splits[-1])
        arrays = {name: array[tokens if is_token(name) else rows] for name, array in self.arrays.items()}
        return replace(self, arrays=arrays, splits=splits)

    def relog(self, name: str, change: Any) -> SimulatedRun:
        """The run with logged values of one native name replaced by ``change(steps, values)``."""
        steps, values = self.log.series(name)
        return replace(self, log=MetricLog({**self.log.points, (name, "train"): (steps, change(steps, values.copy()))}))

    def write(self, path: Path) -> Path:
        """Write a run file: one row per sequence and pass, token columns as lists, ``run.json`` in the metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table: dict[str, Any] = {}
        for name, array in self.arrays.items():
            known = column(name)
            assert known is not None, name
            values = _arrow(array, known.dtype)
            if is_token(name):
                values = pa.ListArray.from_arrays(pa.array(self.splits.astype(np.int32)), values)
            table[name] = values
        document = document_of(self.info, self.log)
        pq.write_table(pa.table(table).replace_schema_metadata({b"rl_doctor": json.dumps(document).encode()}), path)
        return path


def is_token(name: str) -> bool:
    """Whether a canonical column holds one value per token."""
    known = column(name)
    return known is not None and known.level == "token"


def _arrow(array: Array, dtype: str) -> Any:
    import pyarrow as pa

    if dtype == "string" and array.dtype == np.int8:
        return pa.DictionaryArray.from_arrays(pa.array(array, mask=array < 0), pa.array(ROLES)).cast(pa.string())
    if dtype in MISSING_INT:
        return pa.array(array.astype(dtype), mask=array == MISSING_INT[dtype])
    return pa.array(array, {"string": pa.string(), "bool": pa.bool_()}.get(dtype))


def document_of(info: RunInfo, log: MetricLog) -> Mapping[str, Any]:
    """The JSON document of a run file."""
    document = {key: value for key, value in asdict(info).items() if value is not None and key != "config"}
    document["config"] = {key: value for key, value in asdict(info.config).items() if value is not None}
    document["metrics"] = [{"step": step, "name": name, "value": value} for step, name, value, _ in log.records()]
    return document
