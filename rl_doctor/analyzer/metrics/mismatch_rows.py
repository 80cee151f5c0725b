"""The difference between engine and trainer row by row: how many rows stand apart, and what it adds up to over a response."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Bools, Floats, derived, known, picked, selected_splits
from rl_doctor.analyzer.formulas.segments import kept_splits, segment_extremes, segment_means
from rl_doctor.analyzer.metrics.mismatch import PAIR_NEEDS, PAIR_OPTIONAL, rollout_moments, rollout_pair, rollout_rows
from rl_doctor.analyzer.moments import correlation
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

LEAST_TOKENS: Final = 8
"""Pairs below which a row's mean says nothing."""
APART: Final = 0.1
"""Mean |d| (nat) of a row that no rounding explains."""
CALM: Final = 0.03
"""Mean |d| (nat) of a row at the floor of an engine in half precision."""
_MOST: Final = 50.0
"""What the logarithm of a weight is cut at, so that its square is a number."""
_GONE: Final = 0.1
_SOURCE: Final = "a mean over all rows hides what happens to a few of them"
_PRODUCT: Final = "importance sampling of sequences: the weight is the product over the tokens"


@derived
def _rows(batch: Batch) -> tuple[Floats, Bools] | None:
    """Mean |d| of the rows that have enough pairs, and which rows these are."""
    pair, rows = rollout_pair(batch), rollout_rows(batch)
    if pair is None or rows is None:
        return None
    counts = np.diff(pair.splits)
    enough = counts >= LEAST_TOKENS
    return rows.sums[0][enough] / counts[enough], enough


@reduction(zero=Sums(), needs=PAIR_NEEDS, optional=PAIR_OPTIONAL)
def _levels(batch: Batch) -> Sums:
    found = _rows(batch)
    if found is None:
        return Sums()
    size = found[0]
    return Sums(tuple(Sum.counted(int(np.count_nonzero(flags)), size.size) for flags in (size > APART, size < CALM)))


for _name, _part, _test in (("off", 0, f"> {APART:g}"), ("calm", 1, f"< {CALM:g}")):
    metric(
        f"mismatch.rows_{_name}_frac", _levels, mean, part=_part, unit="1", source=_SOURCE,
        formula=f"share_i[mean_Ti |d| {_test}], {LEAST_TOKENS} tokens or more",
        doc=f"Share of rows with a mean |d| {_test} nat, d = trainer's logprob - rollout_logprob.",
    )  # fmt: skip


@reduction(zero=Sums(), needs=PAIR_NEEDS, optional=PAIR_OPTIONAL)
def _off(batch: Batch) -> Sums:
    """Of the tokens of rows that are off: x, y, x*x, y*y, x*y, |d|."""
    found, moments, rows, pair = _rows(batch), rollout_moments(batch), rollout_rows(batch), rollout_pair(batch)
    if found is None or moments is None or rows is None or pair is None:
        return Sums()
    size, enough = found
    chosen = np.flatnonzero(enough)[size > APART]
    count = int(np.diff(pair.splits)[chosen].sum())
    return Sums.of(np.concatenate([moments[:, chosen], rows.sums[:1, chosen]]), count)


def _off_tail(s: Sums) -> float:
    if not s.count or s[5].mean <= 0.0:
        return math.nan
    return (s[2].mean + s[3].mean - 2.0 * s[4].mean) / s[5].mean ** 2


metric(
    "mismatch.off_gap", _off, lambda s: s[1].mean - s[0].mean if s.count else math.nan, unit="nat", source=_SOURCE,
    formula=f"mean d, tokens of rows with mean_Ti |d| > {APART:g}",
    doc=f"Mean d = trainer's logprob - rollout_logprob over the rows with a mean |d| > {APART:g} nat.",
)  # fmt: skip
metric(
    "mismatch.off_corr", _off, correlation, unit="1", source=_SOURCE,
    formula=f"corr(a, b), tokens of rows with mean_Ti |d| > {APART:g}",
    doc=f"Correlation of the trainer's logprob with rollout_logprob over the rows with a mean |d| > {APART:g} nat.",
)  # fmt: skip


metric(
    "mismatch.off_tail", _off, _off_tail, unit="1", source=_SOURCE,
    formula=f"mean d^2 / (mean |d|)^2, tokens of rows with mean_Ti |d| > {APART:g}",
    doc="How much of the difference of the rows that are off few of their tokens carry: 1.57 for noise of one size in all.",
)  # fmt: skip


@reduction(zero=Sums(), needs=(*PAIR_NEEDS, "left_padding"), optional=PAIR_OPTIONAL)
def _padded(batch: Batch) -> Sums:
    """Of the rows: left padding, mean |d|, their squares and their product."""
    found = _rows(batch)
    if found is None:
        return Sums()
    size, enough = found
    padding = batch.columns["left_padding"][enough]
    told = known(padding)
    x, y = padding[told].astype(np.float64), size[told]
    return Sums.of(np.stack([x, y, x * x, y * y, x * y]), x.size)


metric(
    "mismatch.left_padding_corr", _padded, correlation, unit="1",
    source="position ids that count padding move with it", formula="corr_i(left_padding, mean_Ti |d|)",
    doc="Correlation over rows of left_padding with the mean |d|, d = trainer's logprob - rollout_logprob.",
)  # fmt: skip


