"""The trainer's own numbers against the recomputed ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.dialects.recognise import in_doubt
from rl_doctor.analyzer.dialects.registry import bounds_of
from rl_doctor.analyzer.engine import lacking
from rl_doctor.analyzer.recompute.registry import Dialect, Entries, Hypothesis, Logged, Window, find_dialect
from rl_doctor.analyzer.registry import Metric, Reduction, metrics_for
from rl_doctor.analyzer.rounding import log_rounding
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.sessions import Other, Sessions, others_of, with_others
from rl_doctor.analyzer.states import Sum
from rl_doctor.schema import RunInfo
from rl_doctor.store.metric_log import MetricLog

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]
Factor = tuple[str, str, float | Floats]
"""A number of the run: one word, in words, and its value, or that at each of some steps."""

_RECORDED: Final = "reconcile.recorded"
_FEW: Final = 3
_RELATIVE: Final = 1e-4
_ABSOLUTE: Final = 1e-6
_PARTS: Final[Mapping[str, Callable[[Entries], float]]] = {
    "total": lambda entries: entries.total,
    "number": lambda entries: float(entries.number),
    "tolerance": lambda entries: entries.tolerance,
}


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What a key would be if it were computed in one known wrong way.

    Attributes:
        name: a few words.
        sentence: what the logged number then is or does; follows "the logged <key>".
        values: float64 ``[n]`` at the steps of the comparison, NaN where they cannot be told.
        tolerance: float64 ``[n]``, as that of the comparison.
    """

    name: str
    sentence: str
    values: NDArray[np.float64]
    tolerance: NDArray[np.float64]


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
        explanations: known ways to get it wrong, the most specific first.
        untried: further ones, each with the columns that it needs.
    """

    name: str
    metric: str | None
    unit: str
    steps: NDArray[np.int64]
    logged: NDArray[np.float64]
    recomputed: NDArray[np.float64]
    tolerance: NDArray[np.float64]
    explanations: tuple[Explanation, ...] = ()
    untried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What has to be folded to reconcile a run.

    Attributes:
        metrics: metrics for the engine's one pass, beside those that rules ask for.
        logged: keys of the trainer's dialect.
        canonical: canonical metrics that the run logged under their own name.
        log: what was logged.
        reason: why nothing can be compared, or "".
        doubts: which keys cannot be, because they mean other things by version; or "".
        factors: numbers of the run that a trainer may divide or multiply by once too often.
        missing_rows: name of the metric that counts rows which a step lacks, or "".
        untried: for each key the hypotheses that lack columns, each with these.
        sessions: which steps were recorded in which session.
        others: what stands for the metrics of the logged keys at the steps of sessions with other settings.
        judged_steps: int64 ``[n]``, steps of which these settings are known: only there are the logged keys compared. None: all.
    """

    metrics: tuple[Metric, ...]
    logged: tuple[Logged, ...]
    canonical: tuple[Metric, ...]
    log: MetricLog
    reason: str
    factors: tuple[Factor, ...] = ()
    missing_rows: str = ""
    untried: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sessions: Sessions = field(default_factory=Sessions)
    others: tuple[Other, ...] = ()
    judged_steps: Steps | None = None
    doubts: str = ""


