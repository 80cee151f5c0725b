"""Runs that are recorded from the tensors whose numbers trainers' own functions gave."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rl_doctor import Recorder, Run, open_run
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.dialects.registry import trainers
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.recompute.recipes import keys_of

GOLDEN = Path(__file__).parents[3] / "golden" / "trainers"
Columns = dict[str, list[Any]]
Metrics = dict[int, dict[str, float]]
TOLERANCE = 1e-6


@cache
def document(trainer: str) -> Mapping[str, Any]:
    """The numbers of a trainer."""
    found: Mapping[str, Any] = json.loads((GOLDEN / f"{trainer}.json").read_text())
    return found


def scenarios(trainer: str) -> list[str]:
    """Names of the scenarios of a trainer."""
    return [one["name"] for one in document(trainer)["scenarios"]]


def scenario(trainer: str, name: str) -> Mapping[str, Any]:
    """A scenario of a trainer."""
    return next(one for one in document(trainer)["scenarios"] if one["name"] == name)


def columns_of(trainer: str, name: str) -> Columns:
    """Columns of a scenario by canonical name, one value per row or a list of them over its tokens."""
    shared, one = document(trainer)["shared"], scenario(trainer, name)
    found = {**shared["columns"], **shared["rows"], **one["columns"]}
    return {name: list(values) for name, values in found.items() if name not in one["absent"]}


def metrics_of(trainer: str, name: str) -> Metrics:
    """What the trainer logged, by step."""
    return {int(step): dict(values) for step, values in scenario(trainer, name)["metrics"].items()}


def record(path: Path, info: Mapping[str, Any], columns: Columns, metrics: Metrics, rows: Collection[int] | None = None) -> Run:
    """A run of those rows, all or the given ones, and of what was logged."""
    chosen = range(len(columns["step"])) if rows is None else sorted(rows)
    with Recorder(path, info=info) as recorder:
        for step in dict.fromkeys(columns["step"][row] for row in chosen):
            batch = [row for row in chosen if columns["step"][row] == step]
            recorder.log_batch(step=step, **_padded(columns, batch))
            recorder.end_step(step)
        for step, values in metrics.items():
            recorder.log_metrics(step, values)
    return open_run(path)


def _padded(columns: Columns, rows: Collection[int]) -> dict[str, Any]:
    lengths = [columns["response_length"][row] for row in rows]
    found: dict[str, Any] = {}
    for name, values in columns.items():
        if name == "step":
            continue
        if not any(isinstance(values[row], list) for row in rows):
            found[name] = [values[row] for row in rows]
            continue
        kind = bool if name.endswith("mask") else np.int64 if name == "token_version" else np.float32
        padded = np.zeros((len(lengths), max(lengths)), kind)
        for at, row in enumerate(rows):
            padded[at, : len(values[row])] = [_number(value) for value in values[row]]
        found["returns" if name == "return" else name] = padded
    return found


def _number(value: float | str) -> float:
    return float(value)


def compared(run: Run) -> dict[str, Comparison]:
    """What is recomputed of a run, by key."""
    plan = reconcile.plan(run.info, run.columns, run.metrics())
    return {item.name: item for item in reconcile.compare(plan, analyze(run, [], plan.metrics).series)}


def known(run: Run) -> set[str]:
    """Keys that the table of the run's trainer has a recipe for."""
    assert run.info.trainer is not None
    return {key.name for key in keys_of(trainers()[run.info.trainer], run.info, run.metrics().names(), run.columns)}


def apart(found: Mapping[str, Comparison]) -> dict[str, Any]:
    """Keys that are farther from what was logged than rounding explains, with what was logged and recomputed."""
    wrong = {}
    for name, item in found.items():
        difference = np.abs(item.recomputed - item.logged)
        if (difference > item.tolerance).any():
            wrong[name] = list(
                zip(item.steps.tolist(), item.logged.tolist(), item.recomputed.tolist(), item.tolerance.tolist(), strict=True)
            )
    return wrong
