"""Scalars that only the trainer can know, taken from what it logged, under each trainer's own name for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog

NATIVE_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "grad_norm": (
            "optim.grad_norm", "grad_norm", "train/grad_norm", "actor/grad_norm", "policy/grad_norm", "actor_grad_norm",
            "actor_train/grad_norm", "optim/grad_norm", "update/grad_norm", "ppo_actor/update/grad_norm",
            "grpo_actor/update/grad_norm", "train/global_grad_norm", "policy/raw_grad_norm", "gradient_norm",
        ),
        "learning_rate": (
            "optim.learning_rate", "learning_rate", "train/learning_rate", "actor/lr", "lr", "train/lr", "actor_lr",
            "policy/policy_lr", "policy/lr", "optim/lr", "actor_train/lr", "train/lr-pg_0", "update/lr", "ppo_actor/update/lr",
            "grpo_actor/update/lr",
        ),
    }
)  # fmt: skip
"""For each sequence column that a log can stand in for: the names it is logged under; the first that occurs is taken."""

LOGGED: Final = "logged"
"""Column that marks a batch as made from a log: there NaN is a value, not a null."""


def logged_columns(log: MetricLog) -> Mapping[str, str]:
    """Which columns the log can stand in for: column -> the native name that is taken."""
    present = set(log.names[log.splits == "train"].tolist())
    found = {column: next((name for name in names if name in present), None) for column, names in NATIVE_NAMES.items()}
    return {column: name for column, name in found.items() if name is not None}


def logged_batches(log: MetricLog, columns: Collection[str], info: RunInfo) -> Iterator[Batch]:
    """One batch per logged step, with one row without tokens that holds ``columns`` (NaN where not logged)."""
    native = logged_columns(log)
    values: dict[int, dict[str, float]] = {}
    for column in columns:
        steps, logged = log.series(native[column])
        for step, value in zip(steps.tolist(), logged.tolist(), strict=True):
            values.setdefault(step, {})[column] = value
    for step in sorted(values):
        row: dict[str, NDArray[Any]] = {name: np.array([values[step].get(name, np.nan)]) for name in columns}
        row[LOGGED] = np.ones(1, np.bool_)
        yield Batch(step, row, np.zeros(2, np.int64), info)


def logged_series(log: MetricLog, name: str, unit: str) -> Series | None:
    """The series that the log holds under a canonical metric name, each value counted once; None if it holds none."""
    steps, values = log.series(name)
    if len(steps) == 0:
        return None
    latest = dict(zip(steps.tolist(), values.tolist(), strict=True))
    ordered = sorted(latest)
    return Series(
        name,
        unit,
        np.array(ordered, np.int64),
        np.array([latest[step] for step in ordered], np.float64),
        np.ones(len(ordered), np.int64),
    )
