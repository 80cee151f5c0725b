"""The run in small charts: what each instrument showed, against the run's own beginning, with the findings on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import SEVERITY_ORDER, Evidence, Finding, Severity
from rl_doctor.report.wording import number
from rl_doctor.rules import trend
from rl_doctor.views.kept import kept
from rl_doctor.views.opened import Opened
from rl_doctor.views.table import Table
from rl_doctor.views.thinning import thinned

DEVIATIONS: Final = 3.0
"""The band reaches so many robust standard deviations to both sides of the early median."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A metric that a panel draws, with the short name that it has there."""

    metric: str
    label: str


@dataclass(frozen=True, slots=True)
class Instrument:
    """What a panel may draw.

    Attributes:
        name: of the panel; its title is the message ``run.<name>``.
        shown: metrics in the order of the legend; of those in one inner tuple the first that was measured.
        about: what the names of metrics begin with whose findings belong to it.
    """

    name: str
    shown: tuple[tuple[Quantity, ...], ...]
    about: tuple[str, ...]


def _one(*pairs: tuple[str, str]) -> tuple[Quantity, ...]:
    return tuple(Quantity(metric, label) for metric, label in pairs)


INSTRUMENTS: Final = (
    Instrument(
        "reward",
        (
            _one(("reward.mean", "reward.mean"), ("reward.score_mean", "reward.score_mean")),
            _one(("val.mean_at_n", "val.mean_at_n"), ("val.best_at_n", "val.best_at_n")),
        ),
        ("reward.", "val.", "adv.", "advantage."),
    ),
    Instrument("entropy", (_one(("policy.entropy", "policy.entropy")),), ("policy.entropy",)),
    Instrument(
        "kl_old",
        (
            _one(("policy.kl_old_k1", "k1")),
            _one(("policy.kl_old_k3", "k3"), ("policy.kl_old_k2", "k2"), ("policy.kl_old", "policy.kl_old")),
        ),
        ("policy.kl_old", "policy.first_kl", "policy.later_kl"),
    ),
    Instrument(
        "kl_ref",
        (_one(("ref.kl_k1", "k1")), _one(("ref.kl_k3", "k3"), ("ref.kl_k2", "k2"), ("ref.kl", "ref.kl"))),
        ("ref.", "penalty."),
    ),
    Instrument(
        "ratio",
        (
            _one(("policy.ratio_mean", "mean")),
            _one(("policy.ratio_p99", "p99"), ("policy.ratio_max", "max")),
            _one(("policy.ratio_p01", "p01"), ("policy.ratio_min", "min")),
        ),
        ("policy.ratio", "policy.first_ratio", "policy.later_ratio", "policy.first_zero", "policy.later_zero"),
    ),
    Instrument(
        "clip",
        (
            _one(("policy.clip_frac_low", "low"), ("policy.clip_frac", "clip_frac")),
            _one(("policy.clip_frac_high", "high")),
            _one(("policy.clip_frac_dual", "dual")),
        ),
        ("policy.clip", "policy.outside", "policy.first_outside", "policy.later_outside"),
    ),
    Instrument(
        "mismatch",
        (_one(("mismatch.abs", "mean |Δlogp|"), ("mismatch.prob_abs", "mean |Δp|")), _one(("mismatch.k3", "k3"))),
        ("mismatch.",),
    ),
    Instrument(
        "groups",
        (
            _one(("group.zero_std_frac", "zero std")),
            _one(("group.all_max_frac", "all right")),
            _one(("group.all_min_frac", "all wrong")),
        ),
        ("group.", "signal."),
    ),
    Instrument("length", (_one(("length.mean", "mean"), ("length.trained_mean", "mean")),), ("length.", "ending.", "repeat.")),
    Instrument(
        "truncation",
        (
            _one(("length.truncated_frac", "truncated"), ("length.limit_frac", "at the limit")),
            _one(("length.aborted_frac", "aborted")),
        ),
        ("length.truncated", "length.limit", "length.aborted"),
    ),
    Instrument("gradient", (_one(("optim.grad_norm", "grad_norm")),), ("optim.", "numerics.")),
    Instrument("staleness", (_one(("stale.mean", "mean"),), _one(("stale.max", "max"))), ("stale.",)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A metric over steps, with at most as many points as are worth drawing.

    Attributes:
        metric: canonical name.
        label: short name in its panel.
        unit: of ``values``.
        steps: int64 ``[n]``.
        values: float64 ``[n]``, finite.
        last: the newest value in words.
    """

    metric: str
    label: str
    unit: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    last: str


@dataclass(frozen=True, slots=True)
class Band:
    """The run's own beginning: median and robust deviation of the first steps, as rules take them.

    Attributes:
        centre: the median.
        low: lower end of the band.
        high: upper end.
        first: first step of the window.
        last: its last step.
    """

    centre: float
    low: float
    high: float
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The steps of a finding on a panel."""

    code: str
    name: str
    severity: Severity
    first: int
    last: int
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One small chart.

    Attributes:
        name: of the panel.
        unit: of its values.
        traces: at least one.
        band: of the first trace; None where that is too short for one.
        marks: findings about it.
    """

    name: str
    unit: str
    traces: tuple[Trace, ...]
    band: Band | None
    marks: tuple[Mark, ...]

    @property
    def table(self) -> Table:
        """The drawn points as a table."""
        return _table(self.traces)


@dataclass(frozen=True, slots=True)
class Absent:
    """A panel that is not drawn: its name, and what would have to be recorded for it ("" where nothing is known of that)."""

    name: str
    needs: str


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """All that the page on the run draws.

    Attributes:
        panels: those with data.
        absent: the others.
        first: first step of the run.
        last: last step of the run.
    """

    panels: tuple[Panel, ...]
    absent: tuple[Absent, ...]
    first: int
    last: int

    @property
    def table(self) -> Table:
        """The drawn points as a table: one row for each step, one column for each metric; NaN where a metric has no point."""
        return _table([trace for panel in self.panels for trace in panel.traces])


@kept
def panels(opened: Opened) -> Panels:
    """The panels of a run; those without data are named with what they lack."""
    drawn = []
    absent = []
    for instrument in INSTRUMENTS:
        traces = [trace for choices in instrument.shown if (trace := _first_of(opened, choices)) is not None]
        if traces:
            drawn.append(_panel(opened, instrument, traces))
        else:
            absent.append(Absent(instrument.name, _needs(opened, instrument)))
    first, last = _reach(opened)
    return Panels(tuple(drawn), tuple(absent), first, last)


@kept
def single(opened: Opened, metric: str) -> Panel | None:
    """A panel of one metric; None where the run does not have it."""
    trace = _first_of(opened, (Quantity(metric, metric),))
    if trace is None:
        return None
    family = metric.rsplit("_", 1)[0]
    return _panel(opened, Instrument(metric, (), (metric, family)), [trace])


@kept
def drawable(opened: Opened) -> tuple[str, ...]:
    """Names of all metrics that were measured, in alphabetical order."""
    return tuple(sorted(name for name, series in opened.series.items() if not name.startswith("reconcile.") and _any(series)))


def _table(traces: Sequence[Trace]) -> Table:
    """One row for each step, one column for each metric; NaN where a metric has no point."""
    steps = np.unique(np.concatenate([trace.steps for trace in traces])) if traces else np.zeros(0, np.int64)
    columns: dict[str, NDArray[np.float64] | NDArray[np.int64]] = {"step": steps}
    for trace in traces:
        values = np.full(len(steps), np.nan)
        values[np.searchsorted(steps, trace.steps)] = trace.values
        columns[trace.metric] = values
    return columns


def _any(series: Series) -> bool:
    return bool(np.isfinite(series.values).any())


def _first_of(opened: Opened, choices: Sequence[Quantity]) -> Trace | None:
    for choice in choices:
        series = opened.series.get(choice.metric)
        if series is None:
            continue
        keep = np.isfinite(series.values)
        steps, values = series.steps[keep], series.values[keep]
        if values.size:
            at = thinned(values)
            last = number(float(values[-1]), series.unit)
            return Trace(choice.metric, choice.label, series.unit, steps[at], values[at], last)
    return None


def _panel(opened: Opened, instrument: Instrument, traces: Sequence[Trace]) -> Panel:
    marks = tuple(_marks(opened, instrument, {trace.metric for trace in traces}))
    return Panel(instrument.name, traces[0].unit, tuple(traces), _band(opened.series[traces[0].metric]), marks)


def _band(series: Series) -> Band | None:
    """The early window of the measured steps; a run that is too short for a trend has none."""
    measured = series.measured()
    if len(measured) < trend.SHORTEST:
        return None
    early = trend.early(measured.values)
    reach = DEVIATIONS * early.scale
    steps = measured.steps
    low = early.center - reach
    if measured.values.min() >= 0.0:  # what is never negative has no band below 0
        low = max(low, 0.0)
    return Band(early.center, low, early.center + reach, int(steps[early.first]), int(steps[early.last]))


def _marks(opened: Opened, instrument: Instrument, metrics: set[str]) -> Iterator[Mark]:
    """Findings whose evidence is about what is drawn, the worst last, so that it is drawn on top; each rule's steps once."""
    seen = set()
    for finding in sorted(opened.report.findings, key=lambda finding: SEVERITY_ORDER[finding.severity]):
        for item in finding.evidence:
            if not _belongs(item, instrument, metrics) or item.first_step is None or item.last_step is None:
                continue
            key = finding.code, item.first_step, item.last_step
            if key not in seen:
                seen.add(key)
                yield _mark(finding, int(item.first_step), int(item.last_step))


def _belongs(item: Evidence, instrument: Instrument, metrics: set[str]) -> bool:
    """Whether evidence is about a panel: of the panels whose names fit, the one whose name fits best."""
    name = item.metric.split(" (")[0]
    if name in metrics:
        return True
    best = max((len(start) for other in INSTRUMENTS for start in other.about if name.startswith(start)), default=0)
    return any(name.startswith(start) and len(start) >= best for start in instrument.about)


def _mark(finding: Finding, first: int, last: int) -> Mark:
    return Mark(finding.code, finding.name, finding.severity, first, last, finding.message)


def _needs(opened: Opened, instrument: Instrument) -> str:
    """What the first metric of a panel that is known to lack something lacks."""
    lacking = (opened.missing.get(choice.metric, ()) for choices in instrument.shown for choice in choices)
    return " + ".join(next((names for names in lacking if names), ()))


def _reach(opened: Opened) -> tuple[int, int]:
    run = opened.report.run
    first = 0 if run.first_step is None else run.first_step
    return first, first if run.last_step is None else run.last_step
