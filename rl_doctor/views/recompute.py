"""The trainer's own numbers against the recomputed ones: which differ, at which steps, and what fits them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.comparison import Comparison, Fit, allowed, differing, fits, unequal
from rl_doctor.report.model import Finding
from rl_doctor.rules.reconcile import logged_metric_mismatch
from rl_doctor.views.kept import kept
from rl_doctor.views.opened import Opened
from rl_doctor.views.table import Table
from rl_doctor.views.thinning import thinned

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

POINTS: Final = 600
"""Points that are kept for each of three lines; together at most 1,800 for each."""
_LIMITS: Final = logged_metric_mismatch.limits
_MOST_FITS: Final = 6


@dataclass(frozen=True, slots=True)
class Compared:
    """A number of the trainer's that was recomputed, as it stands in the list.

    Attributes:
        name: as the trainer logged it.
        metric: canonical metric that it corresponds to, or "".
        compared: number of steps at which both are known.
        differing: number of those at which they are not equal.
        first: first step at which they are not, or None.
        told: whether so many differ that the rule tells it.
        fit: what fits best where it does, in a few words; "" where nothing does or nothing had to be looked for.
    """

    name: str
    metric: str
    compared: int
    differing: int
    first: int | None
    told: bool
    fit: str


@dataclass(frozen=True, slots=True, eq=False)
class Recomputed:
    """All of the trainer's numbers.

    Attributes:
        compared: those that were recomputed, those that differ first.
        left: those that could be and were not, each with the reason.
        absent: number of those that cannot be recomputed from what is recorded.
        undefined: number of those that the trainer's table does not define.
        reason: why the rule could not judge, or "".
    """

    compared: tuple[Compared, ...]
    left: tuple[tuple[str, str], ...]
    absent: int
    undefined: int
    reason: str

    @property
    def differing(self) -> tuple[Compared, ...]:
        """Those that differ at one step or more."""
        return tuple(item for item in self.compared if item.differing)

    @property
    def table(self) -> Table:
        """The list."""
        items = self.compared
        return {
            "logged name": [item.name for item in items], "metric": [item.metric for item in items],
            "steps compared": [item.compared for item in items], "differ": [item.differing for item in items],
            "first": [item.first for item in items], "fits": [item.fit for item in items],
        }  # fmt: skip


@kept
def recomputed(opened: Opened) -> Recomputed:
    """Everything that the trainer logged, by what became of it."""
    run = opened.report.run
    rule = next((one for one in opened.report.results if one.code == logged_metric_mismatch.code), None)
    items = sorted((_compared(item) for item in opened.comparisons), key=lambda item: (not item.told, -item.differing, item.name))
    reason = rule.detail if rule is not None and rule.outcome == "skipped" else ""
    return Recomputed(tuple(items), run.not_recomputed, run.not_recomputable, run.undefined, reason)


def _compared(item: Comparison) -> Compared:
    wrong = unequal(item, _LIMITS["relative"])
    steps = np.union1d(item.steps[wrong], item.unreal_steps)
    told = differing(item, _LIMITS)
    fitting = [] if told is None else [fit for fit in fits(item, told) if fit.fits(_LIMITS["explained"])]
    return Compared(
        item.name, item.metric or "", item.compared, len(steps), int(steps[0]) if steps.size else None,
        told is not None or bool(item.unreal_steps.size), fitting[0].explanation.name if fitting else "",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """A known way to compute a number wrongly, held against the log.

    Attributes:
        name: a few words.
        sentence: what the logged number then is or does; follows "the logged <key>".
        equal: number of the steps looked at at which it equals the log.
        looked: number of steps that differ and were looked at.
        worst: its largest distance from the log at these, in tolerances.
        approximate: whether the data can only be consistent with it.
    """

    name: str
    sentence: str
    equal: int
    looked: int
    worst: float
    approximate: bool


@dataclass(frozen=True, slots=True, eq=False)
class Detail:
    """One number of the trainer's beside its recomputation.

    Attributes:
        name: as the trainer logged it.
        metric: canonical metric that it corresponds to, or "".
        unit: of both.
        steps: int64 ``[n]``.
        logged: float64 ``[n]``.
        recomputed: float64 ``[n]``.
        allowed: float64 ``[n]``, difference up to which they count as equal.
        wrong: bool ``[n]``, where they do not.
        best: float64 ``[n]``, what the best fitting hypothesis gives; NaN where it was not looked at.
        fitting: hypotheses that fit, the best first.
        rejected: names of those that do not.
        untried: names of those that could not be tried, each with the columns that are lacking.
        unreal: steps at which NaN or an infinity was logged and the recomputed number is finite.
        finding: what the rule says of it, or None.
        whole: number of steps at which both are known; more than ``n`` where points were left out of the drawing.
        doubt: what shows that rows of the recording may be missing, or "".
    """

    name: str
    metric: str
    unit: str
    steps: Steps
    logged: Floats
    recomputed: Floats
    allowed: Floats
    wrong: NDArray[np.bool_]
    best: Floats
    fitting: tuple[Hypothesis, ...]
    rejected: tuple[str, ...]
    untried: tuple[tuple[str, str], ...]
    unreal: Steps
    finding: Finding | None
    whole: int
    doubt: str = field(default="")

    @property
    def first(self) -> int:
        """First step at which either is known."""
        return int(min(steps[0] for steps in (self.steps, self.unreal) if steps.size))

    @property
    def last(self) -> int:
        """Last one."""
        return int(max(steps[-1] for steps in (self.steps, self.unreal) if steps.size))

    @property
    def difference(self) -> Floats:
        """Logged less recomputed, float64 ``[n]``."""
        return np.asarray(self.logged - self.recomputed, np.float64)

    @property
    def table(self) -> Table:
        """What is drawn, by step."""
        told = {
            "step": self.steps, "logged": self.logged, "recomputed": self.recomputed, "difference": self.difference,
            "allowed": self.allowed, "differs": self.wrong,
        }  # fmt: skip
        return {**told, self.fitting[0].name: self.best} if self.fitting else told


@kept
def detail(opened: Opened, name: str | None = None) -> Detail | None:
    """The comparison of a name in the log, else of a canonical metric, else the first of the list; None if there is none."""
    order = [item.name for item in recomputed(opened).compared]
    by_name = {item.name: item for item in opened.comparisons}
    by_metric = {item.metric: item for item in reversed(opened.comparisons) if item.metric}
    chosen = by_name.get(name or "") or by_metric.get(name or "") or (by_name[order[0]] if order else None)
    return None if chosen is None else _detail(opened, chosen)


def _detail(opened: Opened, item: Comparison) -> Detail:
    with np.errstate(over="ignore", invalid="ignore"):  # numbers near the largest that there is are data
        wrong, bound = unequal(item, _LIMITS["relative"]), allowed(item, _LIMITS["relative"])
        told = fits(item, wrong) if wrong.any() else []
        off = item.logged - item.recomputed
    fitting = [fit for fit in told if fit.fits(_LIMITS["explained"])]
    rejected = tuple(dict.fromkeys(fit.explanation.name for fit in told if fit not in fitting))
    best = fitting[0].explanation.values if fitting else np.full(len(item.steps), np.nan)
    at = np.unique(np.concatenate([thinned(np.nan_to_num(values), POINTS) for values in (item.logged, item.recomputed, off)]))
    findings = (
        found for result in opened.report.results if result.code == logged_metric_mismatch.code for found in result.findings
    )
    finding = next((found for found in findings if _is_about(found, item.name)), None)
    return Detail(
        item.name, item.metric or "", item.unit, item.steps[at], item.logged[at], item.recomputed[at], bound[at], wrong[at],
        best[at], tuple(_hypothesis(fit) for fit in fitting[:_MOST_FITS]), rejected,
        tuple((one.name, ", ".join(one.columns)) for one in item.untried), item.unreal_steps, finding, item.compared, item.doubt,
    )  # fmt: skip


def _is_about(found: Finding, name: str) -> bool:
    return any((item.where or {}).get("logged_name") == name for item in found.evidence)


def _hypothesis(fit: Fit) -> Hypothesis:
    one = fit.explanation
    return Hypothesis(one.name, one.sentence, fit.equal, fit.told, fit.worst, one.approximate)
