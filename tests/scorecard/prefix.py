"""A run up to a step, and the number of steps after which something is found in it, or half of its damage is done."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.engine import analyze
from rl_doctor.rules import trend
from rl_doctor.store.metric_log import MetricLog
from tests.simulation.run import SimulatedRun, is_token


def up_to(run: SimulatedRun, step: int) -> SimulatedRun:
    """The run as it was when ``step`` was done."""
    points = {key: (steps[steps <= step], values[steps <= step]) for key, (steps, values) in run.log.points.items()}
    logged = MetricLog({key: part for key, part in points.items() if len(part[0])})
    return replace(run.take(np.flatnonzero(run.arrays["step"] <= step)), log=logged)


def steps_of(run: SimulatedRun) -> NDArray[np.int64]:
    """The steps of a run, each once."""
    return np.asarray(np.unique(run.arrays["step"]), np.int64)


def first_difference(run: SimulatedRun, healthy: SimulatedRun) -> int | None:
    """The first step at which a run differs from the healthy one that it was made of; None where it nowhere does."""
    found = [int(step) for step in steps_of(run) if not _same_rows(run, healthy, int(step))][:1]
    for key in {*run.log.points, *healthy.log.points}:
        mine, others = run.log.points.get(key), healthy.log.points.get(key)
        if mine is None or others is None or not np.array_equal(mine[0], others[0]):
            found += [int((mine or others or ([0],))[0][0])]
        elif (apart := np.flatnonzero(~np.isclose(mine[1], others[1], rtol=1e-9, atol=0.0, equal_nan=True))).size:
            found.append(int(mine[0][apart[0]]))
    if run.info != healthy.info or run.dropped_steps or run.skipped_parts:
        found.append(int(steps_of(run)[0]))
    return min(found, default=None)


def damaged_rows(run: SimulatedRun, healthy: SimulatedRun, tokens: int) -> int | None:
    """Number of rows with so many trained tokens whose tokens differ from the healthy run's; None where its rows are others."""
    if not np.array_equal(run.splits, healthy.splits) or "response_mask" not in run.arrays:
        return None
    differs = np.zeros(int(run.splits[-1]), np.bool_)
    for name, values in healthy.arrays.items():
        if is_token(name) and name in run.arrays:
            differs |= ~np.isclose(run.arrays[name], values, rtol=0.0, atol=0.0, equal_nan=True)
    hit = np.bincount(run.rows, differs, len(run.splits) - 1) > 0
    return int(np.sum(hit & (np.bincount(run.rows, run.arrays["response_mask"], len(hit)) >= tokens)))


def _same_rows(run: SimulatedRun, healthy: SimulatedRun, step: int) -> bool:
    mine, others = (np.flatnonzero(one.arrays["step"] == step) for one in (run, healthy))
    if len(mine) != len(others) or run.arrays.keys() != healthy.arrays.keys():
        return False
    token, other = (np.isin(one.rows, rows) for one, rows in ((run, mine), (healthy, others)))
    return all(_equal(run.arrays[name][token if is_token(name) else mine], values[other if is_token(name) else others])
               for name, values in healthy.arrays.items())  # fmt: skip


def _equal(left: NDArray[np.generic], right: NDArray[np.generic]) -> bool:
    return left.shape == right.shape and bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f"))


def half_damaged(run: SimulatedRun, metric: str, begin: int) -> int:
    """Steps from ``begin``, counted with it, until a metric has gone half of its way to where it is furthest from its level.

    The level is the median of the five steps before, or where there are none of the first five; of a metric that jumps from step
    to step the running median of three counts.
    """
    series = analyze(run).series[metric]
    calm = trend.running_median(series.values, 3)
    first = int(np.searchsorted(series.steps, begin))
    away = np.abs(calm[first:] - np.median(series.values[max(first - 5, 0) : first or 5]))
    half = int(series.steps[first + int(np.argmax(away >= 0.5 * away.max()))])
    return int(np.sum((steps_of(run) >= begin) & (steps_of(run) <= half)))
