"""The trainer's own numbers against the recomputed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.dialects.recognise import in_doubt
from rl_doctor.analyzer.dialects.registry import bounds_of
from rl_doctor.analyzer.needs import lacking
from rl_doctor.analyzer.recompute.lost_rows import lost_rows, sign_of_lost_rows
from rl_doctor.analyzer.recompute.registry import Dialect, Logged, find_dialect
from rl_doctor.analyzer.registry import Metric, Reduction, metrics_for
from rl_doctor.analyzer.rounding import log_rounding
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.sessions import Other, Sessions, others_of, with_others
from rl_doctor.analyzer.states import Keyed, Sum, Sums
from rl_doctor.analyzer.unmet import unmet, version_words
from rl_doctor.analyzer.windows import covered, entry_metrics, entry_series, over_windows
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

_NONFINITE: Final = "numerics.nonfinite."
_BLANK: Final = "a column that it needs holds no finite number then"
_RECORDED: Final = "reconcile.recorded"
_RANKS: Final = "reconcile.ranks"
_FEW: Final = 3
_RELATIVE: Final = 1e-4
_ABSOLUTE: Final = 1e-6


@frozen(eq=False)
class Plan:
    """What has to be folded to reconcile a run.

    Attributes:
        metrics: metrics for the engine's one pass, beside those that rules ask for.
        logged: keys of the trainer's dialect.
        canonical: canonical metrics that the run logged under their own name.
        log: what was logged.
        reason: why nothing can be compared, or "".
        doubts: which keys cannot be, because they mean other things by version; or "".
        info: the run's description.
        columns: canonical columns that the run has.
        missing_rows: name of the metric that counts rows which a step lacks, or "".
        sessions: which steps were recorded in which session.
        others: what stands for the metrics of the logged keys at the steps of sessions with other settings.
        judged_steps: int64 ``[n]``, steps of which these settings are known: only there are the logged keys compared. None: all.
    """

    metrics: tuple[Metric, ...]
    logged: tuple[Logged, ...]
    canonical: tuple[Metric, ...]
    log: MetricLog
    reason: str
    info: RunInfo = RunInfo()
    columns: frozenset[str] = frozenset()
    missing_rows: str = ""
    sessions: Sessions = field(default_factory=Sessions)
    others: tuple[Other, ...] = ()
    judged_steps: Steps | None = None
    doubts: str = ""

    def rows_of(self, item: Logged) -> tuple[Steps, Steps, Floats]:
        """The rows of a key in the log: the step after which each begins, its own step, and the value, each ``[n]``."""
        ends, logged = self.log.series(item.name)
        return ends - 1 if item.window == "step" else self._starts(ends), ends, logged

    def _starts(self, ends: Steps) -> Steps:
        """The row before, of any key of the dialect; 0 where training started.

        A training that resumes averages anew: what it had gathered before is lost.
        """
        rows = [self.log.series(item.name)[0] for item in self.logged]
        boundaries = np.unique(np.concatenate([np.zeros(1, np.int64), *rows, self.sessions.resumed_after()]))
        starts: Steps = boundaries[np.searchsorted(boundaries, ends, side="left") - 1]
        return starts


def plan(info: RunInfo, columns: Collection[str], log: MetricLog, recorded_in: Mapping[int, int] | None = None) -> Plan:
    """Choose what to recompute: the keys that the run's trainer logged, and canonical metrics logged under their own name.

    Args:
        info: the run's description.
        columns: canonical columns that the run has.
        log: what the trainer logged.
        recorded_in: the session that each step was recorded in, where that is known.
    """
    names = set(log.names())
    dialect = find_dialect(info) if names and columns else None  # what recomputes need not be loaded
    known = tuple(item for item in dialect.logged(info, columns, names) if item.name in names) if dialect else ()
    lacks = {item.name: lacking(item.reduction.needs, columns, info.config) for item in known}
    logged = tuple(item for item in known if not lacks[item.name])
    canonical = tuple(
        item
        for name, item in metrics_for(columns).items()
        if name in names and item.reduction.level != "logged" and not lacking(item.needs, columns, info.config)
    )
    doubts = _versions(info, in_doubt(info, names.difference(lacks))) if columns else ""
    reason = ""
    if not logged and not canonical:
        reason = doubts or _reason(info, dialect, columns, names, {name for lack in lacks.values() for name in lack})
    chosen = [metric for item in logged for metric in _parts(item)]
    short = dialect.missing_rows if dialect else None
    if short is not None and (not chosen or lacking(short.needs, columns, info.config)):
        short = None
    if chosen:
        chosen += [_rows(), *([] if short is None else [short])]
    if logged or canonical:
        chosen += [*([_ranks()] if "rank" in columns else []), *lost_rows(info, columns)]
        chosen += _blanks(columns, *(item.reduction for item in logged), *(item.reduction for item in canonical))
    named = "" if short is None else short.name
    sessions, planned = Sessions.of(info, recorded_in), {item.name for item in logged}

    def of_session(described: RunInfo) -> list[Metric]:
        keys = dialect.logged(described, columns, names) if dialect else ()
        return [metric for item in keys if item.name in planned for metric in _parts(item)]

    others, judged = others_of(sessions, dialect.settings if dialect and logged else None, of_session)
    chosen += [metric for other in others for metric in other.metrics.values()]
    if judged is not None and not judged.size and not canonical:
        reason = "the settings of the sessions that recorded the steps are not known"
    metrics = (*chosen, *canonical)
    return Plan(metrics, logged, canonical, log, reason, info, frozenset(columns), named, sessions, others, judged, doubts)


def plan_critic(main: Plan, info: RunInfo, columns: Collection[str], recorded_in: Mapping[int, int] | None = None) -> Plan:
    """Choose what to recompute from the passes of the critic: the logged keys that ``main``, the run's own plan, leaves over."""
    planned = {item.name for item in main.logged} | {item.name for item in main.canonical}
    left = {key: points for key, points in main.log.points.items() if key[0] not in planned}
    return plan(info, columns, MetricLog(left), recorded_in)


