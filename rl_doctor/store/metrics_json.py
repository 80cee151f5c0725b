"""``MetricLog`` to and from the ``metrics`` member of a run file's JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rl_doctor.errors import InputError
from rl_doctor.store.metric_log import MetricLog, Record

_NAMED: Final = 5
"""So many names a note has."""
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def metrics_from_json(member: Any, where: str) -> tuple[MetricLog, tuple[str, ...]]:
    """Read the ``metrics`` member, in either form.

    Args:
        member: a list of ``{"step", "name", "value"}`` (and "split"), or ``{name: {"steps": [...], "values": [...]}}``.
        where: what messages call it.

    Returns:
        The log, and a note on the values that are no numbers, which are left out.

    Raises:
        InputError: it has another form.
    """
    left_out: dict[str, str] = {}
    if isinstance(member, Mapping):
        log = MetricLog.of(_from_series(member, where, left_out))
    elif isinstance(member, list):
        log = MetricLog.of(_from_records(member, where, left_out))
    else:
        raise InputError(f"{where}: metrics must be a list of records or an object of series, not {type(member).__name__}")
    if not left_out:
        return log, ()
    named = ", ".join(f"{name} ({value})" for name, value in [*left_out.items()][:_NAMED])
    more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    return log, (f"{where}: logged values that are no numbers were left out: {named}{more}",)


def metrics_to_json(log: MetricLog) -> list[dict[str, Any]]:
    """The list form; NaN and infinities are strings."""
    return [
        {"step": step, "name": name, "value": _to_json(value)} | ({} if split == "train" else {"split": split})
        for step, name, value, split in log.records()
    ]


def _from_records(records: list[Any], where: str, left_out: dict[str, str]) -> Iterable[Record]:
    for index, record in enumerate(records):
        place = f"{where}: metrics[{index}]"
        if not isinstance(record, Mapping) or not {"step", "name", "value"} <= record.keys():
            raise InputError(f"{place} must have step, name and value, not {str(record)[:80]}")
        step, name, value = _step(record["step"], place), str(record["name"]), _value(record["value"])
        if value is None:
            left_out.setdefault(name, _shown(record["value"], step))
        else:
            yield step, name, value, str(record.get("split") or "train")


def _from_series(series: Mapping[str, Any], where: str, left_out: dict[str, str]) -> Iterable[Record]:
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
        for at, given in zip(steps, values, strict=True):
            step, value = _step(at, place), _value(given)
            if value is None:
                left_out.setdefault(name, _shown(given, step))
            else:
                yield step, name, value, split


def _shown(value: Any, step: int) -> str:
    """A value that is left out, as a note has it."""
    return f"{str(value)[:40]!r} at step {step}"


def _step(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise InputError(f"{place}: step must be a whole number, not {value!r}")
    return int(value)


def _value(value: Any) -> float | None:
    """The number, NaN where it is null, or None for what is no number."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        return _WORDS.get(value)
    return float(value) if isinstance(value, int | float) else None


def _to_json(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
