"""What is stored of a run: columns, steps, gaps, masks, and what was left out of the reading."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.gaps import Gap, gap_note, gaps_in
from rl_doctor.analyzer.series import Series
from rl_doctor.report import wording
from rl_doctor.schema import COLUMNS, REWARD_COMPONENT_PREFIX, Column
from rl_doctor.views.kept import kept
from rl_doctor.views.opened import Opened
from rl_doctor.views.table import Table
from rl_doctor.views.thinning import thinned

Steps = NDArray[np.int64]
Amount = Literal["sequences", "tokens", "logged"]
State = Literal["present", "empty", "absent"]
Trouble = Literal[
    "dropped", "incomplete", "unsorted", "repeated", "skipped", "empty", "unknown", "renamed", "sampled", "not_recomputed", "note"
]

_MOST_GAPS: Final = 12
_BY_SEQUENCE: Final = ("length.trained_mean", "data.contradicting_length_frac", "adv.sequence_mean", "reward.mean")
_BY_TOKEN: Final = (
    "policy.mean_logprob",
    "data.logprob_max",
    "policy.entropy",
    "mismatch.abs",
    "adv.mean",
    "length.trained_mean",
)
"""Metrics whose counts tell how many sequences and trained tokens a step has; the first that is there."""
_AGREEMENT: Final = "agreement"
"""Ends the name of a mask's metric for which 1 is right and not 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Amounts:
    """How much a step has.

    Attributes:
        kind: sequences, trained tokens, or values that the trainer logged.
        steps: int64 ``[n]``.
        values: float64 ``[n]``.
    """

    kind: Amount
    steps: Steps
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Told:
    """Something worth knowing of the files: what it is, and the words of the reader of files, or a number."""

    kind: Trouble
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """What is stored of a run.

    Attributes:
        sequences: number of rows of sequences, each pass counted.
        tokens: number of stored tokens.
        logged: number of values that the trainer logged.
        steps: number of steps.
        first: first one, or None.
        last: last one, or None.
        present: number of columns that are there.
        gaps: the first of the gaps in the steps.
        more_gaps: number of further ones.
        missing_steps: number of steps that are missing.
        amounts: how much each step has.
        columns: all canonical columns, as a table.
        masks: what the masks were checked for, as a table; None where nothing was.
        sessions: of recording, as a table; None where none is known.
        settings: the configuration as it is known, as a table.
        told: what was left out, and other things to know.
    """

    sequences: int
    tokens: int
    logged: int
    steps: int
    first: int | None
    last: int | None
    present: int
    gaps: tuple[Gap, ...]
    more_gaps: int
    missing_steps: int
    amounts: tuple[Amounts, ...]
    columns: Table
    masks: Table | None
    sessions: Table | None
    settings: Table
    told: tuple[Told, ...]

    @property
    def amount_table(self) -> Table:
        """The drawn amounts as a table."""
        rows = [
            (amount.kind, step, value) for amount in self.amounts for step, value in zip(amount.steps, amount.values, strict=True)
        ]
        return {
            "step": [step for _, step, _ in rows],
            "what": [kind for kind, _, _ in rows],
            "number": [value for *_, value in rows],
        }


@kept
def stored(opened: Opened) -> Stored:
    """What is stored of a run, and what of it was not used."""
    run = opened.report.run
    steps = _steps(opened)
    gaps = gaps_in(steps)
    return Stored(
        run.sequences,
        run.tokens,
        sum(len(values) for _, values in opened.logged.log.points.values()),
        len(steps),
        run.first_step,
        run.last_step,
        len(opened.run.columns),
        tuple(gaps[:_MOST_GAPS]),
        max(len(gaps) - _MOST_GAPS, 0),
        sum(gap.missing for gap in gaps),
        tuple(_amounts(opened)),
        _columns(opened),
        _masks(opened),
        _sessions(opened),
        _settings(opened),
        tuple(_told(opened, () if not gaps else (gap_note(gaps),))),
    )


def _steps(opened: Opened) -> Steps:
    """Steps that have rows; of a log those at which something was logged while training."""
    if opened.run.columns:
        found = [series.steps for name in (*_BY_TOKEN, *_BY_SEQUENCE) if (series := opened.series.get(name)) is not None]
    else:
        found = [steps for (_, split), (steps, _) in opened.logged.log.points.items() if split != "eval"]
    return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)


def _amounts(opened: Opened) -> Iterator[Amounts]:
    kinds: tuple[tuple[Amount, tuple[str, ...]], ...] = (("sequences", _BY_SEQUENCE), ("tokens", _BY_TOKEN[:-1]))
    for kind, names in kinds:
        series = next((found for name in names if (found := opened.series.get(name)) is not None and _counted(found)), None)
        if series is not None:
            yield _amount(kind, series.steps, series.counts.astype(np.float64))
    points = [steps for steps, _ in opened.logged.log.points.values()]
    if points:
        steps, counts = np.unique(np.concatenate(points), return_counts=True)
        yield _amount("logged", steps, counts.astype(np.float64))