def _reason(
    info: RunInfo, dialect: Dialect | None, columns: Collection[str], names: Collection[str], lacks: Collection[str]
) -> str:
    """Why nothing can be compared."""
    if not names:
        return "the run has no logged metrics"
    if not columns:
        return "no recording: nothing to recompute from"
    if dialect is None:
        known = bounds_of(info.trainer_version)
        version = (not known.exact and known.words) or info.trainer_version or "(version unknown)"
        trainer = f"{info.trainer} {version}" if info.trainer else "the trainer (not named)"
        return f"how {trainer} computes what it logs is not known"
    if lacks:
        return f"what {dialect.name} logs needs columns that the run lacks: {', '.join(sorted(lacks))}"
    reasons = Counter(reason for _, reason in unmet(info, columns, names).reasons)
    if reasons:
        return f"{dialect.name}: {'; '.join(reason for reason, _ in reasons.most_common(_FEW))}"
    return f"nothing that was logged is among the numbers of {dialect.name} that can be recomputed"


def _versions(info: RunInfo, doubtful: Sequence[str]) -> str:
    """That these keys cannot be compared because they mean other things by version."""
    if not doubtful:
        return ""
    more = f" and {len(doubtful) - _FEW} more" if len(doubtful) > _FEW else ""
    verb = "means" if len(doubtful) == 1 else "mean"
    return (
        f"what {', '.join(doubtful[:_FEW])}{more} {verb} depends on the version of "
        f"{info.trainer} ({version_words(info)}); trainer_version in run.json tells it"
    )


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
    found = [_settled(item, chosen, series, partial) for item in chosen.logged]
    found += [_stepwise(item, chosen, series, partial) for item in chosen.canonical]
    doubt = sign_of_lost_rows(chosen.info, series)
    return tuple(replace(item, doubt=doubt) for item in found if item is not None and item.compared)


def sampled_out(chosen: Plan, compared: Collection[Comparison]) -> tuple[str, ...]:
    """Names of what is computed from tokens and could be compared at no step."""
    done = {item.name for item in compared}
    items = [(item.name, item.reduction) for item in chosen.logged] + [(item.name, item.reduction) for item in chosen.canonical]
    return tuple(name for name, reduction in items if reduction.reads_tokens and name not in done)


