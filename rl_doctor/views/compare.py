"""Runs beside each other: the metrics that they share, where these part first, and what is configured otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import SEVERITY_ORDER
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.views.divergence import Divergence, divergence, moving_median
from rl_doctor.views.opened import Opened
from rl_doctor.views.panels import INSTRUMENTS
from rl_doctor.views.table import Table
from rl_doctor.views.thinning import thinned

Floats = NDArray[np.float64]

ALIGNMENTS: Final = ("step", "tokens", "time")
PANELS: Final = 9
"""Small charts at most; what parts first comes first."""
POINTS: Final = 1_000
_COUNTED: Final = (
    "policy.mean_logprob", "policy.mean_old_logprob", "policy.ratio_mean", "adv.mean", "policy.entropy", "policy.old_entropy",
)  # fmt: skip
"""Metrics whose counts are the tokens trained on."""
_SECONDS: Final = "time.step"
_IGNORED: Final = frozenset(
    {"run_id", "sessions", "status", "config", "extra", "schema_version", "unknown_columns", "unknown_config"}
)
_LETTERS: Final = 120


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A metric of one run: positions and values, float64 ``[n]``, with few enough points to draw."""

    run: str
    positions: Floats
    values: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Parting:
    """How a metric of the first run stands to that of another.

    Attributes:
        metric: canonical name.
        unit: of the values.
        other: the other run.
        found: what was found at the shared points.
        position: where it parts, on the axis; None where it does not.
        step: the first run's step there; None where it does not.
        last: the first run's last shared step, or None where no step is shared.
        equal_to: the first run's last step up to which both are the same number; None where they never are.
    """

    metric: str
    unit: str
    other: str
    found: Divergence
    position: float | None
    step: int | None
    last: int | None
    equal_to: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One metric of all runs.

    Attributes:
        metric: canonical name.
        unit: of the values.
        lines: one for each run that has it.
        partings: how the first run stands to each of the others.
        band: positions, lower and upper end of the band around the other run, float64 ``[3, n]``, where there is only one other.
    """

    metric: str
    unit: str
    lines: tuple[Line, ...]
    partings: tuple[Parting, ...]
    band: Floats | None

    @property
    def first(self) -> float:
        """Where it parts first; infinity where it does not."""
        return min((one.position for one in self.partings if one.position is not None), default=np.inf)

    @property
    def table(self) -> Table:
        """The drawn points."""
        return {
            "run": [line.run for line in self.lines for _ in line.values],
            "position": np.concatenate([line.positions for line in self.lines]),
            self.metric: np.concatenate([line.values for line in self.lines]),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that is configured otherwise: its name, and its value in each run, "" where that does not tell it."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A rule that does not find the same in all runs: what it says of each, the worst severity and the first step, or ""."""

    code: str
    name: str
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Runs beside each other.

    Attributes:
        runs: their names; the first is held against the others.
        by: what they are aligned by.
        alignments: what they could be aligned by.
        panels: shared metrics, those that part first at the front.
        chosen: the metric that was asked for, or the one that parts first; None where none is shared.
        settings: what is configured otherwise, canonical settings first.
        untold: number of further settings that only some of the runs tell.
        findings: what the rules do not find in all of them.
        metrics: names of all metrics that can be drawn.
    """

    runs: tuple[str, ...]
    by: str
    alignments: tuple[str, ...]
    panels: tuple[Panel, ...]
    chosen: Panel | None
    settings: tuple[Setting, ...]
    untold: int
    findings: tuple[Difference, ...]
    metrics: tuple[str, ...]

    @property
    def parted(self) -> tuple[Parting, ...]:
        """What parts, the earliest first."""
        found = [one for panel in self.panels for one in panel.partings if one.position is not None]
        return tuple(sorted(found, key=lambda one: one.position or 0.0))

    def later(self, first: int) -> int:
        """How many part after the ``first`` ones."""
        return max(len(self.parted) - first, 0)

    @property
    def short(self) -> int:
        """Number of the usual metrics that have too few shared points."""
        return sum(any(one.found.short for one in panel.partings) for panel in self.panels)

    @property
    def small(self) -> tuple[Panel, ...]:
        """The panels that are drawn small."""
        return self.panels[:PANELS]

    @property
    def table(self) -> Table:
        """Where the usual metrics part."""
        each = [one for panel in self.panels for one in panel.partings]
        return {
            "metric": [one.metric for one in each], "other run": [one.other for one in each],
            "shared": [one.found.n for one in each],
            "parts at step": [one.step for one in each], "points after": [one.found.stays for one in each],
            "here": [one.found.here for one in each], "there": [one.found.there for one in each],
            "band": [one.found.limit for one in each],
        }  # fmt: skip

    @property
    def settings_table(self) -> Table:
        """What is configured otherwise."""
        told: dict[str, list[str]] = {"setting": [one.name for one in self.settings]}
        return told | {run: [one.values[at] for one in self.settings] for at, run in enumerate(self.runs)}

    @property
    def findings_table(self) -> Table:
        """What the rules do not find in all of them."""
        told = {"code": [one.code for one in self.findings], "rule": [one.name for one in self.findings]}
        return told | {run: [one.told[at] for one in self.findings] for at, run in enumerate(self.runs)}


def compare(runs: Mapping[str, Opened], by: str | None = None, metric: str | None = None) -> Compared:
    """Hold the first run against the others.

    Args:
        runs: two or more, by name.
        by: one of ``ALIGNMENTS``; by default, and where a run does not tell it, the step.
        metric: a metric that is wanted beside the usual ones.
    """
    axes = {name: {run: _axis(opened, name) for run, opened in runs.items()} for name in ALIGNMENTS}
    known = tuple(name for name, of_runs in axes.items() if all(axis is not None for axis in of_runs.values()))
    chosen = by if by in known else ALIGNMENTS[0]
    settings, untold = _settings(runs)
    shared = tuple(sorted(_shared(runs)))
    usual = list(dict.fromkeys(name for choices in _usual() if (name := next((one for one in choices if one in shared), ""))))
    panels = [_panel(runs, axes[chosen], name) for name in usual]
    panels.sort(key=lambda panel: panel.first)
    wanted = next((panel for panel in panels if panel.metric == metric), None)
    if wanted is None and metric in shared:
        wanted = _panel(runs, axes[chosen], metric)
    return Compared(
        tuple(runs), chosen, known, tuple(panels), wanted or (panels[0] if panels else None), settings, untold,
        tuple(_findings(runs)), shared,
    )  # fmt: skip


def _usual() -> Iterator[tuple[str, ...]]:
    """The metrics of the page on the run; of those together the first that the runs share is taken."""
    for instrument in INSTRUMENTS:
        yield from (tuple(one.metric for one in choices) for choices in instrument.shown)


def _shared(runs: Mapping[str, Opened]) -> set[str]:
    """Metrics with a measured value in the first run and in another one."""
    measured = [{name for name, series in opened.series.items() if np.isfinite(series.values).any()} for opened in runs.values()]
    return measured[0] & set().union(*measured[1:])


def _axis(opened: Opened, by: str) -> Series | None:
    """Where each step stands on an axis; None where the run does not tell."""
    if by == "step":
        return Series("step", "", np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))
    if by == "tokens":
        counted = (opened.series[name] for name in _COUNTED if name in opened.series)
        found = next((series for series in counted if series.counts.size and int(series.counts.max()) > 1), None)
        return (
            None if found is None else Series(by, "tokens", found.steps, np.cumsum(found.counts).astype(np.float64), found.counts)
        )
    seconds = opened.series.get(_SECONDS)
    seconds = None if seconds is None else seconds.measured()
    if seconds is None or len(seconds) < 2:
        return None
    return Series(by, "s", seconds.steps, np.cumsum(seconds.values), seconds.counts)


def _positions(steps: NDArray[np.int64], axis: Series | None) -> Floats:
    """Where steps stand, float64 ``[n]``; NaN for those that the axis does not reach."""
    if axis is None or axis.metric == "step":
        return steps.astype(np.float64)
    return np.interp(steps, axis.steps, axis.values, left=np.nan, right=np.nan)


def _panel(runs: Mapping[str, Opened], axes: Mapping[str, Series | None], metric: str) -> Panel:
    lines, steps, unit = {}, np.empty(0, np.int64), "1"
    for name, opened in runs.items():
        series = opened.series.get(metric)
        if series is None:
            continue
        series = series.measured()
        places = _positions(series.steps, axes[name])
        keep = np.isfinite(places)
        if keep.any():
            lines[name] = Line(name, places[keep], series.values[keep])
            unit = series.unit
        if name == next(iter(runs)):
            steps = series.steps[keep]
    first = next(iter(runs))
    exact = all(axis is None or axis.metric == "step" for axis in axes.values())
    partings, band = [], None
    for name in list(runs)[1:]:
        if first not in lines or name not in lines:
            continue
        at, there = _together(lines[first], lines[name], exact=exact)
        found = divergence(lines[first].values[at], there)
        partings.append(_parting(metric, unit, name, found, lines[first].positions[at], steps[at]))
        if len(runs) == 2 and len(at) > 1:
            middle = moving_median(there)
            few = thinned(middle, POINTS)
            band = np.stack([lines[first].positions[at], middle - found.limit, middle + found.limit])[:, few]
    return Panel(metric, unit, tuple(map(_drawn, lines.values())), tuple(partings), band)


def _together(here: Line, there: Line, *, exact: bool) -> tuple[NDArray[np.int64], Floats]:
    """Points of ``here`` that the other line has too: their indices, and its values there; between its points by interpolation.

    With ``exact`` only positions that both have.
    """
    if exact:
        _, at, other = np.intersect1d(here.positions, there.positions, assume_unique=True, return_indices=True)
        return at, there.values[other]
    order = np.argsort(there.positions, kind="stable")
    values = np.interp(here.positions, there.positions[order], there.values[order], left=np.nan, right=np.nan)
    at = np.flatnonzero(np.isfinite(values))
    return at, values[at]


def _parting(metric: str, unit: str, other: str, found: Divergence, positions: Floats, steps: NDArray[np.int64]) -> Parting:
    where = None if found.at is None else float(positions[found.at])
    step = None if found.at is None else int(steps[found.at])
    last = int(steps[-1]) if len(steps) else None
    return Parting(metric, unit, other, found, where, step, last, int(steps[found.equal - 1]) if found.equal else None)


def _drawn(line: Line) -> Line:
    at = thinned(line.values, POINTS)
    return Line(line.run, line.positions[at], line.values[at])


def _settings(runs: Mapping[str, Opened]) -> tuple[tuple[Setting, ...], int]:
    """What is told otherwise, canonical names before the trainer's own, and how much else only some of the runs tell."""
    each = [dict(_told(opened.logged.info)) for opened in runs.values()]
    names = dict.fromkeys(name for told in each for name in told)
    found = [Setting(name, tuple(told.get(name, "") for told in each)) for name in names]
    other = tuple(one for one in found if len({*one.values} - {""}) > 1)
    return other, sum(len({*one.values} - {""}) == 1 and "" in one.values for one in found)


