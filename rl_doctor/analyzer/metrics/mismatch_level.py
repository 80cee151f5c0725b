"""How far logprobs of the same tokens differ: engine against trainer, and the trainer's two passes against each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import FIRST_STEP, Floats, derived, finite, picked, selection
from rl_doctor.analyzer.kernels import PairRows
from rl_doctor.analyzer.metrics.mismatch import (
    PAIR_NEEDS,
    PAIR_OPTIONAL,
    Pair,
    candidates_selected,
    first_pair,
    pass_moments,
    placeholders,
    rollout_moments,
    rollout_pair,
    rollout_rows,
)
from rl_doctor.analyzer.moments import correlation, slope
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.store.batch import Batch

_P1: Final = "honest sampling gives E[exp(difference)] = 1: importance sampling identity"


def _exp_std(s: Sums) -> float:
    if s.count < 2:
        return math.nan
    first, second = s[5].mean, s[6].mean
    return math.sqrt(max(second - first * first, 0.0)) if math.isfinite(second) else math.inf


_FIRST: Final = ("minibatch", "epoch", FIRST_STEP, "rollout_logprob")


def _sums(pair: Pair, sums: Floats) -> Sums:
    return Sums.of(sums, int(pair.splits[-1]))


def _spread(pair: Pair, rows: PairRows, moments: Floats) -> Sums:
    """Sums of x, y, x*x, y*y, x*y, exp d, exp 2d, clamped exp d, |exp y - exp x|, with d = y - x."""
    return _sums(pair, np.concatenate([moments, rows.sums[1:2], pair.tail]))


@reduction(zero=Sums(), needs=PAIR_NEEDS, optional=PAIR_OPTIONAL)
def _rollout_rows(batch: Batch) -> Sums:
    """Sums of |d|, exp d, k3(d)."""
    pair, rows = rollout_pair(batch), rollout_rows(batch)
    return Sums() if pair is None or rows is None else _sums(pair, rows.sums)


@reduction(zero=Sums(), needs=PAIR_NEEDS, optional=PAIR_OPTIONAL)
def _rollout_spread(batch: Batch) -> Sums:
    pair, rows, moments = rollout_pair(batch), rollout_rows(batch), rollout_moments(batch)
    return Sums() if pair is None or rows is None or moments is None else _spread(pair, rows, moments)


@derived
def _first_pair_rows(batch: Batch) -> PairRows | None:
    pair = first_pair(batch)
    return None if pair is None else pair.rows


@reduction(zero=Sums(), needs=("logprob", "old_logprob"), optional=_FIRST)
def _first_rows(batch: Batch) -> Sums:
    """Sums of |d|, exp d, k3(d)."""
    pair, rows = first_pair(batch), _first_pair_rows(batch)
    return Sums() if pair is None or rows is None else _sums(pair, rows.sums)


@reduction(zero=Sums(), needs=("logprob", "old_logprob"), optional=_FIRST)
def _first_spread(batch: Batch) -> Sums:
    pair, rows = first_pair(batch), _first_pair_rows(batch)
    if pair is None or rows is None:
        return Sums()
    filled = np.diff(pair.splits) > 0
    return _spread(pair, rows, np.where(filled, pass_moments(batch), 0.0))


_PAIR_METRICS: Final[tuple[tuple[str, str, bool, int | None, Callable[..., float], str, str], ...]] = (
    ("abs", "nat", False, 0, mean, "mean |d|", "Mean |d|."),
    ("k3", "nat", False, 2, mean, "mean exp(d) - 1 - d", "Mean exp(d) - 1 - d, an unbiased estimate of the KL divergence."),
    ("corr", "1", True, None, correlation, "corr(a, b)", "Pearson correlation of the two logprobs."),
    (
        "slope", "1", True, None, slope, "cov(a, b) / var(a)",
        "Least-squares slope of the second logprob on the first; away from 1 for another temperature.",
    ),
    (
        "exp_mean", "1", False, 1, mean, "mean exp(d)",
        "Mean exp(d): 1 if the first logprob is that of the distribution really sampled.",
    ),
    (
        "exp_mean_clamped", "1", True, 7, mean, "mean min(exp(d), 10)",
        "Mean of min(exp(d), 10), which single tokens cannot dominate.",
    ),
    ("exp_std", "1", True, None, _exp_std, "std exp(d)", "Standard deviation of exp(d) over tokens, for the error of its mean."),
    ("prob_abs", "1", True, 8, mean, "mean |exp(a) - exp(b)|", "Mean absolute difference of the two probabilities."),
)  # fmt: skip

for _suffix, _unit, _wide, _part, _final, _formula, _doc in _PAIR_METRICS:
    metric(
        f"mismatch.{_suffix}", _rollout_spread if _wide else _rollout_rows, _final, part=_part, unit=_unit, source=_P1,
        formula=_formula,
        doc=f"{_doc} d = trainer's logprob - rollout_logprob, trained tokens.",
    )  # fmt: skip
    metric(
        f"mismatch.first_{_suffix}", _first_spread if _wide else _first_rows, _final, part=_part, unit=_unit, source=_P1,
        formula=_formula,
        doc=f"{_doc} d = logprob - old_logprob, trained tokens of the first mini-batch after sampling.",
    )  # fmt: skip


@reduction(zero=Sum(), needs=PAIR_NEEDS, optional=PAIR_OPTIONAL)
def _sides(batch: Batch) -> Sum:
    """Of the trained tokens whose |d| stands above the noise, those with d < 0."""
    rows = rollout_rows(batch)
    return Sum() if rows is None else Sum.counted(rows.below, rows.apart)


@reduction(zero=Extremes(), needs=PAIR_NEEDS, optional=PAIR_OPTIONAL)
def _range(batch: Batch) -> Extremes:
    rows = rollout_rows(batch)
    return Extremes() if rows is None else rows.ends


metric(
    "mismatch.one_sided_frac",
    _sides,
    mean,
    unit="1",
    source="renormalised sampling gives d <= 0 at every token",
    formula="share over T with |d| > .02[d < 0]",
    doc="Of the trained tokens whose |d| is above .02 nat, the share with d < 0.",
)
metric(
    "mismatch.min",
    _range,
    lambda s: s.low,
    unit="nat",
    source="log of the kept mass bounds d under truncation",
    formula="min_T d",
    doc="Smallest d.",
)
metric("mismatch.max", _range, lambda s: s.high, unit="nat", source="arithmetic", formula="max_T d", doc="Largest d.")


@reduction(zero=Sums(), needs=("rollout_logprob",), optional=PAIR_OPTIONAL)
def _missing(batch: Batch) -> Sums:
    """Trained tokens: holding a placeholder; rollout_logprob exactly 0; rollout_logprob not finite."""
    rollout, inside = picked(batch, "rollout_logprob"), candidates_selected(batch)
    flags = [placeholders(batch), rollout == 0.0, ~np.isfinite(rollout)]
    count = rollout.size if inside is None else int(np.count_nonzero(inside))
    return Sums(
        tuple(
            Sum.counted(0 if flag is None else int(np.count_nonzero(flag if inside is None else flag & inside)), count)
            for flag in flags
        )
    )


metric(
    "mismatch.zero_fill_frac",
    _missing,
    mean,
    part=0,
    unit="1",
    source="engines pad missing logprobs with 0, which is probability 1",
    formula="share_T[rollout_logprob = 0, logprob < -1]",
    doc="Share of trained tokens with rollout_logprob exactly 0 where the trainer's is below -1.",
)
metric(
    "mismatch.zero_frac",
    _missing,
    mean,
    part=1,
    unit="1",
    source="arithmetic",
    formula="share_T[rollout_logprob = 0]",
    doc="Share of trained tokens with rollout_logprob exactly 0.",
)
metric(
    "mismatch.nan_frac",
    _missing,
    mean,
    part=2,
    unit="1",
    source="arithmetic",
    formula="share_T[rollout_logprob not finite]",
    doc="Share of trained tokens whose rollout_logprob is NaN or infinite.",
)


@reduction(zero=Sum(), needs=("is_weight",))
def _weights(batch: Batch) -> Sum:
    weight = batch.columns["is_weight"][selection(batch) & finite(batch, "is_weight")]
    return Sum.of(weight.astype(np.float64))


metric(
    "mismatch.is_weight_mean",
    _weights,
    mean,
    unit="1",
    source="truncated importance sampling corrects the loss for the sampler's distribution",
    formula="mean_T is_weight",
    doc="Mean importance weight of the rollout correction, as applied in the loss.",
)
