"""Metrics per step as text, JSON, CSV and Parquet. Absent is not NaN: a step at which a metric has no items stays empty."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.engine import Analysis
from rl_doctor.analyzer.series import Series
from rl_doctor.report.json_document import number
from rl_doctor.report.wording import number as short

ESTIMATED: Final = "estimated"
"""Member, column and key that mark what was computed from a part of the tokens."""
_MARK: Final = "~"


def to_json(analysis: Analysis) -> str:
    """``{"steps": [...], "metrics": {name: [...]}, "units": {...}, "missing": {name: columns}}``; NaN is a string.

    Where tokens were left out, ``"estimated": {name: steps}`` has the steps whose value comes from a part of the tokens.
    """
    steps, columns = _grid(analysis.series)
    document: dict[str, Any] = {
        "steps": steps.tolist(),
        "metrics": {name: [number(value) for value in values] for name, values in columns.items()},
        "units": {name: analysis.series[name].unit for name in columns},
        "missing": {name: list(lacking) for name, lacking in analysis.missing.items()},
    }
    if estimated := _estimated(analysis, columns):
        document[ESTIMATED] = estimated
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def to_csv(analysis: Analysis) -> str:
    """A header, then one row per step; every digit of the values, absent is empty.

    Where tokens were left out, a last column names the metrics, parted by spaces, that are estimates at the step.
    """
    steps, columns = _grid(analysis.series)
    estimated = {name: set(at) for name, at in _estimated(analysis, columns).items()}
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["step", *columns, *([ESTIMATED] if estimated else [])])
    for row, step in enumerate(steps.tolist()):
        cells = ["" if (value := column[row]) is None else repr(value) for column in columns.values()]
        names = [" ".join(name for name, at in estimated.items() if step in at)] if estimated else []
        writer.writerow([step, *cells, *names])
    return buffer.getvalue()


def to_parquet(analysis: Analysis) -> bytes:
    """One row per step: ``step`` int64 and a nullable float64 column per metric.

    Where tokens were left out, the metadata of a metric's field have ``estimated``: the JSON list of the steps at which it is an
    estimate.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    steps, columns = _grid(analysis.series)
    estimated = _estimated(analysis, columns)
    fields = [pa.field("step", pa.int64())]
    for name in columns:
        told = {ESTIMATED: json.dumps(estimated[name])} if name in estimated else None
        fields.append(pa.field(name, pa.float64(), metadata=told))
    arrays = [pa.array(steps), *(pa.array(values, pa.float64()) for values in columns.values())]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), sink)
    return sink.getvalue()


def to_text(analysis: Analysis, width: int) -> str:
    """Tables of as many metrics as fit the width, one row per step, and at the end what could not be computed and why.

    Before a number "~" says that it is an estimate.
    """
    steps, columns = _grid(analysis.series)
    cells = {name: [short_cell(value) for value in values] for name, values in columns.items()}
    estimated = _estimated(analysis, columns)
    for name, at in estimated.items():
        marked = np.isin(steps, at).tolist()
        cells[name] = [_MARK + cell if mark else cell for cell, mark in zip(cells[name], marked, strict=True)]
    first = ["step", *(str(step) for step in steps.tolist())]
    blocks: list[list[list[str]]] = []
    room = 0
    for name, values in cells.items():
        column = [name, *values]
        size = max(map(len, column)) + 2
        if not blocks or size > room:
            blocks.append([first])
            room = width - max(map(len, first))
        blocks[-1].append(column)
        room -= size
    parts = ["".join(_lines(block)) for block in blocks]
    if estimated:
        parts.append(f"{_MARK} an estimate: the tokens of only some sequences were kept at that step\n")
    if analysis.missing:
        longest = max(map(len, analysis.missing))
        rows = (
            f"{name:<{longest}}  {'is not in the log' if tuple(lacking) == (name,) else 'needs ' + ', '.join(lacking)}\n"
            for name, lacking in analysis.missing.items()
        )
        parts.append("Not computed:\n" + "".join(rows))
    return "\n".join(parts)


def _estimated(analysis: Analysis, columns: Mapping[str, Sequence[float | None]]) -> dict[str, list[int]]:
    """For each metric that has any the steps at which it is an estimate."""
    steps, _ = _grid(analysis.series)
    found = {}
    for name, values in columns.items():
        marked = np.isin(steps, analysis.estimated_at(name)).tolist()
        if at := [step for step, value, mark in zip(steps.tolist(), values, marked, strict=True) if mark and value is not None]:
            found[name] = at
    return found


def short_cell(value: float | None) -> str:
    """The value with four significant digits; "-" where there is none."""
    return "-" if value is None else short(value)


def _lines(block: list[list[str]]) -> list[str]:
    sizes = [max(map(len, column)) for column in block]
    return ["  ".join(cell.rjust(size) for cell, size in zip(row, sizes, strict=True)) + "\n" for row in zip(*block, strict=True)]


def _grid(series: Mapping[str, Series]) -> tuple[NDArray[np.int64], dict[str, list[float | None]]]:
    """All steps, and for each metric its value at each of them; None where it has no items."""
    filled = {name: item for name, item in series.items() if len(item)}
    steps = np.unique(np.concatenate([item.steps for item in filled.values()])) if filled else np.empty(0, np.int64)
    columns: dict[str, list[float | None]] = {}
    for name, item in filled.items():
        values: list[float | None] = [None] * len(steps)
        places = np.searchsorted(steps, item.steps).tolist()
        for place, value, items in zip(places, item.values.tolist(), item.counts.tolist(), strict=True):
            values[place] = None if items == 0 and math.isnan(value) else value
        columns[name] = values
    return steps, columns
