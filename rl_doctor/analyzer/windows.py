"""Entries per step, put together over the steps that a row of a log stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.recompute.registry import Entries, Window
from rl_doctor.analyzer.registry import Metric, Reduction
from rl_doctor.analyzer.series import Series

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Steps = NDArray[np.int64]

_PARTS: Final[Mapping[str, Callable[[Entries], float]]] = {
    "total": lambda entries: entries.total,
    "number": lambda entries: float(entries.number),
    "tolerance": lambda entries: entries.tolerance,
}


def entry_metrics(label: str, unit: str, reduction: Reduction, entries: Callable[[Any], Entries]) -> list[Metric]:
    """The sum of entries, their number and their tolerance per step, as metrics of the engine."""
    latest: list[tuple[Any, Entries]] = []  # the three metrics of a state follow each other

    def final(state: Any, pick: Callable[[Entries], float]) -> float:
        if not latest or latest[0][0] is not state:
            latest[:] = [(state, entries(state))]
        return pick(latest[0][1])

    return [
        Metric(f"reconcile.{part}.{label}", unit, reduction, partial(final, pick=pick), "", "") for part, pick in _PARTS.items()
    ]


def entry_series(label: str, series: Mapping[str, Series]) -> tuple[Steps, tuple[Floats, Floats, Floats]] | None:
    """Steps, and at these the sums, numbers and tolerances that ``entry_metrics`` gave, each ``[n]``; None without them."""
    if f"reconcile.total.{label}" not in series:
        return None
    total, number, tolerance = (series[f"reconcile.{part}.{label}"] for part in _PARTS)
    return total.steps, (total.values, number.values, tolerance.values)


def over_windows(window: Window, starts: Steps, ends: Steps, steps: Steps, sums: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Values of the rows of a log, and what rounding can change in them, each ``[n_rows]``; NaN without an entry.

    Args:
        window: how the entries since the row before become one number.
        starts: int64 ``[n_rows]``, the step after which each row begins.
        ends: int64 ``[n_rows]``, the step of each row.
        steps: int64 ``[n]``, in increasing order.
        sums: sums of entries, their numbers and tolerances at ``steps``, each float64 ``[n]``.
    """
    inside = np.searchsorted(steps, np.stack([starts, ends]), side="right")
    total, number, tolerance = (_between(part, inside) for part in sums)
    over = (ends - starts).astype(np.float64) if window == "per_step" else number
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(number > 0, total / over, np.nan), tolerance / over


def _between(values: Floats, inside: NDArray[np.intp]) -> Floats:
    """Sum of ``values`` over each half-open range of indices, ``inside`` being ``[2, n]``."""
    first, last = inside
    if (last - first <= 1).all():  # of one step each, as most logs are
        return np.where(last > first, np.append(values, 0.0)[first], 0.0)
    return np.array([float(values[first:last].sum()) for first, last in inside.T.tolist()])


def covered(starts: Steps, ends: Steps, present: Steps) -> Flags:
    """Whether each step after ``starts[i]`` up to ``ends[i]`` is one of ``present``, bool ``[n]``."""
    present = np.unique(present)
    counts = np.searchsorted(present, ends, side="right") - np.searchsorted(present, starts, side="right")
    complete: Flags = counts == ends - starts
    return complete
