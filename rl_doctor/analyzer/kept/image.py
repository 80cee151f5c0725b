"""A fold as a sheet: the points of its metrics, and marks from which it can go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.fold import Mark
from rl_doctor.analyzer.kept.sheet import Sheet
from rl_doctor.analyzer.recorded import Points, Recorded
from rl_doctor.analyzer.registry import Metric, Reduction
from rl_doctor.analyzer.rollouts import Gathered
from rl_doctor.analyzer.stack import Stack
from rl_doctor.analyzer.states import Sum, Top


class UnkeptError(Exception):
    """Something that is held has no form on disk."""


class _Arrays:
    """Arrays of a sheet, equal ones once."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self._known: dict[tuple[str, bytes], str] = {}

    def put(self, array: NDArray[Any]) -> str:
        """The name of the array in the sheet."""
        key = (array.dtype.str, array.tobytes())
        if key not in self._known:
            self._known[key] = f"a{len(self._known)}"
            self._sheet.arrays[self._known[key]] = array
        return self._known[key]


def drawn(settled: Recorded, metrics: Sequence[Metric], marks: Sequence[Mark]) -> Sheet:
    """The sheet of a fold.

    Args:
        settled: what its finished steps gave.
        metrics: its metrics.
        marks: where it can be gone on with, by increasing step; the last one with all that is settled.

    Raises:
        UnkeptError: a state that it holds has no form on disk.
    """
    sheet = Sheet()
    arrays = _Arrays(sheet)
    stacks: dict[int, list[str]] = {}
    sheet.document["points"] = {name: [arrays.put(one) for one in found.arrays()] for name, found in settled.points.items()}
    sheet.document["tops"] = {name: [[step, top.to_row()] for step, top in found] for name, found in settled.tops.items()}
    told = {}
    for name, stack in settled.histograms.items():
        stack.pack()
        if id(stack) not in stacks:
            stacks[id(stack)] = [arrays.put(one) for one in stack.arrays()]
        told[name] = stacks[id(stack)]
    sheet.document["histograms"] = told
    sheet.document["marks"] = [_mark(mark, metrics, arrays) for mark in marks]
    return sheet


def _mark(mark: Mark, metrics: Sequence[Metric], arrays: _Arrays) -> dict[str, Any]:
    of_metric = {item.name: item.reduction for item in metrics}
    rows = {}
    for key, (first, last, columns) in mark.gathered.rows.items():
        rows[str(key)] = [first, last, {name: _column(values, arrays) for name, values in columns.items()}]
    return {
        "step": mark.step,
        "lengths": dict(mark.lengths),
        "before": {name: _row(state) for name, state in mark.before.items()},
        "rows": rows,
        "closed": arrays.put(np.array(sorted(mark.gathered.closed), np.int64)),
        "reopened": mark.gathered.reopened,
        "pending": {
            str(step): {name: _row(own[reduction]) for name, reduction in of_metric.items() if reduction in own}
            for step, own in mark.pending.items()
        },
        "first_steps": _pairs(mark.first_steps, arrays),
        "seen": {added: _pairs(known, arrays) for added, known in mark.seen.items()},
        "left_out": [[step, *counts] for step, counts in mark.rows.items()],
        "looked": [sorted(names) for names in mark.looked],
    }


def _row(state: Any) -> Any:
    if not hasattr(state, "to_row"):
        raise UnkeptError
    return state.to_row()


def _column(values: NDArray[Any], arrays: _Arrays) -> Any:
    return values.tolist() if values.dtype.kind == "O" else arrays.put(values)


def _pairs(numbers: Mapping[int, int], arrays: _Arrays) -> list[str]:
    return [arrays.put(np.fromiter(of, np.int64, len(numbers))) for of in (numbers.keys(), numbers.values())]


def marks_of(sheet: Sheet) -> list[int]:
    """Steps at whose end the fold can be gone on with."""
    return [mark["step"] for mark in sheet.document["marks"]]


def restored(sheet: Sheet, step: int, metrics: Sequence[Metric]) -> tuple[Mark, Recorded]:
    """A mark of a sheet, and what was settled by then of the metrics.

    Args:
        sheet: what ``drawn`` gave.
        step: that of the mark.
        metrics: metrics of the sheet.
    """
    arrays = sheet.arrays
    told = next(mark for mark in sheet.document["marks"] if mark["step"] == step)
    of_name = {item.name: item for item in metrics}
    lengths: dict[str, int] = told["lengths"]
    settled = Recorded({name: _before(of_name[name], row) for name, row in told["before"].items() if name in of_name})
    prefixes = tuple(name for name in of_name if name.endswith("."))
    for name, refs in sheet.document["points"].items():
        if (size := lengths.get(name)) is not None and (name in of_name or name.startswith(prefixes)):
            steps, values, counts = (arrays[ref][:size] for ref in refs)
            settled.points[name] = Points(steps, values, counts)
    for name, rows in sheet.document["tops"].items():
        if name in of_name and name in lengths:
            settled.tops[name] = [(at, Top.from_row(row)) for at, row in rows[: lengths[name]]]
    for name, refs in sheet.document["histograms"].items():
        if name in of_name and name in lengths:
            settled.histograms[name] = Stack(*(arrays[ref] for ref in refs)).head(lengths[name])
    return _restored_mark(told, dict(settled.before), of_name, arrays), settled


def _restored_mark(
    told: Mapping[str, Any], before: Mapping[str, Any], of_name: Mapping[str, Metric], arrays: Mapping[str, NDArray[Any]]
) -> Mark:
    def column(values: Any) -> NDArray[Any]:
        if isinstance(values, str):
            return arrays[values]
        strings = np.empty(len(values), np.object_)
        strings[:] = values
        return strings

    rows = {
        int(key): (first, last, {name: column(values) for name, values in columns.items()})
        for key, (first, last, columns) in told["rows"].items()
    }
    gathered = Gathered(rows, frozenset(arrays[told["closed"]].tolist()), told["reopened"])
    pending = {
        int(step): {
            of_name[name].reduction: _state(of_name[name].reduction, row) for name, row in states.items() if name in of_name
        }
        for step, states in told["pending"].items()
    }
    finite, blank = told["looked"]
    return Mark(
        told["step"], told["lengths"], before, gathered, pending, _numbers(told["first_steps"], arrays),
        {added: _numbers(refs, arrays) for added, refs in told["seen"].items()},
        {step: (gone, whole) for step, gone, whole in told["left_out"]}, (finite, blank),
    )  # fmt: skip


def _numbers(refs: Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> dict[int, int]:
    keys, values = (arrays[ref].tolist() for ref in refs)
    return dict(zip(keys, values, strict=True))


def _before(item: Metric, row: Any) -> Any:
    return Sum.from_row(row) if item.part is not None else _state(item.reduction, row)


def _state(reduction: Reduction, row: Any) -> Any:
    return type(reduction.zero).from_row(row)  # type: ignore[attr-defined]
