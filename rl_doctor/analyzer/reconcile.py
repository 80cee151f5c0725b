"""The trainer's own numbers against the recomputed ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.dialects.registry import Dialect, Entries, Logged, Window, find_dialect
from rl_doctor.analyzer.engine import lacking
from rl_doctor.analyzer.registry import Metric, Reduction, metrics_for
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.states import Sum
from rl_doctor.schema import RunInfo
from rl_doctor.store.metric_log import MetricLog

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

_RECORDED: Final = "reconcile.recorded"
_RELATIVE: Final = 1e-4
_ABSOLUTE: Final = 1e-6
_FEWEST_DECIMALS: Final = 4
_FEWEST_DIGITS: Final = 3
_MOST_DIGITS: Final = 7


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """One logged metric against its recomputation.

    Attributes:
        name: native name, as the trainer logged it.
        metric: canonical metric that it corresponds to, or None.
        unit: unit of both.
        steps: int64 ``[n]``, steps at which both exist.
        logged: float64 ``[n]``.
        recomputed: float64 ``[n]``.
        tolerance: float64 ``[n]``, what rounding in the trainer and in the log can explain.
    """

    name: str
    metric: str | None
    unit: str
    steps: NDArray[np.int64]
    logged: NDArray[np.float64]
    recomputed: NDArray[np.float64]
    tolerance: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What has to be folded to reconcile a run.

    Attributes:
        metrics: metrics for the engine's one pass, beside those that rules ask for.
        logged: keys of the trainer's dialect.
        canonical: canonical metrics that the run logged under their own name.
        log: what was logged.
        reason: why nothing can be compared, or "".
    """

    metrics: tuple[Metric, ...]
    logged: tuple[Logged, ...]
    canonical: tuple[Metric, ...]
    log: MetricLog
    reason: str


def plan(info: RunInfo, columns: Collection[str], log: MetricLog) -> Plan:
    """Choose what to recompute: the keys that the run's trainer logged, and canonical metrics logged under their own name.

    Args:
        info: the run's description.
        columns: canonical columns that the run has.
        log: what the trainer logged.
    """
    names = set(log.names[log.splits == "train"].tolist())
    dialect = find_dialect(info)
    known = tuple(item for item in dialect.logged(info, columns, names) if item.name in names) if dialect else ()
    lacks = {item.name: lacking(item.reduction.needs, columns, info.config) for item in known}
    logged = tuple(item for item in known if not lacks[item.name])
    canonical = tuple(
        item
        for name, item in metrics_for(columns).items()
        if name in names and item.reduction.level != "logged" and not lacking(item.needs, columns, info.config)
    )
    reason = ""
    if not logged and not canonical:
        reason = _reason(info, dialect, names, {name for lack in lacks.values() for name in lack})
    chosen = [metric for item in logged for metric in _parts(item)]
    if chosen:
        chosen.append(_rows())
    return Plan((*chosen, *canonical), logged, canonical, log, reason)


def _reason(info: RunInfo, dialect: Dialect | None, names: Collection[str], lacks: Collection[str]) -> str:
    """Why nothing can be compared."""
    if not names:
        return "the run has no logged metrics"
    if dialect is None:
        trainer = f"{info.trainer} {info.trainer_version or '(version unknown)'}" if info.trainer else "the trainer (not named)"
        return f"how {trainer} computes what it logs is not known"
    if lacks:
        return f"what {dialect.name} logs needs columns that the run lacks: {', '.join(sorted(lacks))}"
    return f"{dialect.name}: the run's configuration or ranks are not recorded completely"


def compare(chosen: Plan, series: Mapping[str, Series]) -> tuple[Comparison, ...]:
    """Compare what was logged with what the pass gave.

    Args:
        chosen: the plan that the pass followed.
        series: series by metric name; a key whose columns the run lacks has none.

    Returns:
        One comparison per key with at least one step at which both numbers exist.
    """
    found = [_windowed(item, chosen, series) for item in chosen.logged]
    found += [_stepwise(item, chosen.log, series) for item in chosen.canonical]
    return tuple(item for item in found if item is not None and len(item.steps))


def _part(item: Logged, part: str, pick: Callable[[Entries], float]) -> Metric:
    def final(state: Any) -> float:
        return pick(item.entries(state))

    return Metric(f"reconcile.{part}.{item.name}", item.unit, item.reduction, final, "", "")


def _parts(item: Logged) -> tuple[Metric, ...]:
    """The entries of a key as metrics of the engine: their sum, number and tolerance per step."""
    return (
        _part(item, "total", lambda entries: entries.total),
        _part(item, "number", lambda entries: float(entries.number)),
        _part(item, "tolerance", lambda entries: entries.tolerance),
    )


def _rows() -> Metric:
    """Which steps were recorded."""
    counted = Reduction(lambda batch: Sum(0, batch.n_sequences), Sum(), (), (), "token")
    return Metric(_RECORDED, "sequences", counted, lambda state: float(state.count), "", "")


