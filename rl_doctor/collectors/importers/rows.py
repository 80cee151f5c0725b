"""From the records of a log to series: which number is the step, which rows are of an evaluation, what repeats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.importers.columns import Columns, Points
from rl_doctor.collectors.importers.numbers import whole
from rl_doctor.collectors.importers.registry import part_of
from rl_doctor.collectors.importers.row_numbers import last_run, numbered
from rl_doctor.collectors.importers.row_steps import COUNTER, MANY_RETURNS, passed_over, returns, row_steps
from rl_doctor.collectors.importers.several_runs import rows_of_run
from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.frozen import frozen
from rl_doctor.store.metric_log import MetricLog, ordered, split_of
from rl_doctor.store.step_axis import plain_name

BOOKKEEPING: Final = frozenset(
    {"_step", "_timestamp", "_runtime", "_wandb", "wall_time", "relative_time_(process)", "relative_time_(wall)", ""}
)  # fmt: skip
"""Plain names of what trackers and tables write beside the metrics."""
_INDEX: Final = ("unnamed:_", "__index_level_")
"""What the plain names of an index begin with that pandas wrote."""
_MOST: Final = 2**53
"""From here on a number is no step."""
_LARGEST: Final = float(np.finfo(np.float32).max)
"""Trainers compute in float32 or less: what is beyond it overflowed, whatever printed it."""
_MANY_ROWS: Final = 4.0
"""Rows per step from which a log is one of samples or micro-batches."""
_MANY_TEXTS: Final = 8
"""Names of texts from which a log that holds hardly any number is one of texts."""


@frozen
class Row:
    """One record of a log: what it holds, by native name, and its step, where it has one."""

    step: int | None
    values: Mapping[str, Any]


def row_of(record: Mapping[str, Any], name: str | None) -> Row:
    """A record as a row; ``name`` is its step's."""
    if name is None:
        return Row(None, record)
    return Row(whole(record.get(name)), {key: value for key, value in record.items() if key != name})


@frozen(eq=False)
class Assembled:
    """Rows as series, and what there is to say of them."""

    log: MetricLog
    notes: tuple[str, ...]


def assemble(rows: Iterable[Row], path: Path) -> Assembled:
    """Turn rows into series.

    Values that are no numbers are left out. Where no row has a step, or the step stands still, rows are counted from 1. Where
    some have, the others are left out: they are summaries. Of two runs one after the other the last is read. A step that comes
    again (a run that was resumed) replaces what was logged for it before; where each step has several rows one after the other
    (samples, micro-batches), their mean counts.

    Args:
        rows: in the order of the log.
        path: for messages.

    Raises:
        InputError: what should be the step keeps going back.
        NothingToJudgeError: there is no number in it, or it is a single record without a step.
    """
    columns = Columns()
    steps: list[float] = []
    for row in rows:
        columns.add(row.values)
        steps.append(np.nan if row.step is None or abs(row.step) >= _MOST else row.step)
    return assemble_points(columns.take(), np.array(steps, np.float64), columns.texts, path)


def assemble_columns(columns: Columns, path: Path, axes: Collection[str] = ()) -> Assembled:
    """Turn gathered records into series; which of their numbers is the step is found out by name and by how it runs.

    Args:
        columns: the records.
        path: for messages; ``FILE#RUN`` is one of several runs that a column tells apart.
        axes: names that the log itself says are axes.

    Raises:
        InputError: as in ``assemble``, or there are several runs in it and none is named.
        NothingToJudgeError: as in ``assemble``.
    """
    points = columns.take()
    steps, names = row_steps(points, columns.rows, axes)
    passed = passed_over(points, columns.rows, names)
    if COUNTER not in points and (own := rows_of_run(columns.labels, points, steps, *part_of(path))) is not None:
        steps = np.where(own, steps, np.nan)
        points = {name: (at[own[at]], values[own[at]]) for name, (at, values) in points.items()}
    kept = {name: found for name, found in points.items() if name not in names and not _is_bookkeeping(name)}
    made = assemble_points(kept, steps, columns.texts, path)
    return Assembled(made.log, (*passed, *made.notes))


def _is_bookkeeping(name: str) -> bool:
    plain = plain_name(name)
    return plain in BOOKKEEPING or plain.startswith(_INDEX)


def assemble_points(points: Mapping[str, Points], steps: NDArray[np.float64], texts: AbstractSet[str], path: Path) -> Assembled:
    """Turn numbers by name into series.

    Args:
        points: for each name the rows of its numbers, and the numbers.
        steps: the step of each row, NaN where it has none.
        texts: names under which there is something that is no number.
        path: for messages.

    Raises:
        InputError, NothingToJudgeError: as in ``assemble``.
    """
    filled = np.zeros(len(steps), np.bool_)
    for at, _ in points.values():
        filled[at] = True
    notes: list[str] = []
    known = ~np.isnan(steps)
    if not known.any() and len(steps) == 1 and filled.any():
        raise NothingToJudgeError(f"{path}: a single record without a step: the summary of a run; give the log of its steps")
    steps, said = numbered(points, steps, filled)
    if said:
        notes.append(said)
        known = ~np.isnan(steps)
    if left := int((filled & ~known).sum()):
        notes.append(_left_out(left, int(filled.sum())))
    if texts and 5 * len(points) <= len(texts - points.keys()) >= _MANY_TEXTS:
        raise NothingToJudgeError(
            f"{path}: nearly all values are texts, not numbers ({_shown(sorted(texts - points.keys()))}); log them as numbers"
        )
    if not (known & filled).any():
        raise NothingToJudgeError(f"{path}: no number in it that belongs to a step; log metrics by step and export it again")
    if start := last_run(points, np.where(known & filled, steps, np.nan)):
        notes.append(
            f"the steps begin anew at {steps[start]:.0f} and run as far again, with other values: two runs one after the other, "
            "of which the last alone is judged; give the others in files of their own"
        )
        known[:start] = False
    made = _Making(np.where(known, steps, 0).astype(np.int64), known & filled, path)
    log = {(name, split_of(name)): made.points(name, *found) for name, found in points.items() if known[found[0]].any()}
    names = {name for name, _ in log}
    bare = frozenset(texts) - names
    return Assembled(MetricLog(log, bare), (*notes, *made.notes(), *_texts(bare)))


