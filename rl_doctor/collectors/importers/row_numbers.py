"""Rows whose step is no number to go by: none, one that stands still, fractions; and where another run begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.importers.columns import Points
from rl_doctor.collectors.importers.row_steps import STANDING
from rl_doctor.store.metric_log import split_of
from rl_doctor.store.step_axis import plain_name, step_names

COUNTED: Final = "no row has a step to go by: rows are counted from 1"
"""What is said of a log without steps."""
_PROGRESS: Final = frozenset({"epoch", "train_epoch", "num_tokens", "num_input_tokens_seen", "total_flos"})
"""Plain names of what rows of an evaluation hold as well."""
_START: Final = 0.05
"""Share of a run's steps within which another begins anew."""
_REPEATED: Final = 0.8
"""Share of a run's steps that another repeats; one that was resumed goes back less far."""
_OTHER: Final = 0.5
"""Share of the common values that differ between two runs."""
_FEWEST: Final = 5
"""Steps from which rows are a run."""

Steps = NDArray[np.float64]


def numbered(points: Mapping[str, Points], steps: Steps, filled: NDArray[np.bool_]) -> tuple[Steps, str]:
    """Steps that are whole and move, where the log's own are not.

    Rows are counted where none has a step or where the step is the same in all of them; fractions are replaced by their rank
    among those of the rows of training. A row of an evaluation belongs to the row of training before it.

    Args:
        points: numbers by name.
        steps: of each row, NaN where it has none.
        filled: rows that hold a number.

    Returns:
        Steps, as given where they will do, and what there is to say of them.
    """
    known = ~np.isnan(steps)
    told = steps[known & filled]
    trained = _of_training(points, len(steps)) & filled
    if not len(told) and filled.any():
        return _counted(filled, trained), COUNTED
    if len(told) > STANDING and bool((told == told[0]).all()) and any(_moves(found, known) for found in points.values()):
        return _counted(filled, trained), f"the step is {told[0]:g} in every row, and tells nothing: rows are counted from 1"
    if not len(told) or bool((np.floor(told) == told).all() and (np.abs(told) < 2**53).all()):
        return steps, ""
    order = np.unique(steps[trained & known] if (trained & known).any() else told)
    ranks = np.maximum(np.searchsorted(order, steps, side="right"), 1).astype(np.float64)
    what = "fractions" if np.abs(told).max() < 2**53 else "too large for a step"
    said = f"the steps are {what} ({told.min():g} to {told.max():g}): their order counts, as steps 1 to {len(order):,}"
    return np.where(known, ranks, np.nan), said


def _moves(points: Points, known: NDArray[np.bool_]) -> bool:
    """Whether a series has so many values, and more than one, that they cannot all be of one step."""
    at, values = points
    told = values[known[at]]
    return len(told) > STANDING and not np.array_equal(told, np.full_like(told, told[0]), equal_nan=True)


def _of_training(points: Mapping[str, Points], rows: int) -> NDArray[np.bool_]:
    """Rows that hold a number of the training."""
    trained = np.zeros(rows, np.bool_)
    for name, (at, _) in points.items():
        if split_of(name) == "train" and plain_name(name) not in _PROGRESS and not step_names([name]):
            trained[at] = True
    return trained


def _counted(filled: NDArray[np.bool_], trained: NDArray[np.bool_]) -> Steps:
    count = np.maximum(np.cumsum(trained if trained.any() else filled), 1).astype(np.float64)
    return np.where(filled, count, np.nan)


def last_run(points: Mapping[str, Points], steps: Steps) -> int:
    """The row at which another run begins in the same file, 0 where there is but one.

    The step goes back to its start there, most of the steps before it come again, and most values at them are others. A run that
    was resumed goes back less far, and one that was logged twice says the same again.

    Args:
        points: numbers by name.
        steps: of each row, NaN where it has none.
    """
    rows = np.flatnonzero(~np.isnan(steps))
    told = steps[rows]
    falls = np.flatnonzero(told[1:] < told[:-1]) + 1
    if not len(falls) or len(falls) > 0.1 * len(told):
        return 0
    first, span = told.min(), told.max() - told.min()
    for fall in falls[told[falls] <= first + _START * span][::-1]:
        before, after = np.unique(told[:fall]), np.unique(told[fall:])
        again = np.intersect1d(before, after, assume_unique=True)
        if len(before) < _FEWEST or len(again) < _REPEATED * len(before):
            continue
        return int(rows[fall]) if _others(points, steps, int(rows[fall])) else 0
    return 0


def _others(points: Mapping[str, Points], steps: Steps, start: int) -> bool:
    """Whether most values before and after a row, at the same step, are others."""
    common = differ = 0
    for at, values in points.values():
        kept = ~np.isnan(steps[at])
        early, late = kept & (at < start), kept & (at >= start)
        _, one, two = np.intersect1d(steps[at[early]], steps[at[late]], return_indices=True)
        alike = np.isclose(values[early][one], values[late][two], rtol=1e-6, atol=0.0, equal_nan=True)
        common += len(alike)
        differ += int((~alike).sum())
    return common > 0 and differ > _OTHER * common
