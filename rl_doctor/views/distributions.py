"""How values of tokens are distributed, step by step: does a distribution shift, or does its tail grow?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.formulas import kl
from rl_doctor.schema import RunConfig
from rl_doctor.views.axis import Axis, Kind, place
from rl_doctor.views.counted import Counted, numbers_of
from rl_doctor.views.kept import kept
from rl_doctor.views.opened import Opened
from rl_doctor.views.table import Table

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

VALUE_BINS: Final = 40
STEP_BINS: Final = 120
"""Bins of a heat map at most: 4,800 cells."""
QUANTILES: Final = (0.01, 0.5, 0.99)
DASH: Final = "–"  # noqa: RUF001 - between numbers
_OUTSIDE: Final = 5e-4
"""Share of the values at each end that a logarithmic axis may leave beyond."""
_DECADES: Final = 8
_RESOLUTION: Final = 2.0**-7
"""Width of the bins of a histogram, relative to their values: no bin of a map is narrower."""
_FEW_BINS: Final = 3
_EXPONENT: Final = 700.0
"""Log-ratio up to which its exponential is a float64."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that every token has.

    Attributes:
        metric: the metric whose histograms hold it.
        kind: of the axis that it is drawn on.
        anchor: the value that means that nothing is special.
        value: what is drawn, of what the histograms hold.
    """

    metric: str
    kind: Kind
    anchor: float
    value: Callable[[Floats], Floats]


def _ratio(x: Floats) -> Floats:
    return np.exp(np.clip(x, -_EXPONENT, _EXPONENT))


def _k3(x: Floats) -> Floats:
    return np.asarray(kl.k3(np.clip(x, -_EXPONENT, _EXPONENT)), np.float64)


def _same(x: Floats) -> Floats:
    return x


QUANTITIES: Final[Mapping[str, Quantity]] = MappingProxyType({
    "ratio": Quantity("policy.ratio_p50", "log", 1.0, _ratio),
    "rollout": Quantity("distribution.rollout_log_ratio", "signed-log", 0.0, _same),
    "reference": Quantity("distribution.ref_log_ratio", "log", 0.0, _k3),
    "entropy": Quantity("distribution.entropy", "signed-log", 0.0, _same),
    "advantage": Quantity("distribution.advantage", "signed-log", 0.0, _same),
})  # fmt: skip
"""What is drawn, by the name that the app has for it."""


def of_metric(metric: str | None, known: Sequence[str]) -> str:
    """The quantity of ``known`` that a metric is about: its own, or the one that it is a number of; the first of them else."""
    topics = {
        "policy.ratio": "ratio", "policy.clip": "ratio", "policy.kl_old": "ratio", "mismatch.": "rollout", "ref.": "reference",
        "policy.entropy": "entropy", "adv": "advantage",
    }  # fmt: skip
    told = metric or ""
    asked = [name for name, quantity in QUANTITIES.items() if quantity.metric == told]
    asked += [name for start, name in topics.items() if told.startswith(start)]
    return next((name for name in asked if name in known), known[0])


@dataclass(frozen=True, slots=True)
class Bound:
    """A value that the configuration makes special: its name in the configuration, the value, and its position."""

    name: str
    value: float
    position: float


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """The distribution of one quantity over the steps.

    Attributes:
        name: of the quantity.
        axis: of the values.
        first: int64 ``[k]``, first step of each column.
        last: int64 ``[k]``, its last step.
        edges: float64 ``[k + 1]``, between the columns.
        share: float64 ``[bins, k]``, part of the column's values in each bin.
        n: int64 ``[k]``, number of values of each column.
        nan: number of values that are NaN, of all columns; they are in no bin.
        beyond: number of values beyond an end of the axis; they are in the bin at that end.
        quantiles: float64 ``[3, k]``, of 1%, 50% and 99%.
        bounds: what the configuration makes special.
        sampling: share of the groups whose tokens were kept, where not all were.
    """

    name: str
    axis: Axis
    first: Counts
    last: Counts
    edges: Floats
    share: Floats
    n: Counts
    nan: int
    beyond: int
    quantiles: Floats
    bounds: tuple[Bound, ...]
    sampling: float | None

    @property
    def centres(self) -> Floats:
        """The middle of each column, float64 ``[k]``."""
        return (self.first + self.last) / 2

    def label(self, column: int) -> str:
        """The steps of a column, in words."""
        first, last = int(self.first[column]), int(self.last[column])
        return f"{first}" if first == last else f"{first}{DASH}{last}"

    @property
    def labels(self) -> list[str]:
        """Those of all columns."""
        return [self.label(column) for column in range(len(self.n))]

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.n.sum())

    @property
    def table(self) -> Table:
        """What is drawn, by column."""
        low, middle, high = self.quantiles
        return {"first step": self.first, "last step": self.last, "n": self.n, "p1": low, "p50": middle, "p99": high}


def known(opened: Opened) -> tuple[str, ...]:
    """The quantities that the run tells."""
    return tuple(
        name for name, one in QUANTITIES.items() if any(own.count for own in opened.histograms.get(one.metric, {}).values())
    )


@kept
def heat(opened: Opened, name: str) -> Heat | None:
    """The heat map of a quantity; None where the run does not tell it.

    Args:
        opened: the run.
        name: one of ``QUANTITIES``.
    """
    quantity = QUANTITIES[name]
    found = {step: one for step, one in opened.histograms.get(quantity.metric, {}).items() if one.count}
    if not found:
        return None
    steps = sorted(found)
    parts = np.array_split(np.arange(len(steps)), min(len(steps), STEP_BINS))
    numbers = [numbers_of(found[steps[at]] for at in part.tolist()) for part in parts]
    columns = [Counted.of_numbers(*own, quantity.value) for own in numbers]
    whole = Counted.of_numbers(reduce(np.add, (own for own, _ in numbers)), sum(nan for _, nan in numbers), quantity.value)
    bounds = _bounds(name, opened.run.info.config)
    axis = _axis(quantity, whole, [value for _, value in bounds])
    first, last = (np.array([steps[part[end]] for part in parts], np.int64) for end in (0, -1))
    between = (first[1:] + last[:-1]) / 2
    n = np.array([column.n for column in columns], np.int64)
    share = np.stack([axis.counted(column.values, column.counts) for column in columns], axis=1) / np.maximum(n, 1)
    at = place(whole.values, axis.kind, axis.linear)
    return Heat(
        name, axis, first, last, np.concatenate([[first[0] - 0.5], between, [last[-1] + 0.5]]), share, n, whole.nan,
        int(whole.counts[(at < axis.low) | (at > axis.high)].sum()),
        np.stack([column.quantiles(QUANTILES) for column in columns], axis=1),
        tuple(Bound(of, value, float(axis.position(value))) for of, value in bounds), opened.report.run.sampling,
    )  # fmt: skip


def _bounds(name: str, config: RunConfig) -> list[tuple[str, float]]:
    """What of the configuration bounds the quantity."""
    if name != "ratio":
        return []
    low, high = config.clip_low, config.clip_high
    told = (
        ("1 - clip_low", None if low is None else 1.0 - low),
        ("1 + clip_high", None if high is None else 1.0 + high),
        ("dual_clip", config.dual_clip),
    )
    return [(of, value) for of, value in told if value is not None and value > 0]


def _axis(quantity: Quantity, whole: Counted, bounds: Sequence[float]) -> Axis:
    """The axis that holds the values: a logarithmic one all but the outermost, a signed one all that are finite."""
    fine = np.isfinite(whole.values)
    values, counts = whole.values[fine], whole.counts[fine]
    if quantity.kind == "signed-log":
        linear = _typical(values, counts)
        low, high = place(np.array([values.min(initial=np.inf), values.max(initial=-np.inf)]), "signed-log", linear).tolist()
        low, high = (low, high) if low <= high else (0.0, 0.0)
    else:
        linear, some = 1.0, values > 0
        least, most = Counted(values[some], counts[some], 0).quantiles([_OUTSIDE, 1 - _OUTSIDE]).tolist()
        least, most = (least, most) if np.isfinite(least) else (1.0, 1.0)
        low, high = place(np.array([min([least, *bounds]), max([most, *bounds])]), "log", linear).tolist()
        low = max(low, high - _DECADES)
    room = max(0.02 * (high - low), _RESOLUTION)
    low, high = low - room, high + room
    bins = VALUE_BINS if quantity.kind == "log" else min(VALUE_BINS, int((high - low) / _RESOLUTION))
    bins = max(bins, 1)
    low, high = _centred(low, high, bins, float(place(quantity.anchor, quantity.kind, linear)))
    return Axis(quantity.kind, linear, low, high, bins)


def _centred(low: float, high: float, bins: int, anchor: float) -> tuple[float, float]:
    """The ends, moved apart so that a bin's middle stands at ``anchor``, where that is between them."""
    if not low < anchor < high or bins < _FEW_BINS:
        return low, high
    width = (high - low) / (bins - 1)
    low = anchor - (math.ceil((anchor - low) / width - 0.5) + 0.5) * width
    return low, low + bins * width