def _parts(item: Logged) -> list[Metric]:
    """The entries of a key, under each of its meanings, as metrics of the engine."""
    meanings = zip(_labels(item), (item, *item.instead), strict=True)
    return [metric for label, one in meanings for metric in entry_metrics(label, one.unit, one.reduction, one.entries)]


def _labels(item: Logged) -> list[str]:
    """A label for each meaning of a key, the first that of the key itself."""
    return [item.name, *(f"{item.name} ({at})" for at in range(1, len(item.instead) + 1))]


def _blanks(columns: Collection[str], *reductions: Reduction) -> list[Metric]:
    """How many numbers of each column that is needed are not finite."""
    names = dict.fromkeys(_NONFINITE + name for one in reductions for name in one.needs)
    known = metrics_for(columns)
    return [known[name] for name in names if name in known]


def _blank_steps(item: Reduction, series: Mapping[str, Series]) -> Steps:
    """Steps at which a needed column is finite at no trained token: counts over NaN would be 0, where they are unknown."""
    found = [one for name in item.needs if (one := series.get(_NONFINITE + name)) is not None]
    return np.concatenate([np.empty(0, np.int64), *(one.steps[(one.counts > 0) & (one.values == one.counts)] for one in found)])


def _rows() -> Metric:
    """Which steps were recorded."""
    counted = Reduction(lambda batch: Sum(0, batch.n_sequences), Sum(), (), (), "token")
    return Metric(_RECORDED, "sequences", counted, lambda state: float(state.count), "", "")


def _ranks() -> Metric:
    """How many ranks a step has rows of."""

    def partial(batch: Batch) -> Keyed:
        return Keyed({(int(rank),): Sums((Sum(0, 1),)) for rank in np.unique(batch.columns["rank"]).tolist()})

    counted = Reduction(partial, Keyed({}), ("rank",), (), "token")
    return Metric(_RANKS, "ranks", counted, lambda state: float(len(state.groups)), "", "")


def _settled(item: Logged, chosen: Plan, series: Mapping[str, Series], partial_steps: Steps) -> Comparison | None:
    """The comparison of a key; of one whose meaning is open that of the first which is equal at every step, if any is."""
    if not item.instead and not item.open:
        return _windowed(item, item.name, chosen, series, partial_steps)
    for label, one in zip(_labels(item), (item, *item.instead), strict=True):
        found = _windowed(one, label, chosen, series, partial_steps)
        equal = found is not None and np.abs(found.logged - found.recomputed) <= found.tolerance
        if found is not None and len(found.steps) and np.all(equal):
            return found
    return None


def _windowed(item: Logged, label: str, chosen: Plan, series: Mapping[str, Series], partial_steps: Steps) -> Comparison | None:
    found = entry_series(label, series)
    if found is None:
        return None
    starts, ends, logged = chosen.rows_of(item)
    *_, (recorded, _) = _kept(chosen, series, partial_steps, item.reduction)
    values, slack = over_windows(item.window, starts, ends, *found)
    values = np.where(covered(starts, ends, recorded) & ~chosen.sessions.mixed(starts, ends), values, np.nan)
    return _comparison(Comparison(item.name, item.metric, item.unit, ends, logged, values, slack))


def _kept(chosen: Plan, series: Mapping[str, Series], partial_steps: Steps, read: Reduction) -> list[tuple[Steps, str]]:
    """The steps that can be compared, by one condition after the other, each with what it means that none is left."""
    recorded = series[_RECORDED].steps
    kept = [(recorded, "no row of the log stands for recorded steps alone")]
    if chosen.missing_rows:
        short = series[chosen.missing_rows]
        recorded = np.setdiff1d(recorded, short.steps[short.values != 0])
        kept.append((recorded, "no step has all rows of its mini-batches"))
    recorded = np.setdiff1d(recorded, _short_of_ranks(chosen, series, recorded))
    kept.append((recorded, _ranks_are_missing(chosen)))
    if chosen.judged_steps is not None:
        recorded = np.intersect1d(recorded, chosen.judged_steps)
        kept.append((recorded, "the settings of the sessions that recorded the steps are not known"))
    if read.reads_tokens:
        recorded = np.setdiff1d(recorded, partial_steps)
        kept.append((recorded, "tokens of the steps were left out to save space"))
    recorded = np.setdiff1d(recorded, _blank_steps(read, series))
    kept.append((recorded, _BLANK))
    return kept


