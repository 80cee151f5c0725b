"""Runs made of plain Python rows, cut into batches in any way: what metrics are tested on."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_doctor.analyzer.derive import SEEN
from rl_doctor.analyzer.registry import Metric, metrics
from rl_doctor.schema import MISSING_INT, Column, RunConfig, RunInfo, column
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog

Row = dict[str, Any]
"""Canonical column -> scalar, or list for token columns; all token lists of a row have one length."""

_DTYPES = {"int64": np.int64, "int32": np.int32, "float64": np.float64, "float32": np.float32, "bool": np.bool_, "string": object}


_PLAIN = {"int64": 0, "int32": 0, "float64": 0.0, "float32": 0.0, "bool": False, "string": "a"}


def _known(name: str) -> Column:
    known = Column(name, "int32", "sequence", "", SEEN[name]) if name in SEEN else column(name)
    assert known is not None, name
    return known


def level(name: str) -> str:
    return _known(name).level


def array(name: str, values: Sequence[Any]) -> np.ndarray:
    dtype = _known(name).dtype
    if dtype in MISSING_INT:
        values = [MISSING_INT[dtype] if value is None else value for value in values]
    if dtype.startswith("float"):
        values = [float("nan") if value is None else value for value in values]
    return np.array(list(values), _DTYPES[dtype])


def length(row: Row) -> int:
    return next((len(value) for value in row.values() if isinstance(value, list)), 0)


def batch(rows: Sequence[Row], info: RunInfo | None = None, columns: Collection[str] | None = None) -> Batch:
    names = sorted(rows[0]) if columns is None else sorted({*columns, "step"} & set(rows[0]))
    splits = np.cumsum([0, *(length(row) for row in rows)]).astype(np.int64)
    arrays = {
        name: array(name, [item for row in rows for item in row[name]] if level(name) == "token" else [row[name] for row in rows])
        for name in names
    }
    return Batch(rows[0]["step"], arrays, splits, RunInfo() if info is None else info)


def value_of(name: str, made: Batch) -> float:
    """The value of a metric on one batch."""
    item = metrics()[name]
    state = item.reduction.partial(made)
    return float(item.final(state if item.part is None else state[item.part]))


def values_of(name: str, made: Batch) -> list[float]:
    """The value of a metric on one batch, or of a family of metrics the values that it has."""
    item = metrics()[name]
    state: Any = item.reduction.partial(made)
    states = state.groups.values() if item.keyed else [state]
    return [float(item.final(one if item.part is None else one[item.part])) for one in states]


def blank(item: Metric, row: Row) -> Row:
    """The row with what the metric needs of columns that it lacks: nothing at tokens, else a number, a word or a flag."""
    needs = {part for need in item.needs for part in need.split("|") if not part.startswith("config.")}
    lacks = {name: _known(name) for name in sorted(needs - row.keys())}
    return row | {name: [] if known.level == "token" else _PLAIN[known.dtype] for name, known in lacks.items()}


def log(values: Mapping[str, Mapping[int, float]]) -> MetricLog:
    found = [(step, name, value, "train") for name, points in values.items() for step, value in points.items()]
    return MetricLog.of(found)


@dataclass
class MemoryRun:
    """Rows as a source: ``cut`` shuffles the rows of a step and cuts them into batches at random; without it one batch a step."""

    rows: list[Row]
    config: RunConfig = RunConfig()
    cut: int | None = None
    logged: MetricLog = field(default_factory=MetricLog)
    asked: set[str] = field(default_factory=set)

    @property
    def info(self) -> RunInfo:
        return RunInfo(config=self.config)

    @property
    def columns(self) -> Collection[str]:
        return set(self.rows[0]) if self.rows else set()

    def metrics(self) -> MetricLog:
        return self.logged

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        self.asked |= set(columns)
        for step in sorted({row["step"] for row in self.rows}):
            rows = [row for row in self.rows if row["step"] == step]
            for part in [rows] if self.cut is None else _cut(rows, random.Random(f"{self.cut}-{step}")):
                yield batch(part, self.info, columns)


def _cut(rows: list[Row], rng: random.Random) -> Iterator[list[Row]]:
    rows = rng.sample(rows, len(rows))
    while rows:
        size = rng.randint(1, len(rows))
        yield rows[:size]
        rows = rows[size:]
