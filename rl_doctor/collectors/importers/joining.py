"""Several logs of one run as one: joined by step, with what does not fit told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo
from rl_doctor.store.metric_log import MetricLog, Points, ordered

_RELATIVE: Final = 1e-2
_ABSOLUTE: Final = 6e-4
"""Values that differ by less are the same number: consoles print three decimals."""
_SAME: Final = 0.9
"""Share of common values that are alike, from which two logs are of one run."""
_FEW: Final = 5
"""Points from which two logs can be told to count different things."""
_MULTIPLE: Final = 1.8
"""Ratio of the last steps, at like numbers of steps, from which two axes count different things."""


_OTHER: Final = 0.5
"""Share of the common values that differ, from which they speak for two runs."""
_THROUGHOUT: Final = 0.8
"""Share of the shorter log's steps at which they do; a part that was resumed overlaps less."""


@frozen(eq=False)
class Shared:
    """What two logs have in common.

    Attributes:
        points: values under the same name, split and step.
        differ: how many of them differ.
        example: name, step and both values of the first that differs.
        steps: steps at which most values differ.
    """

    points: int
    differ: int
    example: tuple[str, int, float, float] | None = None
    steps: int = 0


def shared(first: MetricLog, second: MetricLog) -> Shared:
    """Compare two logs where both have a value."""
    points = differ = 0
    example: tuple[str, int, float, float] | None = None
    every: list[NDArray[np.int64]] = []
    other: list[NDArray[np.bool_]] = []
    for key in sorted(first.points.keys() & second.points.keys()):
        (one, one_values), (two, two_values) = first.points[key], second.points[key]
        steps, at_one, at_two = np.intersect1d(one, two, assume_unique=True, return_indices=True)
        away = ~_alike(one_values[at_one], two_values[at_two])
        every.append(steps)
        other.append(away)
        points += len(steps)
        differ += int(away.sum())
        if example is None and away.any():
            index = int(np.argmax(away))
            example = (key[0], int(steps[index]), float(one_values[at_one[index]]), float(two_values[at_two[index]]))
    if example is None:
        return Shared(points, differ)
    unique, place = np.unique(np.concatenate(every), return_inverse=True)
    apart = np.bincount(place, np.concatenate(other)) > _OTHER * np.bincount(place)
    return Shared(points, differ, example, int(apart[: len(unique)].sum()))


def of_two_runs(first: MetricLog, second: MetricLog) -> str:
    """What shows that two logs are not of one run: most of what both hold differs throughout; "" where nothing does."""
    if same_rows(first, second):
        return ""
    common = shared(first, second)
    shorter = min(len(first.steps()), len(second.steps()))
    if common.example is None or shorter < _FEW or common.differ <= _OTHER * common.points:
        return ""
    if common.steps <= _THROUGHOUT * shorter:
        return ""
    name, step, before, after = common.example
    return (
        f"{common.differ:,} of {common.points:,} common values differ (first {name} at step {step}: {before:.4g} and {after:.4g})"
    )