def _ranks_are_missing(chosen: Plan) -> str:
    if "rank" not in chosen.columns:
        return f"the rows do not say their rank, of {chosen.info.world_size}"
    return f"no step has rows of all {chosen.info.world_size} ranks"


def _short_of_ranks(chosen: Plan, series: Mapping[str, Series], steps: Steps) -> Steps:
    """Those of ``steps`` with rows of fewer ranks than the world has: what all ranks logged together is not that of these rows.

    Rows that do not say their rank count as those of one.
    """
    found = series.get(_RANKS)
    ranks = np.ones(len(steps))
    if found is not None:
        at = np.searchsorted(found.steps, steps)
        inside = at < len(found.steps)
        inside[inside] = found.steps[at[inside]] == steps[inside]
        ranks[inside] = found.values[at[inside]]
    return steps[ranks < chosen.sessions.ranks_at(steps)]


def why_not_compared(chosen: Plan, series: Mapping[str, Series], partial_steps: Steps) -> dict[str, str]:
    """For what was planned, by the name that it was logged under, why it could be compared at no step if it was not."""
    return {
        **{item.name: _why_not(item, chosen, series, partial_steps) for item in chosen.logged},
        **{item.name: _why_not_stepwise(item, chosen, series, partial_steps) for item in chosen.canonical},
    }


def _why_not_stepwise(item: Metric, chosen: Plan, series: Mapping[str, Series], partial_steps: Steps) -> str:
    found = series.get(item.name)
    logged, _ = chosen.log.series(item.name)
    steps = np.empty(0, np.int64) if found is None else np.intersect1d(found.steps, logged)
    if not steps.size:
        return "no logged step was recorded"
    if len(_short_of_ranks(chosen, series, steps)) == len(steps):
        return _ranks_are_missing(chosen)
    if item.reduction.reads_tokens and np.isin(steps, partial_steps).all():
        return "tokens of the steps were left out to save space"
    if np.isin(steps, _blank_steps(item.reduction, series)).all():
        return _BLANK
    return "there is nothing to measure at the logged steps"


def _why_not(item: Logged, chosen: Plan, series: Mapping[str, Series], partial_steps: Steps) -> str:
    if _RECORDED not in series or entry_series(item.name, series) is None:
        return "no step was recorded"
    starts, ends, logged = chosen.rows_of(item)
    for steps, reason in _kept(chosen, series, partial_steps, item.reduction):
        if not covered(starts, ends, steps).any():
            return reason
    if not np.isfinite(logged).any():
        return "not one logged value is a finite number"
    if item.open:
        return item.open
    if item.instead:
        told = version_words(chosen.info)
        return f"what it means depends on the version ({told}), and it equals none of these at every step"
    return "what was recorded is not enough to give the number at the logged steps"


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
    hit &= ~np.isin(steps, _short_of_ranks(chosen, series, steps)) & ~np.isin(steps, _blank_steps(item.reduction, series))
    steps, logged, at = steps[hit], logged[hit], at[hit]
    values = np.where(found.counts[at] > 0, found.values[at], np.nan)
    slack = _ABSOLUTE + _RELATIVE * np.maximum(np.abs(values), np.abs(logged))
    return _comparison(Comparison(item.name, item.name, item.unit, steps, logged, values, slack))


def _comparison(whole: Comparison) -> Comparison:
    """Only the steps at which there is a recomputed number, with what the log's rounding adds to the tolerance."""
    real, known = np.isfinite(whole.logged), np.isfinite(whole.recomputed)
    keep, unreal = real & known, known & ~real
    rounding = log_rounding(whole.logged[keep])
    return replace(
        whole, steps=whole.steps[keep], logged=whole.logged[keep], recomputed=whole.recomputed[keep],
        tolerance=whole.tolerance[keep] + rounding, unreal_steps=whole.steps[unreal], unreal=whole.logged[unreal],
    )  # fmt: skip