def plan(info: RunInfo, columns: Collection[str], log: MetricLog, recorded_in: Mapping[int, int] | None = None) -> Plan:
    """Choose what to recompute: the keys that the run's trainer logged, and canonical metrics logged under their own name.

    Args:
        info: the run's description.
        columns: canonical columns that the run has.
        log: what the trainer logged.
        recorded_in: the session that each step was recorded in, where that is known.
    """
    names = set(log.names())
    dialect = find_dialect(info)
    known = tuple(item for item in dialect.logged(info, columns, names) if item.name in names) if dialect else ()
    lacks = {item.name: lacking(item.reduction.needs, columns, info.config) for item in known}
    possible = tuple(item for item in known if not lacks[item.name])
    logged = tuple(_testable(item, info, columns) for item in possible)
    canonical = tuple(
        item
        for name, item in metrics_for(columns).items()
        if name in names and item.reduction.level != "logged" and not lacking(item.needs, columns, info.config)
    )
    doubts = _versions(info, in_doubt(info, names.difference(lacks))) if columns else ""
    reason = ""
    if not logged and not canonical:
        reason = doubts or _reason(info, dialect, names, {name for lack in lacks.values() for name in lack})
    chosen = [metric for item in logged for metric in _parts(item)]
    short = dialect.missing_rows if dialect else None
    if short is not None and (not chosen or lacking(short.needs, columns, info.config)):
        short = None
    if chosen:
        chosen += [_rows(), *([] if short is None else [short])]
    untried = {item.name: _untestable(item, info, columns) for item in possible}
    named = "" if short is None else short.name
    sessions = Sessions.of(info, recorded_in)

    def of_session(described: RunInfo) -> list[Metric]:
        keys = dialect.logged(described, columns, names) if dialect else ()
        return [metric for item in keys if item.name in untried for metric in _parts(_testable(item, described, columns))]

    others, judged = others_of(sessions, dialect.settings if dialect and logged else None, of_session)
    chosen += [metric for other in others for metric in other.metrics.values()]
    if judged is not None and not judged.size and not canonical:
        reason = "world size or configuration changed between the sessions, and which of them recorded the steps is not known"
    metrics = (*chosen, *canonical)
    return Plan(metrics, logged, canonical, log, reason, _factors(info), named, untried, sessions, others, judged, doubts)


def plan_critic(main: Plan, info: RunInfo, columns: Collection[str], recorded_in: Mapping[int, int] | None = None) -> Plan:
    """Choose what to recompute from the passes of the critic: the logged keys that ``main``, the run's own plan, leaves over."""
    planned = {item.name for item in main.logged} | {item.name for item in main.canonical}
    left = {key: points for key, points in main.log.points.items() if key[0] not in planned}
    return plan(info, columns, MetricLog(left), recorded_in)


def _reason(info: RunInfo, dialect: Dialect | None, names: Collection[str], lacks: Collection[str]) -> str:
    """Why nothing can be compared."""
    if not names:
        return "the run has no logged metrics"
    if dialect is None:
        known = bounds_of(info.trainer_version)
        version = (not known.exact and known.words) or info.trainer_version or "(version unknown)"
        trainer = f"{info.trainer} {version}" if info.trainer else "the trainer (not named)"
        return f"how {trainer} computes what it logs is not known"
    if lacks:
        return f"what {dialect.name} logs needs columns that the run lacks: {', '.join(sorted(lacks))}"
    return f"{dialect.name}: the run's configuration or ranks are not recorded completely"


def _versions(info: RunInfo, doubtful: Sequence[str]) -> str:
    """That these keys cannot be compared because they mean other things by version."""
    if not doubtful:
        return ""
    told = bounds_of(info.trainer_version).words or "unknown"
    more = f" and {len(doubtful) - _FEW} more" if len(doubtful) > _FEW else ""
    return (
        f"what {', '.join(doubtful[:_FEW])}{more} means depends on the version of {info.trainer} ({told}); "
        "trainer_version in run.json tells it"
    )


def _testable(item: Logged, info: RunInfo, columns: Collection[str]) -> Logged:
    """The key with those of its hypotheses that the run has the columns for."""
    return replace(
        item, hypotheses=tuple(one for one in item.hypotheses if not lacking(one.reduction.needs, columns, info.config))
    )


def _untestable(item: Logged, info: RunInfo, columns: Collection[str]) -> tuple[str, ...]:
    """The others, each with the columns that it lacks."""
    lacks = {one.name: lacking(one.reduction.needs, columns, info.config) for one in item.hypotheses}
    return tuple(f"{name} (needs {', '.join(lack)})" for name, lack in lacks.items() if lack)


def _factors(info: RunInfo) -> tuple[Factor, ...]:
    """Numbers of micro-batches, ranks and epochs where they are known and not 1."""
    numbers = (
        (
            "accumulation",
            "the number of accumulated micro-batches",
            (info.config.native or {}).get("gradient_accumulation_steps"),
        ),
        ("epochs", "the number of epochs", info.config.epochs),
    )
    return tuple((name, f"{words}, {number:g}", float(number)) for name, words, number in numbers if number and number > 1)


