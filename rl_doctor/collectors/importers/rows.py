"""From the records of a log to series: which number is the step, which rows are of an evaluation, what repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.importers.numbers import number, whole
from rl_doctor.errors import NothingToJudgeError
from rl_doctor.store.metric_log import MetricLog, ordered, split_of

STEP_NAMES: Final = (
    "step", "global_step", "train/global_step", "training/global_step", "training/step", "trainer/global_step", "train/step",
    "train_step", "training_global_step", "rollout/step", "_step", "iteration", "iter", "update", "steps", "Step",
)  # fmt: skip
"""Names of the optimizer step, the surest first."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a log: what it holds, by native name, and its step, where it has one."""

    step: int | None
    values: Mapping[str, Any]


def step_name(names: Collection[str]) -> str | None:
    """The name under which records with these names have their step; None if there is none."""
    return next((name for name in STEP_NAMES if name in names), None)


def row_of(record: Mapping[str, Any], name: str | None) -> Row:
    """A record as a row; ``name`` is its step's."""
    if name is None:
        return Row(None, record)
    return Row(whole(record.get(name)), {key: value for key, value in record.items() if key != name})


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """Rows as series, and what there is to say of them."""

    log: MetricLog
    notes: tuple[str, ...]


def assemble(rows: Iterable[Row], path: Path) -> Assembled:
    """Turn rows into series.

    Values that are no numbers are left out. Where no row has a step, rows are counted from 1. Where some have, the others are
    left out: they are summaries. A step that comes again (a run that was resumed) replaces what was logged for it before.

    Args:
        rows: in the order of the log.
        path: for messages.

    Raises:
        NothingToJudgeError: there is no number in it.
    """
    columns: dict[str, tuple[list[int], list[float]]] = {}
    unnumbered: list[Mapping[str, Any]] = []
    texts: set[str] = set()
    last: int | None = None
    restarts: list[tuple[int, int]] = []
    for row in rows:
        if row.step is None:
            unnumbered.append(row.values)
            continue
        _add(columns, row.step, row.values, texts)
        if last is not None and row.step < last:
            restarts.append((last, row.step))
        last = row.step
    notes: list[str] = []
    if not columns and unnumbered:
        for index, values in enumerate(unnumbered, 1):
            _add(columns, index, values, texts)
        notes.append("no row has a step: rows are counted from 1")
    elif unnumbered:
        notes.append(f"{_count(len(unnumbered), 'row')} without a step left out")
    if not columns:
        raise NothingToJudgeError(f"{path}: no number in it that belongs to a step; log metrics by step and export it again")
    return Assembled(_log(columns), (*notes, *_told(columns, restarts, texts)))


def _add(columns: dict[str, tuple[list[int], list[float]]], step: int, values: Mapping[str, Any], texts: set[str]) -> None:
    for name, value in values.items():
        found = value if type(value) is float else number(value)
        if found is None:
            if value is not None and value != "":
                texts.add(name)
            continue
        column = columns.get(name)
        if column is None:
            column = columns[name] = ([], [])
        column[0].append(step)
        column[1].append(found)


def _log(columns: Mapping[str, tuple[list[int], list[float]]]) -> MetricLog:
    return MetricLog({(name, split_of(name)): ordered(steps, values) for name, (steps, values) in columns.items()})


def _told(
    columns: Mapping[str, tuple[list[int], list[float]]], restarts: list[tuple[int, int]], texts: set[str]
) -> Iterable[str]:
    repeated = {step for steps, _ in columns.values() if len(set(steps)) < len(steps) for step in _repeats(steps)}
    if repeated and restarts:
        before, after = restarts[-1]
        often = "once" if len(restarts) == 1 else f"{len(restarts)} times"
        yield (
            f"the steps go back {often} (last from {before} to {after}), as after a restart: "
            f"of {_count(len(repeated), 'repeated step')} the last value counts"
        )
    elif repeated:
        yield f"{_count(len(repeated), 'step')} logged more than once: the last value of each counts"
    elif restarts:
        yield f"rows out of order at {_count(len(restarts), 'place')}: sorted by step"
    if only_texts := sorted(texts - columns.keys()):
        shown = ", ".join(only_texts[:6]) + (f" and {len(only_texts) - 6} more" if len(only_texts) > 6 else "")
        yield f"no numbers, left out: {shown}"


def _repeats(steps: list[int]) -> set[int]:
    return {step for step, times in Counter(steps).items() if times > 1}


def _count(number_of: int, what: str) -> str:
    return f"{number_of:,} {what}" + ("" if number_of == 1 else "s")