class _Making:
    """Makes the series of one log, and keeps in mind what repeats in it."""

    def __init__(self, steps: NDArray[np.int64], known: NDArray[np.bool_], path: Path) -> None:
        self._steps = steps
        self._known = known
        self._path = path
        self._repeated: list[NDArray[np.int64]] = []
        self._averaged: dict[str, float] = {}
        self._overflown: set[str] = set()
        self._infinite: set[str] = set()

    def points(self, name: str, at: NDArray[np.int64], values: NDArray[np.float64]) -> Points:
        """One series: of values at the same step the last, or their mean where each step has several in a row."""
        kept = self._known[at]
        steps, values = self._steps[at[kept]], values[kept]
        over = np.isfinite(values) & (np.abs(values) > _LARGEST)
        if over.any():
            values = np.where(over, np.copysign(np.inf, values), values)
            self._overflown.add(name)
        elif np.isinf(values).any():
            self._infinite.add(name)
        forward = steps[1:] > steps[:-1]
        if bool(forward.all()):
            return steps, values
        made = ordered(steps, values)
        per_step = len(steps) / len(made[0])
        back = returns(steps)
        if per_step >= _MANY_ROWS and len(made[0]) > 1:
            if back > MANY_RETURNS * len(steps):
                raise InputError(
                    f"{self._path}: its step goes back {back:,} times in {len(steps):,} rows of {name!r}: "
                    "no step of the training; log the optimizer step as 'step'"
                )
            if back < len(made[0]) / 10:
                self._averaged[name] = per_step
                return _means(steps, values)
        if per_step > 1 and (back or not _told_again(steps, values)):
            times = np.unique(steps, return_counts=True)
            self._repeated.append(times[0][times[1] > 1])
        return made

    def notes(self) -> Iterable[str]:
        """What there is to say of the steps, and of values that are none."""
        if self._overflown:
            yield f"beyond the range of float32, counted as infinite: {_shown(self._overflown)}"
        if self._infinite:
            yield f"infinite, or too large for a number: {_shown(self._infinite)}"
        if self._averaged:
            most = max(self._averaged.values())
            yield f"about {most:,.0f} rows per step (samples or micro-batches): their mean counts"
        steps = self._steps[self._known]
        falls = np.flatnonzero(steps[1:] < steps[:-1])
        repeated = len(np.unique(np.concatenate(self._repeated))) if self._repeated else 0
        if repeated and len(falls):
            before, after = steps[falls[-1]], steps[falls[-1] + 1]
            often = "once" if len(falls) == 1 else f"{len(falls):,} times"
            yield (
                f"the steps go back {often} (last from {before} to {after}), as after a restart: "
                f"of {_count(repeated, 'repeated step')} the last value counts"
            )
        elif repeated:
            yield f"{_count(repeated, 'step')} logged more than once: the last value of each counts"
        elif len(falls):
            yield f"rows out of order at {_count(len(falls), 'place')}: sorted by step"


def _left_out(left: int, rows: int) -> str:
    if 2 * left <= rows:
        return f"{_count(left, 'row')} without a step left out"
    return (
        f"MOST ROWS LEFT OUT: {left:,} of {rows:,} have no step, and the report is of {_count(rows - left, 'row')}; "
        "log the step in every row"
    )


def _told_again(steps: NDArray[np.int64], values: NDArray[np.float64]) -> bool:
    """Whether rows of the same step say the same: rows of training and evaluation both have the epoch."""
    same = steps[1:] == steps[:-1]
    return np.array_equal(values[1:][same], values[:-1][same], equal_nan=True)


def _means(steps: NDArray[np.int64], values: NDArray[np.float64]) -> Points:
    unique, at = np.unique(steps, return_inverse=True)
    finite = ~np.isnan(values)
    totals = np.bincount(at[finite], values[finite], len(unique))
    counts = np.bincount(at[finite], minlength=len(unique))
    with np.errstate(invalid="ignore", divide="ignore"):
        return unique, totals / counts


def _texts(names: Iterable[str]) -> Iterable[str]:
    if only_texts := [name for name in names if not _is_bookkeeping(name)]:
        yield f"no numbers, left out: {_shown(only_texts)}"


def _shown(names: Collection[str]) -> str:
    more = f" and {len(names) - 6:,} more" if len(names) > 6 else ""
    return ", ".join(sorted(names)[:6]) + more


def _count(number_of: int, what: str) -> str:
    return f"{number_of:,} {what}" + ("" if number_of == 1 else "s")