def _factors_at(steps: Steps, chosen: Plan) -> tuple[Factor, ...]:
    """Those of the run, and the number of ranks at each of ``steps`` ``[n]`` where it is not 1."""
    ranks = chosen.sessions.ranks_at(steps)
    numbers = np.unique(ranks[~np.isnan(ranks)])
    if not numbers.size or numbers[-1] <= 1:
        return chosen.factors
    words = f"the number of ranks, {' or '.join(f'{number:g}' for number in numbers)}"
    return (*chosen.factors, ("ranks", words, ranks))


def compare(chosen: Plan, series: Mapping[str, Series], partial_steps: Steps | None = None) -> tuple[Comparison, ...]:
    """Compare what was logged with what the pass gave.

    Args:
        chosen: the plan that the pass followed.
        series: series by metric name; a key whose columns the run lacks has none.
        partial_steps: int64 ``[n]``, steps of which tokens were left out: what is computed from tokens is not compared there.

    Returns:
        One comparison per key with at least one step at which both numbers exist.
    """
    partial = np.empty(0, np.int64) if partial_steps is None else partial_steps
    series = with_others(series, chosen.others)
    found = [_windowed(item, chosen, series, partial) for item in chosen.logged]
    found += [_stepwise(item, chosen, series, partial) for item in chosen.canonical]
    return tuple(item for item in found if item is not None and len(item.steps))


def sampled_out(chosen: Plan, compared: Collection[Comparison]) -> tuple[str, ...]:
    """Names of what is computed from tokens and could be compared at no step."""
    done = {item.name for item in compared}
    items = [(item.name, item.reduction) for item in chosen.logged] + [(item.name, item.reduction) for item in chosen.canonical]
    return tuple(name for name, reduction in items if reduction.reads_tokens and name not in done)


def _parts(item: Logged) -> list[Metric]:
    """The entries of a key, and of its hypotheses, as metrics of the engine."""
    found = _sums(item.name, item.unit, item.reduction, item.entries)
    for one in item.hypotheses:
        found += _sums(_label(item, one), item.unit, one.reduction, one.entries)
    return found


def _label(item: Logged, one: Hypothesis) -> str:
    return f"{item.name}: {one.name}"


def _sums(label: str, unit: str, reduction: Reduction, entries: Callable[[Any], Entries]) -> list[Metric]:
    """The sum of entries, their number and their tolerance per step."""
    latest: list[tuple[Any, Entries]] = []  # the three metrics of a state follow each other

    def final(state: Any, pick: Callable[[Entries], float]) -> float:
        if not latest or latest[0][0] is not state:
            latest[:] = [(state, entries(state))]
        return pick(latest[0][1])

    return [
        Metric(f"reconcile.{part}.{label}", unit, reduction, partial(final, pick=pick), "", "") for part, pick in _PARTS.items()
    ]


def _rows() -> Metric:
    """Which steps were recorded."""
    counted = Reduction(lambda batch: Sum(0, batch.n_sequences), Sum(), (), (), "token")
    return Metric(_RECORDED, "sequences", counted, lambda state: float(state.count), "", "")


