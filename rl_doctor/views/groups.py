"""Which groups give a signal: solve rate by group and step, and the shares that are all right, all wrong or mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.views.kept import kept
from rl_doctor.views.opened import Opened
from rl_doctor.views.outcomes import Outcomes, outcomes
from rl_doctor.views.table import Table

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

ROWS: Final = 40
STEP_BINS: Final = 120
"""Rows and columns of a map at most: 4,800 cells."""
SHARE_BINS: Final = 1_000
LISTED: Final = 500
"""Groups of one step that are listed at most."""
SIGHTS: Final = 20
RECURRING: Final = 0.2
"""Share of the groups that must be seen again for a map to have a row for each."""
ORDERS: Final = ("change", "lowest", "mixed", "often")
_LETTERS: Final = 24


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Steps put together: first and last step of each column, int64 ``[k]``, and the column of each group, int64 ``[n]``."""

    first: Counts
    last: Counts
    of: Counts

    @property
    def edges(self) -> Floats:
        """Between the columns, float64 ``[k + 1]``."""
        return np.concatenate([[self.first[0] - 0.5], (self.first[1:] + self.last[:-1]) / 2, [self.last[-1] + 0.5]])

    @property
    def centres(self) -> Floats:
        """The middle of each column, float64 ``[k]``."""
        return (self.first + self.last) / 2


def _columns(found: Outcomes, most: int) -> Columns:
    steps = found.steps
    parts = np.array_split(np.arange(len(steps)), min(len(steps), most))
    starts = np.array([part[0] for part in parts])
    of = np.searchsorted(starts, np.searchsorted(steps, found.step), side="right") - 1
    return Columns(steps[starts], steps[np.append(starts[1:], len(steps)) - 1], of)


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """Solve rates by group and step.

    Attributes:
        found: the groups.
        columns: the steps.
        rate: float64 ``[rows, k]``, NaN where the row has nothing at these steps.
        size: int64 ``[rows, k]``, responses behind each.
        rows: what the rows are: the names of groups, in the order shown; none where a row is a rank.
        labels: short forms of these.
        order: how the rows are ordered.
        part: which part of the rows is shown, from 1.
        parts: number of parts.
        recurring: share of the groups that are in several generation batches.
    """

    found: Outcomes
    columns: Columns
    rate: Floats
    size: Counts
    rows: tuple[str, ...]
    labels: tuple[str, ...]
    order: str
    part: int
    parts: int
    recurring: float

    @property
    def ranked(self) -> bool:
        """Whether a row is a rank, because groups are not seen again."""
        return not self.rows

    @property
    def parts_shown(self) -> range:
        """The parts by the numbers that the reader sees."""
        return range(1, self.parts + 1)

    def part_label(self, number: int) -> str:
        """Which groups a part has, in the order shown; parts are counted from 1."""
        return f"{(number - 1) * ROWS + 1}–{min(number * ROWS, len(self.found.names))}"  # noqa: RUF001 - between numbers

    @property
    def table(self) -> Table:
        """What is drawn, one row for each cell that has something."""
        row, column = np.nonzero(self.size)
        names = [self.rows[at] if self.rows else at + 1 for at in row.tolist()]
        return {
            "rank" if self.ranked else "group": names, "first step": self.columns.first[column],
            "last step": self.columns.last[column], "rate": self.rate[row, column], "responses": self.size[row, column],
        }  # fmt: skip


