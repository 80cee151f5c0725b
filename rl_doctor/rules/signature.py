"""The fingerprint of two logprobs of the same tokens, and the kind of fault that it belongs to.

One decision for all rules on rollout against trainer, so that each fault is reported once, under its own name. The order is from
what is unmistakable to what is merely large: shifted, truncated, one-sided, tempered, broken, raised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Evidence
from rl_doctor.rules.spans import offset_by_constant, pooled, pooled_known
from rl_doctor.rules.view import View

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEAST: Final = 200
"""Pairs of logprobs in a bin: with fewer, a correlation or a mean of exp(d) is a guess."""
STATISTICS: Final = (
    "abs", "k3", "corr", "slope", "exp_mean", "exp_mean_clamped", "exp_std", "prob_abs",
)  # fmt: skip
SHAPE: Final = (
    "one_sided_frac", "min", "shifted_frac", "lag", "lag_share", "lag_corr", "short_lag", "rows_off_frac", "rows_calm_frac",
    "off_tail", "off_corr",
)  # fmt: skip

ROLLOUT: Final = "mismatch."
FIRST: Final = "mismatch.first_"
ROLLOUT_METRICS: Final = tuple(ROLLOUT + name for name in (*STATISTICS, *SHAPE))
FIRST_METRICS: Final = tuple(FIRST + name for name in STATISTICS)

SHIFTED_ROWS: Final = 0.2
ONE_SIDED: Final = 0.98
ONE_SIDED_TOKENS: Final = 20
SIGMAS: Final = 4.0
_ROWS: Final = ("rows_off_frac", "rows_calm_frac", "off_tail", "off_corr")
DEEPEST: Final = -1.2
"""Without a recorded top_p, truncation is believed down to a kept mass of .3."""
SAME_SHAPE: Final = 0.95
SAME_NUMBERS: Final = 0.99
"""Correlation above which a stretch of a few per cent is no noise."""
STRETCHED: Final = 0.008
"""Least logarithm of the ratio of the two standard deviations that is told as a temperature."""
SHARPENED: Final = 0.025
"""The same where the second spreads more and did not at first, as where a policy that sharpens is held against old samples."""
COOLER: Final = 0.95
WARMER: Final = 1.07
COPIES: Final = 0.97
"""Correlation of shifted rows at their offset that chance does not give."""
FEW_OFF: Final = 0.005
CALM_ROWS: Final = 0.35
BETWEEN: Final = 0.35
SETTLED: Final = 3
"""Bins of two kinds of rows from which on other bins, where a row may be too short to be judged, are taken for the same."""
WHOLE_ROWS: Final = 4.0
"""Mean square over squared mean below which a row's difference is that of all its tokens."""
BROKEN_KL: Final = 0.1
UNRELATED: Final = 0.5
"""Correlation below which two logprobs are those of different things."""
UNRELATED_ROWS: Final = 8.0
"""What stands for ``WHOLE_ROWS`` where the two do not correlate in these rows: improbable tokens carry the difference then."""
RAISED_KL: Final = 0.02
RAISED_PROBABILITY: Final = 0.02


@frozen(eq=False)
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
        value, interval = self.mean(name, marked), None
        if name == "exp_mean" and math.isfinite(error := self.exp_error(marked)):
            interval = value - 1.96 * error, value + 1.96 * error
        return Evidence(
            self.prefix + name, first, last, value, baseline, limit, unit, int(self.n[marked].sum()), interval=interval
        )

    def exp_error(self, marked: Bools) -> float:
        """Standard error of the mean of exp(d) over the marked bins; where the sampler is honest, also within a response.

        There exp(d) - 1 has the mean 0 whatever came before, so that variances add up.
        """
        n, spread = self.n[marked], self.table["exp_std"][marked]
        return float(np.sqrt(np.sum(n * spread * spread)) / n.sum()) if n.size else math.nan

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
    starts = np.flatnonzero(np.diff(bin_of, prepend=-1))  # steps increase, and so do their bins
    if not len(starts):
        return found
    if lowest:
        found[bin_of[starts]] = np.minimum.reduceat(values, starts)
    else:
        found[bin_of[starts]] = np.add.reduceat(values * counts, starts) / np.add.reduceat(counts, starts)
    return found


@frozen(eq=False)
class Kinds:
    """The kind of fault of each bin: bool ``[k]`` each, at most one of them true beside the last two.

    ``partial``: the difference is that of some rows, and most of the others are calm. ``moved``: of these, rows that are shifted.
    """

    shifted: Bools
    truncated: Bools
    one_sided: Bools
    tempered: Bools
    broken: Bools
    raised: Bools
    partial: Bools
    moved: Bools

    @property
    def shaped(self) -> Bools:
        """Bins whose difference has a shape of its own in all rows."""
        return self.shifted | self.truncated | self.one_sided | self.tempered

    @property
    def structural(self) -> Bools:
        """Bins whose difference has a shape of its own, so that its size says nothing about weights."""
        return self.shaped | self.partial


