"""The forms in which a JSON document may hold a log: records, columns, curves, or something keyed by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rl_doctor.collectors.importers.columns import MOST_NAMES, Columns
from rl_doctor.collectors.importers.numbers import number, whole
from rl_doctor.collectors.importers.records import MAX_DEPTH, NAME_KEYS, VALUE_KEYS, evaluated, flat, is_evaluation, unnested
from rl_doctor.collectors.importers.several_runs import LABEL
from rl_doctor.store.step_axis import step_names

EARLIEST: float = 1e8
"""Seconds since 1970 from which a number is a time of day: no step of a run is as large at its first point."""


def gathered(document: Any, called: str) -> tuple[Columns, tuple[str, ...]] | None:
    """The numbers of a JSON document by name, and what was left out; None if it has no form of a log.

    Args:
        document: as parsed.
        called: the name of a metric that the document does not name.
    """
    if isinstance(document, list):
        if _mostly(document, dict):
            return _of_records(record for record in document if isinstance(record, dict))
        return _of_curve(document, called)
    if not isinstance(document, dict) or not document:
        return None
    if len(document) > MOST_NAMES and not any(isinstance(value, dict | list) for value in document.values()):
        return _summary(document)
    for form in (_keyed_by_step, _by_row_index, _split_table, _lists_of_records, _of_columns):
        if (found := form(document)) is not None:
            return found
    return _summary(document)


def _summary(document: Mapping[str, Any]) -> tuple[Columns, tuple[str, ...]] | None:
    """A single record: the last values of a run, whose step (if it has one) makes no history of them."""
    record = flat(document)
    if all(number(value) is None for value in record.values()):
        return None
    steps = set(step_names(record)) if len(record) <= MOST_NAMES else set()
    return _of_records([{name: value for name, value in record.items() if name not in steps}])


def _of_records(records: Iterable[Mapping[str, Any]]) -> tuple[Columns, tuple[str, ...]]:
    columns = Columns()
    for record in records:
        columns.add(flat(record))
    return columns, ()


def _of_curve(document: Sequence[Any], called: str) -> tuple[Columns, tuple[str, ...]] | None:
    """``[[wall time, step, value], ...]`` as TensorBoard exports it, or ``[[step, value], ...]``."""
    points = [item for item in document if isinstance(item, list) and len(item) in (2, 3)]
    if not points or 2 * len(points) <= len(document):
        return None
    timed = [point for point in points if len(point) == 3 and (number(point[0]) or 0.0) >= EARLIEST]
    if len(timed) < len(points):
        timed = [[0, *point] for point in points if len(point) == 2]
    if not timed or whole(timed[0][1]) is None:
        return None
    columns = Columns()
    columns.add_values("step", [point[1] for point in timed])
    columns.add_values(called, [point[2] for point in timed])
    return columns, ()


def _keyed_by_step(document: Mapping[str, Any]) -> tuple[Columns, tuple[str, ...]] | None:
    """``{"1": {...}, "2": {...}}``; a step of its own in the record counts more than the key."""
    keys = {key: step for key, value in document.items() if isinstance(value, dict) and (step := _step_of_key(key)) is not None}
    if not keys or 2 * len(keys) <= len(document):
        return None
    records = (flat(document[key]) for key in keys)
    return _of_records(
        record if step_names(record) else {"step": step, **record} for step, record in zip(keys.values(), records, strict=True)
    )


def _step_of_key(key: str) -> int | None:
    return whole(key.lower().removeprefix("global_step").removeprefix("step").lstrip("_ -:"))


def _by_row_index(document: Mapping[str, Any]) -> tuple[Columns, tuple[str, ...]] | None:
    """``{"step": {"0": 1, ...}, "loss": {"0": 0.5, ...}}``, which is how pandas writes a table."""
    tables = {
        name: value
        for name, value in document.items()
        if isinstance(value, dict)
        and value
        and all(whole(key) is not None for key in value)
        and not _mostly(value.values(), dict)
    }
    if not tables or len(tables) < len(document):
        return None
    order = {key: row for row, key in enumerate(dict.fromkeys(key for value in tables.values() for key in value))}
    columns = Columns()
    for name, value in tables.items():
        filled: list[Any] = [None] * len(order)
        for key, item in value.items():
            filled[order[key]] = item
        columns.add_values(name, filled)
    return columns, ()


def _split_table(document: Mapping[str, Any]) -> tuple[Columns, tuple[str, ...]] | None:
    """``{"columns": [names], "data": [[...], ...]}``."""
    names, rows = document.get("columns"), document.get("data", document.get("rows"))
    if not (isinstance(names, list) and isinstance(rows, list)) or not all(isinstance(name, str) for name in names):
        return None
    fitting = [row for row in rows if isinstance(row, list) and len(row) == len(names)]
    if not fitting or len(set(names)) < len(names):
        return None
    columns = Columns()
    columns.add_rows(names, fitting)
    return columns, () if len(fitting) == len(rows) else (
        f"rows that do not fit the columns, left out: {len(rows) - len(fitting):,}",
    )


def _lists_of_records(document: Mapping[str, Any]) -> tuple[Columns, tuple[str, ...]] | None:
    """Lists of records under members, at any depth: those with a step, else the longest."""
    lists = [
        (path, [item for item in value if isinstance(item, dict)]) for path, value in _lists(document) if _mostly(value, dict)
    ]
    if not lists:
        return None
    stepped = [(path, records) for path, records in lists if step_names(flat(records[0]))]
    chosen = stepped or [max(lists, key=lambda found: len(found[1]))]
    columns = Columns()
    for path, records in chosen:
        held_out = any(is_evaluation(part.removesuffix("_history").removesuffix("_log")) for part in path)
        for record in records:
            own = flat(record)
            if not any(key in record for key in NAME_KEYS) and (value := next((key for key in VALUE_KEYS if key in own), None)):
                own = {**{key: own[key] for key in step_names(own)}, "/".join(path): own[value]}
            if held_out:
                own = {_marked(name): value for name, value in own.items()}
            columns.add({LABEL: "/".join(path), **own} if len(chosen) > 1 else own)
    taken = {path for path, _ in chosen}
    left = ["/".join(path) for path, _ in lists if path not in taken]
    return columns, (f"lists without a step, left out: {', '.join(left[:6])}",) if left else ()


def _marked(name: str) -> str:
    return name if step_names([name]) else evaluated(name)


def _of_columns(document: Mapping[str, Any]) -> tuple[Columns, tuple[str, ...]] | None:
    """``{"step": [...], "loss": [...]}``, also nested; curves as pairs or as two lists of steps and values."""
    lists = {name: value for name, value in unnested(document).items() if isinstance(value, list) and value}
    curves = dict(_curves(lists))
    if curves:
        columns = Columns()
        for name, points in curves.items():
            for step, value in points:
                columns.add({"step": step, name: value})
        return columns, ()
    scalars = {name: value for name, value in lists.items() if not isinstance(value[0], list | dict)}
    if not scalars:
        return None
    axis = next((name for name in step_names(scalars) if len(scalars[name]) > 1), None)
    length = (
        len(scalars[axis]) if axis else max(Counter(map(len, scalars.values())).items(), key=lambda seen: (seen[1], seen[0]))[0]
    )
    if length < 2:
        return None
    columns = Columns()
    for name, value in scalars.items():
        if len(value) == length:
            columns.add_values(name, value)
    left = sorted(name for name, value in scalars.items() if len(value) != length)
    return columns, (f"lists that are not as long as the others, left out: {', '.join(left[:6])}",) if left else ()


def _curves(lists: Mapping[str, list[Any]]) -> Iterator[tuple[str, list[tuple[Any, Any]]]]:
    for name, value in lists.items():
        if all(isinstance(item, list) and len(item) == 2 for item in value) and whole(value[0][0]) is not None:
            yield name, [(step, found) for step, found in value]
        outer, _, inner = name.rpartition("/")
        if inner in {"values", "value"} and outer:
            steps = lists.get(f"{outer}/steps", lists.get(f"{outer}/step"))
            if steps is not None and len(steps) == len(value):
                yield outer, list(zip(steps, value, strict=True))


def _lists(document: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    pending: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), document)]
    while pending:
        path, value = pending.pop()
        for name, inner in value.items():
            if isinstance(inner, list) and inner:
                yield (*path, name), inner
            elif isinstance(inner, dict) and len(path) < MAX_DEPTH:
                pending.append(((*path, name), inner))


def _mostly(values: Iterable[Any], kind: type) -> bool:
    kinds = [isinstance(value, kind) for value in values]
    return bool(kinds) and 2 * sum(kinds) > len(kinds)