@kept
def solve_map(opened: Opened, order: str | None = None, part: int | None = None, group: str | None = None) -> Map | None:
    """The map of a run: a row for each group where groups are seen again, else for each rank among the groups of a step.

    Args:
        opened: the run.
        order: of the rows: one of ``ORDERS``; by default the first.
        part: which part of the rows, from 1; by default the first.
        group: a group that is wanted: the part that it is in is shown.

    Returns:
        The map, with at most ``ROWS`` rows and ``STEP_BINS`` columns; None where the run has no groups.
    """
    found = outcomes(opened)
    if found is None:
        return None
    columns = _columns(found, STEP_BINS)
    seen = np.bincount(found.group, minlength=len(found.names))
    recurring = float(np.mean(seen > 1))
    if recurring < RECURRING:
        return _ranked(found, columns, recurring)
    chosen = order if order in ORDERS else ORDERS[0]
    ranking = _ordered(found, seen, chosen)
    parts = -(-len(ranking) // ROWS)
    if group in found.names:
        part = int(np.flatnonzero(ranking == found.names.index(group))[0]) // ROWS + 1
    part = min(max(part or 1, 1), parts)
    shown = ranking[(part - 1) * ROWS : part * ROWS]
    row = np.full(len(found.names), -1)
    row[shown] = np.arange(len(shown))
    there = row[found.group] >= 0
    at = row[found.group][there] * len(columns.first) + columns.of[there]
    cells = len(shown) * len(columns.first)
    size = np.bincount(at, found.size[there], cells)
    right = np.bincount(at, (found.rate * found.size)[there], cells)
    with np.errstate(invalid="ignore"):
        rate = np.where(size > 0, right / size, np.nan)
    shape = len(shown), len(columns.first)
    names = tuple(found.names[at] for at in shown.tolist())
    return Map(
        found, columns, rate.reshape(shape), size.astype(np.int64).reshape(shape), names, tuple(map(short, names)), chosen, part,
        parts, recurring,
    )  # fmt: skip


def short(name: str) -> str:
    """A name that fits beside a row."""
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 9]}…{name[-8:]}"


def _ranked(found: Outcomes, columns: Columns, recurring: float) -> Map:
    """Of each column the groups from the best to the worst, as many as there are rows, evenly spread."""
    number = np.bincount(columns.of, minlength=len(columns.first))
    rows = min(ROWS, int(number.max()))
    order = np.lexsort((-found.rate, columns.of))
    starts = np.cumsum(number) - number
    rank = np.minimum(((np.arange(rows)[:, np.newaxis] + 0.5) * number / rows).astype(np.int64), number - 1)
    chosen = order[starts + rank]
    return Map(found, columns, found.rate[chosen], found.size[chosen], (), (), "rank", 1, 1, recurring)


def _ordered(found: Outcomes, seen: Counts, order: str) -> Counts:
    """Indices of the groups, those that are interesting first."""
    by_group = np.lexsort((found.step, found.group))
    ends = np.cumsum(seen)
    first, last = by_group[ends - seen], by_group[ends - 1]
    whole = np.bincount(found.group, found.rate * found.size) / np.bincount(found.group, found.size)
    middle = sum(found.ends) / 2
    change = found.rate[last] - found.rate[first]
    keys: Mapping[str, tuple[Floats, ...]] = {
        "change": (change, -np.abs(change)), "lowest": (whole,), "mixed": (np.abs(whole - middle),),
        "often": (-seen.astype(np.float64),),
    }  # fmt: skip
    return np.lexsort((np.arange(len(seen)), *keys[order]))


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """What part of the groups of two responses or more give no signal, by step.

    Attributes:
        kind: as that of ``Outcomes``; where it is "graded", ``right`` is 0 and ``wrong`` are groups with one value.
        columns: the steps.
        n: int64 ``[k]``, groups of two or more.
        single: int64 ``[k]``, groups of one response, which are left out.
        right: float64 ``[k]``, share of groups all of whose responses are right.
        wrong: float64 ``[k]``, share of groups with one value that is not right.
    """

    kind: str
    columns: Columns
    n: Counts
    single: Counts
    right: Floats
    wrong: Floats

    @property
    def mixed(self) -> Floats:
        """Share of groups with different values, float64 ``[k]``: those that a policy can learn from."""
        return 1.0 - self.right - self.wrong

    @property
    def table(self) -> Table:
        """What is drawn, by step."""
        told = {"first step": self.columns.first, "last step": self.columns.last, "groups": self.n}
        if self.kind == "graded":
            return {**told, "one value": self.wrong, "mixed": self.mixed}
        wrong = "all wrong" if self.kind == "binary" else "one value"
        return {**told, "all right": self.right, wrong: self.wrong, "mixed": self.mixed}

    @property
    def left_out(self) -> int:
        """Number of groups of one response."""
        return int(self.single.sum())

    @property
    def without_signal(self) -> float:
        """Share of all groups that have one value only."""
        told = np.nan_to_num(self.right + self.wrong) * self.n
        return float(told.sum() / max(int(self.n.sum()), 1))


