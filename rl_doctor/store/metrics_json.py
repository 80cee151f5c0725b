"""``MetricLog`` to and from the ``metrics`` member of a run file's JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rl_doctor.errors import InputError
from rl_doctor.store.metric_log import MetricLog, Record

_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def metrics_from_json(member: Any, where: str) -> MetricLog:
    """Read the ``metrics`` member, in either form.

    Args:
        member: a list of ``{"step", "name", "value"}`` (and "split"), or ``{name: {"steps": [...], "values": [...]}}``.
        where: what messages call it.

    Raises:
        InputError: it has another form.
    """
    if isinstance(member, Mapping):
        return MetricLog.of(_from_series(member, where))
    if isinstance(member, list):
        return MetricLog.of(_from_records(member, where))
    raise InputError(f"{where}: metrics must be a list of records or an object of series, not {type(member).__name__}")


def metrics_to_json(log: MetricLog) -> list[dict[str, Any]]:
    """The list form; NaN and infinities are strings."""
    return [
        {"step": step, "name": name, "value": _to_json(value)} | ({} if split == "train" else {"split": split})
        for step, name, value, split in log.records()
    ]


def _from_records(records: list[Any], where: str) -> Iterable[Record]:
    for index, record in enumerate(records):
        place = f"{where}: metrics[{index}]"
        if not isinstance(record, Mapping) or not {"step", "name", "value"} <= record.keys():
            raise InputError(f"{place} must have step, name and value, not {str(record)[:80]}")
        yield (
            _step(record["step"], place),
            str(record["name"]),
            _value(record["value"], place),
            str(record.get("split") or "train"),
        )


def _from_series(series: Mapping[str, Any], where: str) -> Iterable[Record]:
    for name, points in series.items():
        place = f"{where}: metrics[{name!r}]"
        if (
            not isinstance(points, Mapping)
            or not isinstance(points.get("steps"), list)
            or not isinstance(points.get("values"), list)
        ):
            raise InputError(f"{place} must have the lists steps and values")
        steps, values = points["steps"], points["values"]
        if len(steps) != len(values):
            raise InputError(f"{place} has {len(steps)} steps and {len(values)} values; they must be as many")
        split = str(points.get("split") or "train")
        for step, value in zip(steps, values, strict=True):
            yield _step(step, place), name, _value(value, place), split


def _step(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise InputError(f"{place}: step must be a whole number, not {value!r}")
    return int(value)


def _value(value: Any, place: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if not isinstance(value, int | float):
        raise InputError(f"{place}: value must be a number, not {value!r}")
    return float(value)


def _to_json(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