def _told(info: RunInfo) -> Iterator[tuple[str, str]]:
    """Everything that a run says of itself: its members, its configuration, and the trainer's own."""
    for member in fields(RunInfo):
        value = getattr(info, member.name)
        if member.name not in _IGNORED and value is not None:
            yield member.name, _short(value)
    for setting in fields(RunConfig):
        value = getattr(info.config, setting.name)
        if setting.name != "native" and value is not None:
            yield f"config.{setting.name}", _short(value)
    yield from _nested("", info.config.native or {})


def _nested(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _nested(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", _short(value)


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"


def _findings(runs: Mapping[str, Opened]) -> Iterator[Difference]:
    """Rules whose worst severity is not the same in all runs, the most severe first."""
    each: Sequence[dict[str, tuple[str, int | None]]] = [{} for _ in runs]
    names: dict[str, str] = {}
    for told, opened in zip(each, runs.values(), strict=True):
        for finding in sorted(opened.report.findings, key=lambda one: SEVERITY_ORDER[one.severity]):
            names[finding.code] = finding.name
            told[finding.code] = finding.severity, finding.first_step
    worst = {code: max(SEVERITY_ORDER[told[code][0]] for told in each if code in told) for code in names}
    for code in sorted(names, key=lambda code: (-worst[code], code)):
        found = [told.get(code) for told in each]
        if len({one and one[0] for one in found}) > 1:
            words = ("" if one is None else one[0] if one[1] is None else f"{one[0]}, step {one[1]}" for one in found)
            yield Difference(code, names[code], tuple(words))