def _typical(values: Floats, counts: Counts) -> float:
    """The median absolute value of those that are not 0."""
    size = np.abs(values)
    order = np.argsort(size)[np.count_nonzero(size == 0) :]
    return float(Counted(size[order], counts[order], 0).quantiles([0.5])[0]) if order.size else 1.0


@dataclass(frozen=True, slots=True)
class Window:
    """Some steps of a quantity: the first and the last of them, the values in them, and the medians of their quantiles."""

    first: int
    last: int
    steps: int
    n: int
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Change:
    """How a distribution changed from the run's first steps to its last.

    Attributes:
        name: of the quantity.
        early: the first steps.
        late: the last ones.
        median: 1 or -1 where the median moved up or down, else 0.
        upper: 1 or -1 where the distance from the median to p99 grew or shrank, else 0.
        lower: the same of the distance to p1.
        short: whether there are too few steps to tell.
    """

    name: str
    early: Window
    late: Window
    median: int = 0
    upper: int = 0
    lower: int = 0
    short: bool = False


MIN_STEPS: Final = 6
"""Steps from which on the first are held against the last."""
WINDOW: Final = 0.2
"""Part of the steps that are the first, and the last; three at least, and twenty at most."""
SHIFTED: Final = 0.1
"""Part of the early distance from p1 to p99 that a median must move."""
GROWN: Final = 1.5
"""Factor by which a tail must grow, or shrink."""
NOISE: Final = 3.0
"""Multiple of the scatter from step to step that either must exceed."""
_ROBUST: Final = 1.4826