def _counted(series: Series) -> bool:
    """Whether the counts are of items of rows: a logged value counts once."""
    return bool((series.counts > 1).any())


def _amount(kind: Amount, steps: Steps, values: NDArray[np.float64]) -> Amounts:
    at = thinned(values)
    return Amounts(kind, steps[at], values[at])


def _columns(opened: Opened) -> Table:
    """All columns of the schema and the reward components that are there; what is there comes first."""
    present = opened.run.columns
    enables = Counter(
        name for result in opened.report.results if result.outcome == "skipped" for name in result.missing if name in COLUMNS
    )
    parts = sorted(name for name in present if name.startswith(REWARD_COMPONENT_PREFIX))
    known = [*COLUMNS.values(), *(Column(name, "float64", "sequence", "reward", "A component of the reward.") for name in parts)]
    states: dict[str, State] = {
        column.name: "empty"
        if column.name in opened.run.facts.empty_columns
        else "present"
        if column.name in present
        else "absent"
        for column in known
    }
    order = ("present", "empty", "absent")
    known.sort(key=lambda column: (order.index(states[column.name]), -enables[column.name]))
    rows = {"sequence": opened.report.run.sequences, "token": opened.report.run.tokens}
    return {
        "column": [column.name for column in known],
        "state": [states[column.name] for column in known],
        "level": [column.level for column in known],
        "rows": [rows.get(column.level) if states[column.name] == "present" else None for column in known],
        "unit": [column.unit for column in known],
        "rules it would enable": [enables[column.name] or None for column in known],
        "meaning": [column.meaning for column in known],
    }


def _masks(opened: Opened) -> Table | None:
    """The worst value of each metric of the masks, and where it was."""
    found = [
        (name, series, int(np.argmin(series.values) if name.endswith(_AGREEMENT) else np.argmax(series.values)))
        for name, whole in sorted(opened.series.items())
        if name.startswith("mask.") and "_by." not in name and len(series := whole.measured())
    ]
    if not found:
        return None
    return {
        "metric": [name for name, _, _ in found],
        "worst": [float(series.values[at]) for _, series, at in found],
        "at step": [int(series.steps[at]) for _, series, at in found],
        "latest": [float(series.values[-1]) for _, series, _ in found],
        "steps": [len(series) for _, series, _ in found],
        "unit": [series.unit for _, series, _ in found],
    }


def _sessions(opened: Opened) -> Table | None:
    sessions = opened.run.info.sessions
    if not sessions:
        return None
    return {
        "session": [entry.get("session") for entry in sessions],
        "started": [_time(entry.get("started")) for entry in sessions],
        "ranks": [entry.get("world_size") for entry in sessions],
    }


def _time(value: object) -> str:
    """A Unix time in words; "" for what is none."""
    if not isinstance(value, int | float):
        return ""
    try:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def _settings(opened: Opened) -> Table:
    info = opened.run.info
    whole: dict[str, Any] = {
        "trainer": info.trainer, "trainer_version": info.trainer_version, "algorithm": info.algorithm, "status": info.status,
        **{field.name: getattr(info.config, field.name) for field in dataclasses.fields(info.config)},
    }  # fmt: skip
    known = {name: value for name, value in whole.items() if value not in (None, (), {})}
    return {"setting": list(known), "value": [str(value) for value in known.values()]}


def _told(opened: Opened, shown: Collection[str]) -> Iterator[Told]:
    """What is told of the files beside the notes that are ``shown`` otherwise."""
    run, facts = opened.report.run, opened.run.facts
    notes = [note for note in run.notes if note not in shown]
    if facts.dropped_steps:
        yield Told("dropped", f"{facts.dropped_steps:,}")
    if facts.incomplete_steps:
        yield Told("incomplete", _ranges(facts.incomplete_steps))
    if facts.unsorted_steps:
        yield Told("unsorted", f"{facts.unsorted_steps:,}")
    if facts.repeated_rows:
        yield Told("repeated", f"{facts.repeated_rows:,}")
    if run.sampling is not None:
        yield Told("sampled", f"{100 * run.sampling:.4g}")
    several: tuple[tuple[Trouble, Iterable[str]], ...] = (
        ("skipped", run.skipped_parts), ("empty", facts.empty_columns), ("unknown", run.unknown_columns),
        ("renamed", run.renamed_columns), ("not_recomputed", wording.not_recomputed(run)), ("note", notes),
    )  # fmt: skip
    for kind, lines in several:
        if kind in {"empty", "unknown", "renamed"}:
            if names := list(lines):
                yield Told(kind, ", ".join(names))
        else:
            yield from (Told(kind, line) for line in lines)


def _ranges(steps: Iterable[int], most: int = 8) -> str:
    """Steps as ranges, the first few."""
    runs: list[list[int]] = []
    for step in sorted(steps):
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:most]]
    return ", ".join(told) + (" …" if len(runs) > most else "")
