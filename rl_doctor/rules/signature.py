"""The fingerprint of two logprobs of the same tokens, and the kind of fault that it belongs to.

One decision for all rules on rollout against trainer, so that each fault is reported once, under its own name. The order is from
what is unmistakable to what is merely large: shifted, truncated, one-sided, tempered, broken, raised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence
from rl_doctor.rules.view import View

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEAST: Final = 200
"""Pairs of logprobs in a bin: with fewer, a correlation or a mean of exp(d) is a guess."""
STATISTICS: Final = (
    "abs", "k3", "corr", "slope", "exp_mean", "exp_mean_clamped", "exp_std", "prob_abs",
)  # fmt: skip
SHAPE: Final = ("one_sided_frac", "min", "shifted_frac", "lag", "lag_share", "short_lag")

ROLLOUT: Final = "mismatch."
FIRST: Final = "mismatch.first_"
ROLLOUT_METRICS: Final = tuple(ROLLOUT + name for name in (*STATISTICS, *SHAPE))
FIRST_METRICS: Final = tuple(FIRST + name for name in STATISTICS)

SHIFTED_ROWS: Final = 0.2
ONE_SIDED: Final = 0.98
ONE_SIDED_TOKENS: Final = 20
SIGMAS: Final = 4.0
DEEPEST: Final = -1.2
"""Without a recorded top_p, truncation is believed down to a kept mass of .3."""
SAME_SHAPE: Final = 0.95
COOLER: Final = 0.95
WARMER: Final = 1.07
BROKEN_KL: Final = 0.1
UNRELATED: Final = 0.5
RAISED_KL: Final = 0.02
RAISED_PROBABILITY: Final = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Statistics of a pair over consecutive steps, joined until each bin holds enough pairs.

    Attributes:
        prefix: of the metric names.
        first: int64 ``[k]``, first step of each bin.
        last: int64 ``[k]``, last step of each bin.
        n: float64 ``[k]``, pairs.
        apart: float64 ``[k]``, pairs whose difference stands above the noise.
        table: statistic -> float64 ``[k]``, NaN where it was not measured.
    """

    prefix: str
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    n: Floats
    apart: Floats
    table: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.n)

    def __getitem__(self, name: str) -> Floats:
        return self.table[name]

    def span(self, marked: Bools) -> tuple[int, int]:
        """First and last step of the marked bins."""
        return int(self.first[marked][0]), int(self.last[marked][-1])

    def mean(self, name: str, marked: Bools) -> float:
        """Mean over the pairs of the marked bins."""
        values = self.table[name][marked]
        told = ~np.isnan(values)
        return float(np.average(values[told], weights=self.n[marked][told])) if told.any() else math.nan

    def evidence(self, name: str, marked: Bools, limit: float | None = None, baseline: float | None = None) -> Evidence:
        """The mean of a statistic over the marked bins, as evidence."""
        unit = "nat" if name in {"abs", "k3", "min"} else "1"
        first, last = self.span(marked)
        return Evidence(
            self.prefix + name, first, last, self.mean(name, marked), baseline, limit, unit, int(self.n[marked].sum())
        )

    def when(self, marked: Bools) -> str:
        """The marked bins in words."""
        index = np.flatnonzero(marked)
        first, last = int(self.first[index[0]]), int(self.last[index[-1]])
        if first == last:
            return f"at step {first}"
        among = int(index[-1] - index[0]) + 1
        gaps = "" if among == len(index) else f" ({len(index)} of {among} stretches)"
        return f"at steps {first} to {last}{gaps}"


def bins(view: View, prefix: str, least: int = LEAST) -> Bins | None:
    """Bins of a pair; None where it was not measured or holds fewer than ``least`` pairs in all."""
    base = view.get(prefix + "abs")
    if base is None or base.counts.sum() < least:
        return None
    member = _members(base.counts, least)
    size = int(member[-1]) + 1
    edges = np.searchsorted(member, np.arange(size + 1))
    names = STATISTICS if prefix == FIRST else (*STATISTICS, *SHAPE)
    table = {name: _binned(view.raw(prefix + name), base, member, size, lowest=name == "min") for name in names}
    sided = view.raw(prefix + "one_sided_frac") if prefix == ROLLOUT else None
    apart: Floats = np.zeros(size)
    if sided is not None:
        keep = np.isin(sided.steps, base.steps)
        place = member[np.searchsorted(base.steps, sided.steps[keep])]
        apart = np.bincount(place, sided.counts[keep].astype(np.float64), minlength=size).astype(np.float64)
    counts: Floats = np.bincount(member, base.counts.astype(np.float64), minlength=size).astype(np.float64)
    return Bins(prefix, base.steps[edges[:-1]], base.steps[edges[1:] - 1], counts, apart, table)