@kept
def change(opened: Opened, name: str) -> Change | None:
    """Whether the distribution shifted or its tails grew from the first steps to the last; None where it is not known.

    The median is said to have moved where the medians of the two windows differ by more than ``SHIFTED`` of the early distance
    from p1 to p99, a tail to have grown or shrunk by a factor of ``GROWN``; both by more than ``NOISE`` times the scatter from
    step to step within the windows (median absolute deviation), and more than the histograms resolve. What is drawn on a
    logarithmic axis is taken by its logarithm.
    """
    quantity = QUANTITIES[name]
    found = {step: one for step, one in opened.histograms.get(quantity.metric, {}).items() if one.count > one.nan}
    if not found:
        return None
    steps = sorted(found)
    size = min(max(3, round(WINDOW * len(steps))), 20, len(steps))
    chosen = (steps[:size], steps[-size:])
    each = [[Counted.of([found[step]], quantity.value) for step in window] for window in chosen]
    raw = [np.stack([one.quantiles(QUANTILES) for one in window], axis=1) for window in each]
    first, last = (
        Window(of[0], of[-1], len(of), sum(one.n for one in counted), *np.median(numbers, axis=1).tolist())
        for of, counted, numbers in zip(chosen, each, raw, strict=True)
    )
    if len(steps) < MIN_STEPS:
        return Change(name, first, last, short=True)
    logarithmic = quantity.kind == "log"
    early, late = _positions(raw) if logarithmic else raw
    exact = 2 * _RESOLUTION * (1.0 if logarithmic else float(np.abs([np.median(early[1]), np.median(late[1])]).max()))
    span = float(np.median(early[2] - early[0]))
    return Change(
        name, first, last,
        _moved(early[1], late[1], max(SHIFTED * span, exact)),
        _grown(early[2] - early[1], late[2] - late[1], exact),
        _grown(early[1] - early[0], late[1] - late[0], exact),
    )  # fmt: skip


def _positions(windows: Sequence[Floats]) -> list[Floats]:
    """Decimal logarithms, of which those that lie far below the largest are as far as an axis reaches."""
    places = [place(window, "log", 1.0) for window in windows]
    floor = max(float(window.max()) for window in places) - _DECADES
    return [np.maximum(window, floor) for window in places]


def _moved(early: Floats, late: Floats, least: float) -> int:
    by = float(np.median(late) - np.median(early))
    return int(np.sign(by)) if abs(by) > max(least, NOISE * _scatter(early, late)) else 0


def _grown(early: Floats, late: Floats, least: float) -> int:
    before, after = float(np.median(early)), float(np.median(late))
    small, large = min(before, after), max(before, after)
    enough = large > GROWN * small and large - small > max(least, NOISE * _scatter(early, late))
    return int(np.sign(after - before)) if enough else 0


def _scatter(*windows: Floats) -> float:
    """Scatter of a step around the common trend, as a standard deviation, from changes between steps; of the worse window."""
    changes = [np.diff(window) for window in windows]
    return max(_ROBUST * float(np.median(np.abs(change - np.median(change)))) for change in changes) / math.sqrt(2)


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """One column of a heat map beside the first steps of the run.

    Attributes:
        heat: the heat map.
        column: which of its columns.
        share: float64 ``[bins]``, of the column.
        early: float64 ``[bins]``, of the first steps together.
        early_last: last step of these.
        early_n: number of values in these.
    """

    heat: Heat
    column: int
    share: Floats
    early: Floats
    early_last: int
    early_n: int

    @property
    def table(self) -> Table:
        """What is drawn: share by value."""
        edges = self.heat.axis.value(self.heat.axis.edges)
        return {"from": edges[:-1], "to": edges[1:], "share": self.share, "share at first": self.early}


def slice_of(found: Heat, step: int | None) -> Slice:
    """The column of the heat map that holds the step or is closest to it; the last where none is asked for."""
    columns = len(found.n)
    column = columns - 1
    if step is not None:
        distance = np.maximum(found.first - step, 0) + np.maximum(step - found.last, 0)
        column = int(np.argmin(distance))
    size = min(max(1, round(WINDOW * columns)), columns)
    n = found.n[:size]
    early = (found.share[:, :size] * n).sum(axis=1) / max(int(n.sum()), 1)
    return Slice(found, column, found.share[:, column], early, int(found.last[size - 1]), int(n.sum()))