def _alike(one: NDArray[np.float64], two: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.isclose(one, two, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)


def same_rows(first: MetricLog, second: MetricLog) -> bool:
    """Whether two logs hold the same rows, one after the other, under other steps."""
    keys = [key for key in first.points.keys() & second.points.keys() if len(first.points[key][0]) >= _FEW]
    moving = [key for key in keys if len(np.unique(first.points[key][1])) >= _FEW]
    if not moving or any(len(first.points[key][0]) != len(second.points[key][0]) for key in moving):
        return False
    if all(np.array_equal(first.points[key][0], second.points[key][0]) for key in moving):
        return False
    alike = [_alike(first.points[key][1], second.points[key][1]).mean() for key in moving]
    return float(np.mean(alike)) >= _SAME


def is_counted(log: MetricLog) -> bool:
    """Whether the steps of a log are no more than the number of the row."""
    steps = log.steps()
    return bool(len(steps)) and steps[0] <= 1 and int(steps[-1]) - int(steps[0]) == len(steps) - 1


def same_run(first: MetricLog, second: MetricLog) -> bool:
    """Whether two logs can be of one run: what both hold is alike, or one goes on where the other ends."""
    if first.points.keys().isdisjoint(second.points.keys()) or same_rows(first, second):
        return True
    common = shared(first, second)
    if common.points and common.points - common.differ >= _SAME * common.points:
        return True
    one, two = first.steps(), second.steps()
    early, late = (one, two) if one[0] <= two[0] else (two, one)
    if early[-1] < late[0]:
        return True
    overlap = int((early >= late[0]).sum())
    return bool(early[0] < late[0] and early[-1] < late[-1]) and 2 * overlap < min(len(early), len(late))


def join(named: Sequence[tuple[str, MetricLog]]) -> tuple[MetricLog, tuple[str, ...]]:
    """Join logs by step.

    Args:
        named: what each is called, and the logs; where two have the same name at the same step, the later one counts. One that
            holds the rows of another under steps that are mere row numbers is left out.

    Returns:
        The joined log, and what there is to say.
    """
    notes: list[str] = []
    kept: list[tuple[str, MetricLog]] = []
    for called, log in named:
        twin = next((index for index, (_, other) in enumerate(kept) if same_rows(other, log)), None)
        if twin is None:
            kept.append((called, log))
            continue
        left, right = (called, kept[twin][0]) if is_counted(log) else (kept[twin][0], called)
        if left != called:
            kept[twin] = (called, log)
        notes.append(f"{left}: the same rows as in {right}, under other steps: left out")
    for index, (called, log) in enumerate(kept):
        for other, before in kept[:index]:
            notes += _doubts(other, before, called, log)
    return _merged([log for _, log in kept]), tuple(notes)


def _merged(logs: Sequence[MetricLog]) -> MetricLog:
    if len(logs) == 1:
        return logs[0]
    points: dict[tuple[str, str], Points] = {}
    for log in logs:
        for key, (steps, values) in log.points.items():
            before = points.get(key)
            if before is None:
                points[key] = (steps, values)
            else:
                points[key] = ordered(np.concatenate([before[0], steps]), np.concatenate([before[1], values]))
    return MetricLog(points, frozenset().union(*(log.without_number for log in logs)))


def _doubts(first: str, one: MetricLog, second: str, two: MetricLog) -> list[str]:
    notes = []
    common = shared(one, two)
    if common.example is not None:
        name, step, before, after = common.example
        notes.append(
            f"{first} and {second} differ in {common.differ:,} of {common.points:,} common values "
            f"(first {name} at step {step}: {before:.4g} and {after:.4g}): the later file counts"
        )
    a, b = one.steps(), two.steps()
    if a[-1] < b[0] or b[-1] < a[0]:
        notes.append(f"the steps of {first} ({a[0]}-{a[-1]}) and {second} ({b[0]}-{b[-1]}) do not overlap")
    elif _count_differently(a, b):
        notes.append(
            f"{first} has {len(a):,} steps up to {a[-1]}, {second} {len(b):,} up to {b[-1]}: they may count different things "
            "(rollouts, optimizer steps); what is compared between the files may be out of step"
        )
    return notes


def _count_differently(one: NDArray[np.int64], two: NDArray[np.int64]) -> bool:
    few, many = sorted((len(one), len(two)))
    if few < _FEW or few < 0.9 * many:
        return False
    last = sorted((int(one[-1]) - int(min(one[0], 0)), int(two[-1]) - int(min(two[0], 0))))
    return last[0] > 0 and last[1] / last[0] >= _MULTIPLE


def common_info(infos: Sequence[RunInfo]) -> RunInfo:
    """What any of the files of a run tells of it; the first that tells something counts."""
    merged = RunInfo()
    for info in reversed(infos):
        told = {name: value for name in ("run_id", "trainer", "trainer_version", "algorithm") if (value := getattr(info, name))}
        merged = replace(merged, **told)
        if info.config != RunInfo().config:
            merged = replace(merged, config=info.config)
    return merged