def _members(counts: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Bin of each step; what is left over at the end joins the last bin."""
    member, held, current = np.zeros(len(counts), np.int64), 0, 0
    for index, count in enumerate(counts.tolist()):
        member[index] = current
        held += count
        if held >= least:
            current, held = current + 1, 0
    if held and current:
        member[member == current] = current - 1
    return member


def _binned(series: Series | None, base: Series, member: NDArray[np.int64], size: int, *, lowest: bool) -> Floats:
    found = np.full(size, np.nan)
    if series is None:
        return found
    keep = np.isin(series.steps, base.steps) & ~np.isnan(series.values) & (series.counts > 0)
    bin_of = member[np.searchsorted(base.steps, series.steps[keep])]
    values, counts = series.values[keep], series.counts[keep].astype(np.float64)
    for index in np.unique(bin_of):
        inside = bin_of == index
        found[index] = values[inside].min() if lowest else np.average(values[inside], weights=counts[inside])
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """The kind of fault of each bin: bool ``[k]`` each, at most one of them true."""

    shifted: Bools
    truncated: Bools
    one_sided: Bools
    tempered: Bools
    broken: Bools
    raised: Bools

    @property
    def structural(self) -> Bools:
        """Bins whose difference has a shape of its own, so that its size says nothing about weights."""
        return self.shifted | self.truncated | self.one_sided | self.tempered


def kinds(found: Bins, top_p: float | None) -> Kinds:
    """Sort bins by fault. ``top_p`` is the sampler's, where known."""
    nothing = np.zeros(len(found), np.bool_)
    if found.prefix == ROLLOUT:
        shifted = (np.nan_to_num(found["shifted_frac"]) > SHIFTED_ROWS) | (np.nan_to_num(found["short_lag"]) != 0.0)
        error = SIGMAS * found["exp_std"] / np.sqrt(found.n)
        sided = (found["one_sided_frac"] > ONE_SIDED) & (found.apart >= ONE_SIDED_TOKENS) & (found["exp_mean"] + error < 1.0)
        deepest = DEEPEST if top_p is None or not 0.0 < top_p < 1.0 else math.log(top_p) - 0.15
        bounded = found["min"] >= deepest
    else:
        shifted, sided, bounded = nothing, nothing, nothing
    slope, corr = found["slope"], found["corr"]
    with np.errstate(divide="ignore", invalid="ignore"):
        reverse = slope / (corr * corr)
    tempered = (corr > SAME_SHAPE) & (((slope < COOLER) & (reverse < COOLER)) | (slope > WARMER))
    unrelated = (corr < UNRELATED) & (found["abs"] > 0.05)
    broken = (found["k3"] > BROKEN_KL) | unrelated
    raised = (found["prob_abs"] > RAISED_PROBABILITY) | (found["k3"] > RAISED_KL)
    taken = nothing
    result = []
    for mark in (shifted, sided & bounded, sided & ~bounded, tempered, broken, raised):
        result.append(mark & ~taken)
        taken = taken | mark
    return Kinds(*result)


def from_the_start(found: Bins, marked: Bools, statistic: Floats) -> bool:
    """Whether a condition holds from the first bins on, or sets in at once: how settings behave, and drift does not.

    ``statistic`` is what the condition is about, 0 where there is nothing.
    """
    index = np.flatnonzero(marked)
    if marked[index[0] :].mean() < 0.5:
        return False
    if index[0] <= max(1, len(found) // 10):
        return True
    before = float(np.median(np.abs(statistic[max(index[0] - 3, 0) : index[0]])))
    return before < 0.3 * float(np.median(np.abs(statistic[marked])))
