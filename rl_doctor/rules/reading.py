"""How rules read a view: alternatives among metrics, evidence, and what the reward does meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Evidence
from rl_doctor.rules import trend
from rl_doctor.rules.registry import Skip
from rl_doctor.rules.view import View

REWARD: Final = ("reward.mean", "reward.score_mean")
VALIDATION: Final = ("val.mean_at_n", "val.best_at_n")
PROGRESS: Final = (*VALIDATION, *REWARD, "reward.max", "reward.min")
"""What ``progress`` reads: rules that call it ask for these."""
KL_REFERENCE: Final = ("ref.kl_k3", "ref.kl_k2", "ref.kl_abs", "ref.kl_k1", "ref.kl")
KL_OLD: Final = ("policy.kl_old_k3", "policy.kl_old_k2", "policy.kl_old_abs", "policy.kl_old_k1", "policy.kl_old")
TINY_STEP: Final = 1e-5
"""Learning rate below which a step of Adam is less than half a unit in the last place of most bfloat16 weights."""
COARSE: Final = 1e-4
"""A log that rounds to this or more shows small numbers as 0."""
TRUNCATION: Final = (
    "length.truncated_frac_completed", "length.limit_frac_completed", "length.truncated_frac", "length.limit_frac",
)  # fmt: skip
"""Share of responses cut for their length: as the engine says, else as long as the limit; without aborted ones where known."""


def first_of(view: View, *names: str) -> Series | None:
    """The first of several metrics that was measured; None if none was."""
    return next((found for name in names if (found := view.get(name)) is not None), None)


def uncorrected(view: View) -> bool:
    """Whether the configuration names no correction for the sampler's distribution."""
    return view.config.is_correction in (None, "", "none")


def lacking(view: View, *names: str) -> Skip:
    """The skip of a rule that would take any one of ``names`` and has none: what the first of them lacks."""
    missing = view.missing.get(names[0], ())
    if missing:
        return Skip("column", f"{names[0]} needs {', '.join(missing)}", tuple(missing))
    return Skip("data", f"nothing measured for {' or '.join(names)}")


def too_short(series: Series, least: int = trend.SHORTEST) -> Skip | None:
    """A skip if the series has fewer than ``least`` measured steps."""
    if len(series) >= least:
        return None
    return Skip("length", f"inconclusive: {series.metric} is measured at {counted(len(series), 'step')}, and {least} are needed")


def counted(number: int, singular: str) -> str:
    """A number with its noun."""
    return f"{number} {singular}" if number == 1 else f"{number} {singular}s"


def items(series: Series, singular: str) -> str:
    """How much a series is measured on: items at steps, or rows of a log, which do not say of how many items each is."""
    if logged(series):
        return counted(len(series), "row")
    return f"{counted(int(series.counts.sum()), singular)} at {counted(len(series), 'step')}"


def evidence(
    series: Series,
    first: int = 0,
    last: int = -1,
    *,
    value: float | None = None,
    baseline: float | None = None,
    limit: float | None = None,
    where: Mapping[str, Any] | None = None,
    share_of_steps: str | None = None,
) -> Evidence:
    """Evidence from the points ``first`` to ``last`` of a series (indices, both included); by default their median.

    ``share_of_steps`` says for what the value counts steps, where it is a share of them and not a value of the metric.
    """
    last = last % len(series)
    part = slice(first, last + 1)
    if share_of_steps is not None and value is not None:
        name = f"{series.metric} ({share_of_steps}, share of steps)"
        return Evidence(name, int(series.steps[first]), int(series.steps[last]), value, None, limit, "1", last + 1 - first, where)
    return Evidence(
        series.metric,
        int(series.steps[first]),
        int(series.steps[last]),
        float(np.median(series.values[part])) if value is None else float(value),
        None if baseline is None else float(baseline),
        limit,
        series.unit,
        int(series.counts[part].sum()),
        where,
    )


def change_evidence(series: Series, begin: int, moved: trend.Change, limit: float) -> Evidence:
    """Evidence from ``begin`` on for a change measured on the logarithm of ``series``; ``limit`` is a share of its start."""
    start = math.exp(moved.early.center)
    return evidence(series, begin, value=math.exp(moved.late.center), baseline=start, limit=limit * start)


