"""The step of each row of a log: which of its numbers is it, and what holds where a row has none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.importers.columns import Points
from rl_doctor.store.step_axis import plain_name, step_names

COUNTER: Final = "_step"
"""What trackers count rows by; trainers may set it to their own step."""
MANY_RETURNS: Final = 0.1
"""Share of rows at which the step goes back, from which it is no step of the training."""
_MANY: Final = 0.1
"""Share of the rows that must have a step by name, for it to be preferred to a tracker's counter."""
_ALIKE: Final = 0.9
"""Share of its values that must be at most 1 from the step, for another axis to count the same thing."""
_MOSTLY: Final = 2
"""How many times as often as back the step goes forward."""
_FRACTIONS: Final = 0.1
"""Share of an axis' values that are no whole numbers, from which it is one of fractions: epochs, thousands of steps."""
STANDING: Final = 3
"""Values of a counter from which on one that never changes stands still: it is no axis."""

Steps = NDArray[np.float64]


def row_steps(points: Mapping[str, Points], rows: int, axes: Collection[str] = ()) -> tuple[Steps, frozenset[str]]:
    """The step of each row.

    Where there are several axes, as trackers allow, the surest by name that most rows have is the step. A row that has it not
    takes another axis that runs beside it (``rollout/step`` beside ``train/step``). In a tracker's log, where a counter shows
    that a row without any is no summary, it is at the step before it, as what is timed or evaluated between two steps; a row
    before the first step is at the first. The counter itself is the step where it agrees with the axis wherever both are, or
    there is no other.

    Args:
        points: what was logged, by name.
        rows: number of rows.
        axes: names that the tracker was told are axes.

    Returns:
        Steps ``[rows]``, NaN where a row has none, and the names of the axes that they are of. An axis of fractions, or of
        numbers beyond 2**53, is given as it is; a counter that stands still is one where there is no other.
    """
    axis = _axis(points, rows, axes)
    if axis is None:
        return np.full(rows, np.nan), frozenset()
    standing = frozenset(name for name in step_names(points) if name != axis and stands(points[name][1]))
    steps = _spread(points[axis], rows, fractions=_is_of_fractions(points[axis][1]))
    if COUNTER not in points or axis == COUNTER:
        return steps, standing | {axis}
    counter = _spread(points[COUNTER], rows)
    both = ~np.isnan(steps) & ~np.isnan(counter)
    if bool((steps[both] == counter[both]).all()):
        return np.where(np.isnan(steps), counter, steps), frozenset({axis, COUNTER})
    used = {axis, COUNTER}
    before = _carried(steps)
    for other in (*step_names(points), *axes):
        if other in used or other not in points:
            continue
        own = _spread(points[other], rows)
        there = ~np.isnan(own)
        if there.any() and float(np.mean(np.abs(own[there] - before[there]) <= 1)) >= _ALIKE:
            steps = np.where(np.isnan(steps), own, steps)
            used.add(other)
    return np.where(np.isnan(counter), steps, _carried(steps)), frozenset(used)


def passed_over(points: Mapping[str, Points], rows: int, used: Collection[str]) -> tuple[str, ...]:
    """What to say of surer names of the step than that of the axis, which most rows have and which do not count them."""
    names = step_names(points)
    axis = next((name for name in names if name in used and not stands(points[name][1])), None)
    if axis is None or COUNTER in points:
        return ()
    surer = ((name, _whole(points[name][1])) for name in names[: names.index(axis)])
    return tuple(
        f"{name!r} {'is the same in every row' if stands(steps) else 'goes back as well as forward'}: the step is {axis!r}"
        for name, steps in surer
        if 2 * len(steps) >= rows and not _moves(steps)
    )


def _axis(points: Mapping[str, Points], rows: int, axes: Collection[str]) -> str | None:
    """The surest name of the step that most rows have and that moves forward; else one that many rows have, or the counter."""
    named = [name for name in step_names(points) if name != COUNTER]
    told = sorted(name for name in axes if name in points and name not in named and bool(_is_whole(points[name][1]).all()))
    whole = {name: _whole(points[name][1]) for name in (*named, *told)}
    moving = {name: len(steps) for name, steps in whole.items() if _moves(steps)}
    for name, count in moving.items():
        if 2 * count >= rows:
            return name
    if COUNTER not in points:
        others = [name for name in named if 2 * np.isfinite(points[name][1]).sum() >= rows and _is_of_fractions(points[name][1])]
        sure = not any(plain_name(name) == "epoch" and _counts(found[1], rows) for name, found in points.items())
        left = [name for name, steps in whole.items() if len(steps) and not _is_of_episodes(name, steps, sure=sure)]
        others += sorted(left, key=lambda name: (name not in moving, stands(whole[name])))
        return next(iter(others), None)
    return next((name for name, count in moving.items() if name in axes or count >= _MANY * rows), COUNTER)


def _moves(steps: Steps) -> bool:
    back, forward = returns(steps), int((steps[1:] > steps[:-1]).sum())
    return back <= MANY_RETURNS * len(steps) and (len(steps) == 1 or forward > _MOSTLY * back)


def _counts(values: NDArray[np.float64], rows: int) -> bool:
    """Whether numbers count the rows: whole, one in each, and each larger than the one before."""
    return len(values) == rows > STANDING and bool(_is_whole(values).all() and (values[1:] > values[:-1]).all())


def _is_of_episodes(name: str, steps: Steps, *, sure: bool) -> bool:
    """Whether what is called steps are those of an episode, its length: they repeat, and go back as well as forward.

    Args:
        name: what they are called.
        steps: the steps.
        sure: whether a name in the singular tells that they are not.
    """
    back, forward = returns(steps), int((steps[1:] > steps[:-1]).sum())
    return (plain_name(name) == "steps" or not sure) and _MOSTLY * back >= forward > 0 and len(np.unique(steps)) < len(steps)


def stands(steps: Steps) -> bool:
    """Whether a counter is the same in all of more rows than a log of one step has."""
    return len(steps) > STANDING and bool((steps == steps[0]).all())


def _is_of_fractions(values: NDArray[np.float64]) -> bool:
    """Whether an axis moves forward by fractions, or beyond the numbers that are whole for sure."""
    told = values[np.isfinite(values)]
    return len(told) > 1 and float(np.mean(~_is_whole(told))) > _FRACTIONS and _moves(told)


def _spread(points: Points, rows: int, *, fractions: bool = False) -> Steps:
    """Whole numbers (or all that are finite) at their rows, NaN elsewhere."""
    at, values = points
    steps = np.full(rows, np.nan)
    steps[at] = np.where(np.isfinite(values) if fractions else _is_whole(values), values, np.nan)
    return steps


def _carried(steps: Steps) -> Steps:
    """Each gap filled with the step before it; before the first, with the first."""
    known = np.flatnonzero(~np.isnan(steps))
    if not len(known):
        return steps
    before = np.maximum(np.searchsorted(known, np.arange(len(steps)), side="right") - 1, 0)
    return np.asarray(steps[known[before]])


def _is_whole(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        found: NDArray[np.bool_] = np.isfinite(values) & (np.abs(values) < 2**53) & (np.floor(values) == values)
    return found


def _whole(values: NDArray[np.float64]) -> Steps:
    found: Steps = values[_is_whole(values)]
    return found


def returns(steps: NDArray[Any]) -> int:
    """How often the step goes back."""
    return int((steps[1:] < steps[:-1]).sum())