@reduction(zero=Sums(), needs=PAIR_NEEDS, optional=PAIR_OPTIONAL)
def _products(batch: Batch) -> Sums:
    """Of the rows: weight and its square, weight below ``_GONE``, exp of the mean d; sum of d squared."""
    pair, rows = rollout_pair(batch), rollout_rows(batch)
    if pair is None or rows is None:
        return Sums()
    counts = np.diff(pair.splits).astype(np.float64)
    _, grown, k3 = rows.sums
    told = (counts > 0) & np.isfinite(grown) & np.isfinite(k3)
    total = grown[told] - counts[told] - k3[told]
    weight = np.exp(np.clip(total, -_MOST, _MOST))
    lines = [weight, weight * weight, total < math.log(_GONE), np.exp(total / counts[told])]
    return Sums.of(np.stack([np.asarray(line, np.float64) for line in lines]), int(told.sum()))


def _effective(s: Sums) -> float:
    first, second = s[0].mean, s[1].mean
    return first * first / second if s.count and second > 0.0 else math.nan


for _name, _part, _formula, _doc in (
    ("weight_mean", 0, "mean_i exp(sum_Ti d)", "Mean of the product of exp(d) over a row: 1 for honest logprobs."),
    ("weight_gone_frac", 2, f"share_i[exp(sum_Ti d) < {_GONE:g}]", f"Share of rows whose product of exp(d) is below {_GONE:g}."),
    ("ratio_mean", 3, "mean_i exp(mean_Ti d)", "Mean of the geometric mean of exp(d) over a row."),
):
    metric(
        f"mismatch.sequence_{_name}", _products, mean, part=_part, unit="1", source=_PRODUCT, formula=_formula,
        doc=f"{_doc} d = trainer's logprob - rollout_logprob.",
    )  # fmt: skip
metric(
    "mismatch.sequence_effective_frac", _products, _effective, unit="1", source="Kish, Survey Sampling, 1965",
    formula="(sum_i w_i)^2 / (n sum_i w_i^2), w_i = exp(sum_Ti d)",
    doc="Share of the rows that the weights of whole sequences leave effective: 1 where all weigh the same.",
)  # fmt: skip


@reduction(zero=Sums(), needs=PAIR_NEEDS, optional=PAIR_OPTIONAL)
def _squares(batch: Batch) -> Sums:
    """Sums of |d|, of d squared, of rollout_logprob and of the trainer's."""
    pair, rows, moments = rollout_pair(batch), rollout_rows(batch), rollout_moments(batch)
    if pair is None or rows is None or moments is None:
        return Sums()
    x, y, xx, yy, xy = moments
    return Sums.of(np.stack([rows.sums[0], xx + yy - 2.0 * xy, x, y]), int(pair.splits[-1]))


def _tail(s: Sums) -> float:
    size = s[0].mean
    return s[1].mean / (size * size) if s.count and size > 0.0 else math.nan


metric(
    "mismatch.rms", _squares, lambda s: math.sqrt(max(s[1].mean, 0.0)) if s.count else math.nan, unit="nat", source="arithmetic",
    formula="sqrt(mean_T d^2)", doc="Root of the mean square of d = trainer's logprob - rollout_logprob, trained tokens.",
)  # fmt: skip
metric(
    "mismatch.tail", _squares, _tail, unit="1", source="1.57 for a normal distribution, 2 for an exponential one",
    formula="mean_T d^2 / (mean_T |d|)^2",
    doc="How much of the difference few tokens carry: 1 over the share of the tokens that would give it if all others agreed.",
)  # fmt: skip
for _name, _part, _column in (("rollout_mean", 2, "rollout_logprob"), ("trainer_mean", 3, "trainer's logprob")):
    metric(
        f"mismatch.{_name}", _squares, mean, part=_part, unit="nat", source="arithmetic",
        formula=f"mean_T {'rollout_logprob' if _part == 2 else '(rollout_logprob + d)'}",
        doc=f"Mean {_column} over the trained tokens at which both are known: minus the logarithm of the perplexity.",
    )  # fmt: skip


@reduction(zero=Sums(), needs=("is_weight",))
def _row_weights(batch: Batch) -> Sums:
    """Of the rows with two weights or more: all the same; below ``_GONE``."""
    weight = picked(batch, "is_weight")
    fine = np.isfinite(weight)
    splits = kept_splits(selected_splits(batch), fine)
    several = np.diff(splits) > 1
    kept = weight[fine].astype(np.float64)
    low, high = segment_extremes(kept, splits)
    same = int(np.count_nonzero((low == high)[several]))
    gone = int(np.count_nonzero((segment_means(kept, splits) < _GONE)[several]))
    count = int(several.sum())
    return Sums((Sum.counted(same, count), Sum.counted(gone, count)))


for _name, _part, _formula, _doc in (
    ("row_weights_frac", 0, "share_i[is_weight the same at all of Ti]", "Share of rows in which all tokens have one is_weight."),
    (
        "gone_weights_frac",
        1,
        f"share_i[mean_Ti is_weight < {_GONE:g}]",
        f"Share of rows whose mean is_weight is below {_GONE:g}.",
    ),
):
    metric(f"mismatch.{_name}", _row_weights, mean, part=_part, unit="1", source=_PRODUCT, formula=_formula, doc=_doc)