def span(series: Series, first: int, last: int = -1) -> str:
    """The steps of points ``first`` to ``last``, in words."""
    last = last % len(series)
    start, end = int(series.steps[first]), int(series.steps[last])
    return f"step {start}" if start == end else f"steps {start} to {end}"


def logged(series: Series) -> bool:
    """Whether a series was logged by the trainer, which counts each value once, and not recomputed from tokens or sequences."""
    return bool(np.all(series.counts <= 1))


def rounding(series: Series) -> float:
    """The step that the log rounds a series to: a power of ten from .01 to 1e-8, or 0 where the values show none."""
    values = series.values[series.values != 0.0]
    for decimals in range(2, 9):
        scaled = values * 10.0**decimals
        whole = np.rint(scaled)
        if values.size and whole.all() and bool(np.all(np.abs(scaled - whole) <= np.minimum(1e-6 * np.abs(scaled), 0.01))):
            return float(10.0**-decimals)
    return 0.0


def positive(series: Series) -> Series:
    """The points above 0: a step on which a non-negative quantity is exactly 0 says nothing about its level."""
    return series.where(series.values > 0.0)


def times(factor: float) -> str:
    """A factor in words; beyond a thousand the number says nothing more."""
    return f"{factor:.2g} times" if factor < 10 else f"{factor:.0f} times" if factor <= 1000 else "more than 1000 times"


@frozen
class Progress:
    """What the reward does over the run.

    Attributes:
        course: rising, falling, flat or unknown.
        at_ceiling: the late level is within a tenth of the largest reward seen.
        series: what was looked at, or None.
    """

    course: trend.Course
    at_ceiling: bool
    series: Series | None

    @property
    def good(self) -> bool:
        """Whether the run learns or has learned."""
        return self.course == "rising" or (self.at_ceiling and self.course != "falling")

    def words(self) -> str:
        """For a finding's text."""
        if self.series is None:
            return "the reward was not recorded"
        if len(self.series) > 1 and float(np.ptp(self.series.values)) == 0.0:
            return f"the reward is {float(self.series.values[0]):.3g} at every step"
        if self.course == "unknown":
            return "the reward has too few steps to tell its course"
        first, last = trend.early(self.series.values).center, trend.late(self.series.values).center
        where = ", near its ceiling" if self.at_ceiling and self.course != "falling" else ""
        course = "has no clear trend" if self.course == "flat" else f"is {self.course}"
        return f"the reward {course} ({first:.3g} to {last:.3g}{where})"


def progress(view: View, since: int | None = None) -> Progress:
    """What the validation score or else the reward does; with ``since`` a fall after that step counts first."""
    series = first_of(view, *VALIDATION)
    if series is None or len(series) < trend.SHORTEST:
        series = first_of(view, *REWARD) or series
    if series is None:
        return Progress("unknown", at_ceiling=False, series=None)
    values = series.values
    course = trend.course(values)
    if course == "flat":
        course = trend.leaning(values)
    if since is not None and course != "unknown":
        course = _since(series, since, course)
    top = view.get("reward.max")
    floor = view.get("reward.min")
    at_ceiling = False
    if top is not None and floor is not None and series.metric in REWARD:
        highest, lowest = float(top.values.max()), float(floor.values.min())
        at_ceiling = highest > lowest and trend.late(values).center >= highest - 0.1 * (highest - lowest)
    return Progress(course, at_ceiling, series)


def _since(series: Series, step: int, course: trend.Course) -> trend.Course:
    """A fall from the level just before ``step`` outweighs an earlier rise."""
    values = series.values
    index = int(np.searchsorted(series.steps, step))
    before = values[max(index - max(values.size // 10, 5), 0) : index]
    after = values[-max(min(values.size // 10, values.size - index), 3) :]
    if before.size < 4 or index >= values.size - 3:
        return course
    sigma, _ = trend.noise(values)
    fall = float(np.median(before) - np.median(after))
    reach = abs(float(np.median(before) - trend.early(values).center))
    return "falling" if fall > max(2.0 * sigma, 0.25 * reach) else course