def _windowed(item: Logged, chosen: Plan, series: Mapping[str, Series], partial_steps: Steps) -> Comparison | None:
    if f"reconcile.total.{item.name}" not in series:
        return None
    ends, logged = chosen.log.series(item.name)
    keep = np.isfinite(logged)
    ends, logged = ends[keep], logged[keep]
    starts = ends - 1 if item.window == "step" else _starts(ends, chosen)
    mixed = chosen.sessions.mixed(starts, ends)
    recorded = series[_RECORDED].steps
    if chosen.missing_rows:
        short = series[chosen.missing_rows]
        recorded = np.setdiff1d(recorded, short.steps[short.values != 0])
    if chosen.judged_steps is not None:
        recorded = np.intersect1d(recorded, chosen.judged_steps)
    whole = np.setdiff1d(recorded, partial_steps)

    def complete(reads: Reduction) -> NDArray[np.bool_]:
        return _recorded(starts, ends, whole if reads.reads_tokens else recorded) & ~mixed

    def over_windows(label: str, reads: Reduction) -> tuple[Floats, Floats]:
        parts = [series[f"reconcile.{part}.{label}"] for part in _PARTS]
        inside = np.searchsorted(parts[0].steps, np.stack([starts, ends]), side="right")
        values, slack = _reduce(item.window, [_between(part.values, inside) for part in parts], ends - starts)
        return np.where(complete(reads), values, np.nan), slack

    values, slack = over_windows(item.name, item.reduction)
    explanations = [
        Explanation(one.name, one.sentence, *over_windows(_label(item, one), one.reduction)) for one in item.hypotheses
    ]
    explanations += _plain_explanations(values, slack, _factors_at(ends, chosen))
    untried = chosen.untried[item.name]
    return _comparison(Comparison(item.name, item.metric, item.unit, ends, logged, values, slack, tuple(explanations), untried))


def _plain_explanations(values: Floats, slack: Floats, factors: Sequence[Factor]) -> list[Explanation]:
    """What any key may be instead of ``values`` ``[n]``, each uncertain by ``slack`` ``[n]``."""
    found = []
    for name, words, number in factors:
        found += [
            Explanation(f"times {name}", f"is multiplied by {words}", values * number, slack * number),
            Explanation(f"divided by {name}", f"is divided by {words}", values / number, slack / number),
        ]
    return [
        Explanation("opposite sign", "has the opposite sign", -values, slack),
        *found,
        Explanation(
            "previous row's value",
            "is the value of the row logged before",
            *(np.append(np.nan, part[:-1]) for part in (values, slack)),
        ),
        Explanation(
            "next row's value", "is the value of the row logged after", *(np.append(part[1:], np.nan) for part in (values, slack))
        ),
    ]


def _starts(ends: Steps, chosen: Plan) -> Steps:
    """The step after which each window began: the row before, of any key of the dialect; 0 where training started.

    A training that resumes averages anew: what it had gathered before is lost.
    """
    rows = [chosen.log.series(item.name)[0] for item in chosen.logged]
    boundaries = np.unique(np.concatenate([np.zeros(1, np.int64), *rows, chosen.sessions.resumed_after()]))
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


def _stepwise(item: Metric, chosen: Plan, series: Mapping[str, Series], partial_steps: Steps) -> Comparison | None:
    """A canonical metric that the run logged under its own name: the value of that step."""
    found = series.get(item.name)
    if found is None:
        return None
    steps, logged = chosen.log.series(item.name)
    at = np.searchsorted(found.steps, steps)
    hit = at < len(found.steps)
    hit[hit] = found.steps[at[hit]] == steps[hit]
    if item.reduction.reads_tokens:
        hit &= ~np.isin(steps, partial_steps)
    steps, logged, at = steps[hit], logged[hit], at[hit]
    values = np.where(found.counts[at] > 0, found.values[at], np.nan)
    slack = _ABSOLUTE + _RELATIVE * np.maximum(np.abs(values), np.abs(logged))
    explanations = tuple(_plain_explanations(values, slack, _factors_at(steps, chosen)))
    return _comparison(Comparison(item.name, item.name, item.unit, steps, logged, values, slack, explanations))


def _comparison(whole: Comparison) -> Comparison:
    """Only the steps at which both numbers exist, with what the log's rounding adds to the tolerance."""
    keep = np.isfinite(whole.recomputed) & np.isfinite(whole.logged)
    rounding = log_rounding(whole.logged[keep])
    explanations = tuple(
        replace(one, values=one.values[keep], tolerance=one.tolerance[keep] + rounding) for one in whole.explanations
    )
    return replace(
        whole, steps=whole.steps[keep], logged=whole.logged[keep], recomputed=whole.recomputed[keep],
        tolerance=whole.tolerance[keep] + rounding, explanations=explanations,
    )  # fmt: skip
