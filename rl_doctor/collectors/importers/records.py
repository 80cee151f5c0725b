"""Records as loggers nest and name them, made flat: one name and one number per metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rl_doctor.collectors.importers.numbers import number
from rl_doctor.store.metric_log import split_of
from rl_doctor.store.step_axis import plain_name, step_names

MAX_DEPTH: Final = 12
"""Levels of nesting that are followed; no logger has so many."""
NAME_KEYS: Final = ("name", "key", "tag", "metric", "metric_name", "variable")
"""Under these the long form (one number per record) has the name of its metric."""
VALUE_KEYS: Final = ("value", "scalar", "scalar_value", "metric_value")
"""Under these it has the number."""
SPLIT_KEYS: Final = ("split", "phase", "mode", "stage", "event", "type", "kind")
"""Under these a record may tell that it is one of an evaluation."""
EVALUATIONS: Final = frozenset(
    {"eval", "evaluate", "evaluation", "val", "valid", "validate", "validation", "test", "dev", "held_out"}
)
"""What it says then."""
_WRAPPERS: Final = frozenset({"metrics", "data", "values", "scalars", "logs", "log", "stats", "payload", "record", "row", "info"})
"""Members that only hold the metrics, and are no part of their names."""
_TELLING: Final = frozenset({*NAME_KEYS, *SPLIT_KEYS})
_PLAIN: Final = frozenset({float, int, str, bool, type(None)})


def flat(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record without nesting: inner names follow the outer one after ``/``, except within a mere wrapper.

    A record of the long form becomes one with the metric under its name, and a record of an evaluation has its names marked as
    such.
    """
    if not _PLAIN.issuperset(map(type, record.values())):
        record = unnested(record)
    if not _TELLING.isdisjoint(record):
        record = _of_split(_of_long(record))
    return record


def unnested(record: Mapping[str, Any]) -> dict[str, Any]:
    """Inner names after the outer ones, joined by ``/``."""
    made: dict[str, Any] = {}
    pending: list[tuple[str, int, Any]] = [(str(name), 1, value) for name, value in reversed(list(record.items()))]
    while pending:
        name, depth, value = pending.pop()
        if not isinstance(value, dict):
            made.setdefault(name, value)
        elif depth < MAX_DEPTH:
            prefix = "" if depth == 1 and name in _WRAPPERS else f"{name}/"
            pending.extend((f"{prefix}{inner}", depth + 1, below) for inner, below in reversed(list(value.items())))
    return made


def _of_long(record: Mapping[str, Any]) -> Mapping[str, Any]:
    name = next((record[key] for key in NAME_KEYS if key in record), None)
    value_key = next((key for key in VALUE_KEYS if key in record), None)
    if value_key is None or not isinstance(name, str) or number(name) is not None or not name.strip():
        return record
    if number(record[value_key]) is None:
        return record
    steps = {key: record[key] for key in step_names(record)}
    splits = {key: record[key] for key in SPLIT_KEYS if key in record}
    return {**steps, **splits, name.strip(): record[value_key]}


def _of_split(record: Mapping[str, Any]) -> Mapping[str, Any]:
    told = next((key for key in SPLIT_KEYS if is_evaluation(record.get(key))), None)
    if told is None:
        return record
    steps = set(step_names(record))
    return {name if name in steps or name in SPLIT_KEYS else evaluated(name): value for name, value in record.items()}


def is_evaluation(value: Any) -> bool:
    """Whether the value of a split means held-out data."""
    return isinstance(value, str) and plain_name(value) in EVALUATIONS


def evaluated(name: str) -> str:
    """The name of a metric of held-out data, marked as such."""
    return name if split_of(name) == "eval" or plain_name(name) == "epoch" else f"eval/{name}"