def _windowed(item: Logged, chosen: Plan, series: Mapping[str, Series]) -> Comparison | None:
    parts = [series.get(f"reconcile.{part}.{item.name}") for part in ("total", "number", "tolerance")]
    total, number, tolerance = parts
    if total is None or number is None or tolerance is None:
        return None
    ends, logged = chosen.log.series(item.name)
    keep = np.isfinite(logged)
    ends, logged = ends[keep], logged[keep]
    starts = ends - 1 if item.window == "step" else _starts(ends, chosen)
    inside = np.searchsorted(total.steps, np.stack([starts, ends]), side="right")
    sums = [_between(part.values, inside) for part in (total, number, tolerance)]
    values, slack = _reduce(item.window, sums, ends - starts)
    values[~_recorded(starts, ends, series[_RECORDED].steps)] = np.nan
    return _comparison(item.name, item.metric, item.unit, (ends, logged, values, slack))


def _starts(ends: Steps, chosen: Plan) -> Steps:
    """The step after which each window began: the row before, of any key of the dialect; 0 at the start of training."""
    names = {item.name for item in chosen.logged}
    rows = np.array([name in names for name in chosen.log.names], np.bool_) & (chosen.log.splits == "train")
    boundaries = np.concatenate([[0], np.unique(chosen.log.steps[rows])])
    starts: Steps = boundaries[np.searchsorted(boundaries, ends, side="left") - 1]
    return starts


def _between(values: Floats, inside: NDArray[np.intp]) -> Floats:
    """Sum of ``values`` over each half-open range of indices, ``inside`` being ``[2, n]``."""
    return np.array([float(values[first:last].sum()) for first, last in inside.T.tolist()])


def _reduce(window: Window, sums: Sequence[Floats], steps: Steps) -> tuple[Floats, Floats]:
    total, number, tolerance = sums
    over = steps.astype(np.float64) if window == "per_step" else number
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(number > 0, total / over, np.nan), tolerance / over


def _recorded(starts: Steps, ends: Steps, recorded: Steps) -> NDArray[np.bool_]:
    """Whether each step of each window was recorded."""
    present = np.unique(recorded)
    counts = np.searchsorted(present, ends, side="right") - np.searchsorted(present, starts, side="right")
    complete: NDArray[np.bool_] = counts == ends - starts
    return complete


def _stepwise(item: Metric, log: MetricLog, series: Mapping[str, Series]) -> Comparison | None:
    """A canonical metric that the run logged under its own name: the value of that step."""
    found = series.get(item.name)
    if found is None:
        return None
    steps, logged = log.series(item.name)
    at = np.searchsorted(found.steps, steps)
    hit = at < len(found.steps)
    hit[hit] = found.steps[at[hit]] == steps[hit]
    steps, logged, at = steps[hit], logged[hit], at[hit]
    values = np.where(found.counts[at] > 0, found.values[at], np.nan)
    slack = _ABSOLUTE + _RELATIVE * np.maximum(np.abs(values), np.abs(logged))
    return _comparison(item.name, item.name, item.unit, (steps, logged, values, slack))


def _comparison(name: str, metric: str | None, unit: str, arrays: tuple[Steps, Floats, Floats, Floats]) -> Comparison:
    steps, logged, values, slack = arrays
    keep = np.isfinite(values) & np.isfinite(logged)
    tolerance = slack[keep] + log_rounding(logged[keep])
    return Comparison(name, metric, unit, steps[keep], logged[keep], values[keep], tolerance)


def log_rounding(logged: Floats) -> Floats:
    """What the precision of a log can hide, from how many digits its values have: float64 ``[n]``.

    A log that rounds to d decimals has no value with more; one that rounds to d significant digits likewise. Fewer than four
    decimals are not taken for rounding where every value is a whole number: such values are counts.

    Args:
        logged: the values of one key, float64 ``[n]``.
    """
    if not logged.size:
        return np.zeros(0)
    digits = [_digits(value) for value in logged.tolist()]
    decimals = max(places for places, _ in digits)
    if decimals <= _MOST_DIGITS:
        places = _FEWEST_DECIMALS if decimals == 0 else decimals
        return np.full(logged.size, 0.5 * 10.0**-places)
    significant = max(_FEWEST_DIGITS, *(length for _, length in digits))
    if significant <= _MOST_DIGITS:
        exponent = np.floor(np.log10(np.maximum(np.abs(logged), np.finfo(np.float64).tiny)))
        return np.asarray(0.5 * 10.0 ** (exponent - significant + 1))
    return np.asarray(np.abs(logged) * 2.0**-24)


def _digits(value: float) -> tuple[int, int]:
    """Number of decimals and of significant digits in the shortest form of a number."""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    decimals = max(len(fraction) - int(power or 0), 0)
    return decimals, len((whole + fraction).lstrip("0"))