def kinds(found: Bins, top_p: float | None) -> Kinds:
    """Sort bins by fault. ``top_p`` is the sampler's, where known."""
    nothing = np.zeros(len(found), np.bool_)
    if found.prefix == ROLLOUT:
        shifted = (np.nan_to_num(found["shifted_frac"]) > SHIFTED_ROWS) | (np.nan_to_num(found["short_lag"]) != 0.0)
        error = SIGMAS * found["exp_std"] / np.sqrt(found.n)
        sided = (found["one_sided_frac"] > ONE_SIDED) & (found.apart >= ONE_SIDED_TOKENS) & (found["exp_mean"] + error < 1.0)
        deepest = DEEPEST if top_p is None or not 0.0 < top_p < 1.0 else math.log(top_p) - 0.15
        if top_p is not None and not 0.0 < top_p < 1.0:  # what a cut leaves may have one mass, too
            sided &= ~offset_by_constant(found["exp_mean"], found["exp_std"])
        bounded = found["min"] >= deepest
    else:
        shifted, sided, bounded = nothing, nothing, nothing
    slope, corr = found["slope"], found["corr"]
    with np.errstate(divide="ignore", invalid="ignore"):
        reverse = slope / (corr * corr)
    tempered = (corr > SAME_SHAPE) & (((slope < COOLER) & (reverse < COOLER)) | (slope > WARMER))
    broken = (found["k3"] > BROKEN_KL) | ((corr < UNRELATED) & (found["abs"] > 0.05))
    raised = (found["prob_abs"] > RAISED_PROBABILITY) | (found["k3"] > RAISED_KL)
    taken = nothing
    result: list[Bools] = []
    for mark in (shifted, sided & bounded, sided & ~bounded, tempered, broken, raised):
        result.append(mark & ~taken)
        taken = taken | mark
    if found.prefix == ROLLOUT:
        few = (np.nan_to_num(found["shifted_frac"]) > 0.0) & (np.nan_to_num(found["lag_corr"]) > COPIES)
        apart = two_kinds(*(found[name] for name in _ROWS))
        unrelated = apart & (found["off_corr"] < UNRELATED)
        partial = few | unrelated | (apart & (not _grows(found["abs"], apart)))
        alike = ~(found["rows_calm_frac"] <= CALM_ROWS)
        result += [mark | alike if mark.sum() >= SETTLED else mark for mark in (partial, few)]
    else:
        result += [nothing, nothing]
    return Kinds(*result)


def _grows(size: Floats, partial: Bools) -> bool:
    """Whether a difference creeps up, as weights or caches that fall behind do, where another path is as wrong from the start."""
    index = np.flatnonzero(partial)
    first = int(index[0]) if index.size else 0
    crept = first >= 3 and float(np.median(size[first - 2 : first])) > 2.0 * float(np.median(size[:2]))
    third = len(index) // 3
    early, late = size[index[:third]], size[index[len(index) - third :]]
    return crept or (third >= 2 and float(np.median(early)) < 0.6 * float(np.median(late)))


def two_kinds(off: Floats, calm: Floats, tail: Floats, corr: Floats) -> Bools:
    """Whether there are two kinds of rows, bool ``[k]``.

    Args:
        off: float64 ``[k]``, share of the rows that are off.
        calm: float64 ``[k]``, share of those that are calm.
        tail: float64 ``[k]``, mean square over squared mean of the difference in the rows that are off.
        corr: float64 ``[k]``, correlation of the two logprobs in these.
    """
    between = 1.0 - off - calm
    whole = tail < np.where(corr < UNRELATED, UNRELATED_ROWS, WHOLE_ROWS)
    found: Bools = (off > FEW_OFF) & (calm > CALM_ROWS) & (between <= BETWEEN) & whole
    return found


def unrelated_rows(view: View) -> float:
    """Share of the rows in which engine and trainer are unrelated; 0 where they are related in those that are off."""
    off = view.get(f"{ROLLOUT}rows_off_frac")
    return pooled(off) if off is not None and pooled_known(view.get(f"{ROLLOUT}off_corr")) < UNRELATED else 0.0


def stretched(found: Bins, top_p: float | None) -> Floats:
    """Logarithm of how much wider the second logprob spreads than the first, float64 ``[k]``; 0 where noise explains it.

    Noise of either side widens it by half of 1 - corr^2 at most, and a sample of n pairs errs by the root of (1 - corr^2) / n.
    A cut tail widens it too.
    """
    slope, corr = found["slope"], found["corr"]
    with np.errstate(divide="ignore", invalid="ignore"):
        wider = np.log(slope / corr)
    rest = 1.0 - corr * corr
    steady = bool(wider[0] > STRETCHED and np.mean(wider < 1.25 * wider[0]) >= 0.5)
    least = np.maximum(np.where((wider < 0.0) | steady, STRETCHED, SHARPENED), 3.0 * rest)
    least = np.maximum(least, 6.0 * np.sqrt(np.maximum(rest, 0.0) / found.n))
    told = (corr > SAME_NUMBERS) & (np.abs(wider) > least) & ~kinds(found, top_p).truncated
    result: Floats = np.where(told, wider, 0.0)
    return result


def _over_at_once(marked: Bools, index: NDArray[np.intp], statistic: Floats) -> bool:
    """Whether a condition holds in nearly all bins from the first to the last that have it, and is gone in the next ones."""
    after = statistic[index[-1] + 1 : index[-1] + 4]
    dense = marked[index[0] : index[-1] + 1].mean() >= 0.9 and len(index) >= 4 and after.size >= 2
    return bool(dense and np.abs(after).max() < 0.3 * float(np.median(np.abs(statistic[marked]))))


def from_the_start(found: Bins, marked: Bools, statistic: Floats) -> bool:
    """Whether a condition holds from the first bins on, or sets in at once: how settings behave, and drift does not.

    It may be over before the end, if it goes as it came.

    ``statistic`` is what the condition is about, 0 where there is nothing.
    """
    index = np.flatnonzero(marked)
    if marked[index[0] :].mean() < 0.5 and not _over_at_once(marked, index, statistic):
        return False
    if index[0] <= max(1, len(found) // 10):
        return True
    before = float(np.median(np.abs(statistic[max(index[0] - 3, 0) : index[0]])))
    return before < 0.3 * float(np.median(np.abs(statistic[marked])))