@kept
def shares(opened: Opened) -> Shares | None:
    """The shares of a run; None where the run has no groups of two responses or more."""
    found = outcomes(opened)
    if found is None or not (found.size > 1).any():
        return None
    columns = _columns(found, SHARE_BINS)
    several = found.size > 1
    right, wrong = several & found.right, several & found.equal & ~found.right
    size = len(columns.first)
    n, single, all_right, all_wrong = (
        np.bincount(columns.of[flags], minlength=size) for flags in (several, ~several, right, wrong)
    )
    with np.errstate(invalid="ignore"):
        return Shares(found.kind, columns, n, single, all_right / n, all_wrong / n)


@dataclass(frozen=True, slots=True, eq=False)
class At:
    """The groups of one step.

    Attributes:
        step: the step.
        first: the first step that has groups.
        last: the last one.
        names: the groups that are listed, those with the lowest rate first.
        table: what is told of each.
    """

    step: int
    first: int
    last: int
    names: tuple[str, ...]
    table: Table


def groups_at(opened: Opened, step: int | None) -> At | None:
    """The groups of the step that is closest to the one asked for, by default the last; None where the run has no groups."""
    found = outcomes(opened)
    if found is None:
        return None
    steps = found.steps
    chosen = int(steps[-1] if step is None else steps[np.argmin(np.abs(steps - step))])
    at = np.flatnonzero(found.step == chosen)
    at = at[np.argsort(found.rate[at], kind="stable")][:LISTED]
    names = tuple(found.names[number] for number in found.group[at].tolist())
    rate = "rate" if found.kind == "binary" else "mean"
    told: Table = {"group": list(names), "responses": found.size[at], rate: found.rate[at], "one value": found.equal[at]}
    return At(chosen, int(steps[0]), int(steps[-1]), names, told)


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """What became of groups that were seen again.

    Attributes:
        sight: int64 ``[k]``, how often a group was seen by then, from 1.
        groups: int64 ``[k]``, groups seen so often at least.
        rate: float64 ``[k]``, their mean rate at that sight.
        change: float64 ``[k]``, mean difference from the sight before, of the same groups.
        fell: float64 ``[k]``, share of them whose rate is lower than at the sight before.
        rose: float64 ``[k]``, share of them whose rate is higher.
    """

    sight: Counts
    groups: Counts
    rate: Floats
    change: Floats
    fell: Floats
    rose: Floats

    @property
    def table(self) -> Table:
        """The numbers."""
        return {
            "sight": self.sight, "groups": self.groups, "rate": self.rate, "change": self.change, "fell": self.fell,
            "rose": self.rose,
        }  # fmt: skip


@kept
def again(opened: Opened) -> Again | None:
    """Groups that were seen more than once; None where there is none. Groups are known again by their identity."""
    found = outcomes(opened)
    if found is None:
        return None
    order = np.lexsort((found.step, found.group))
    group, rate = found.group[order], found.rate[order]
    begins = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    sight = np.arange(len(group)) - np.repeat(begins, np.diff(np.append(begins, len(group))))
    if not sight.any():
        return None
    rows = []
    for number in range(min(int(sight.max()), SIGHTS - 1) + 1):
        at = np.flatnonzero(sight == number)
        moved = rate[at] - rate[at - 1] if number else np.full(1, np.nan)
        told = (np.mean(moved < 0), np.mean(moved > 0)) if number else (np.nan, np.nan)
        rows.append((number + 1, len(at), float(rate[at].mean()), float(moved.mean()), *told))
    sights, groups, rates, changes, fell, rose = (np.array(column) for column in zip(*rows, strict=True))
    return Again(sights.astype(np.int64), groups.astype(np.int64), rates, changes, fell, rose)
