"""The KL to the reference as its samples tell it: with the error that so few sequences leave, and whether rows are comparable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import (
    FIRST_STEP,
    Bools,
    derived,
    first_rows,
    per_sequence_counts,
    picked,
    selected_splits,
    selection,
)
from rl_doctor.analyzer.formulas.segments import kept_splits
from rl_doctor.analyzer.metrics.lag import common_lag, scan
from rl_doctor.analyzer.metrics.mismatch import Pair, possible
from rl_doctor.analyzer.metrics.policy import PASS_NEEDS, SCHULMAN
from rl_doctor.analyzer.metrics.ref import kl_sums
from rl_doctor.analyzer.moments import correlation, slope
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sums
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("logprob", "ref_logprob")
_OPTIONAL: Final = (*PASS_NEEDS, FIRST_STEP)
_PADDED: Final = 3
"""Rows that a slope is fitted to, at least."""


@derived
def _sampled(batch: Batch) -> Bools:
    """Bool ``[n_sequences]``: rows with a trained token, before any update on them as far as the run tells."""
    filled = per_sequence_counts(batch) > 0
    return filled & first_rows(batch) if all(name in batch.columns for name in PASS_NEEDS) else filled


@reduction(zero=Sums(), needs=_NEEDS, optional=_OPTIONAL)
def _per_sequence(batch: Batch) -> Sums:
    """Over sequences: sums of k1, |y|, k3, the number of tokens n, k1 squared, k1 n, n squared; s of a sequence are sums."""
    rows = _sampled(batch)
    k1, _, k3, size = kl_sums(batch)[:, rows]
    n = per_sequence_counts(batch)[rows].astype(np.float64)
    return Sums.of(np.stack([k1, size, k3, n, k1 * k1, k1 * n, n * n]), int(np.count_nonzero(rows)))


def _token_mean(part: int) -> Callable[[Sums], float]:
    return lambda s: s[part].value / s[3].value if s.count and s[3].value else math.nan


def _error(s: Sums) -> float:
    """Standard error of the token mean of k1 as a ratio of sums over independent sequences."""
    if s.count < 2:
        return math.nan
    k1, _, _, n, k1_k1, k1_n, n_n = (part.value for part in s.parts)
    level = k1 / n
    squares = max(k1_k1 - 2.0 * level * k1_n + level * level * n_n, 0.0)
    return math.sqrt(squares * s.count / (s.count - 1)) / n


_WHEN: Final = "over the tokens trained on, before any update on them where epochs and mini-batches are known"
for _part, (_name, _formula) in enumerate((("k1", "-y"), ("abs", "|y|"), ("k3", "exp(y) - 1 - y"))):
    metric(
        f"ref.sampled_{_name}", _per_sequence, _token_mean(_part), unit="nat", source=SCHULMAN, formula=f"mean_F {_formula}",
        doc=f"Mean of {_formula} with y = ref_logprob - logprob {_WHEN}; counted by sequences.",
    )  # fmt: skip
metric(
    "ref.sampled_k1_error", _per_sequence, _error, unit="nat", source="W. G. Cochran, Sampling Techniques, 1977, section 2.11",
    formula="sqrt(n / (n - 1) sum_i (sum_Ti -y - n_i mean)^2) / N, n_i the tokens of a row",
    doc="Standard error of ref.sampled_k1: sequences are independent, their tokens are not.",
)  # fmt: skip


@reduction(zero=Sums(), needs=(*_NEEDS, "left_padding"))
def _by_padding(batch: Batch) -> Sums:
    """Over sequences with a trained token: sums of p, a, p p, a a, p a; p tokens of left padding, a the row's mean |y|."""
    counts = per_sequence_counts(batch)
    padding = batch.columns["left_padding"].astype(np.float64)
    rows = (counts > 0) & (padding >= 0)
    size, padding = kl_sums(batch)[3][rows] / counts[rows], padding[rows]
    fine = np.isfinite(size)
    size, padding = size[fine], padding[fine]
    return Sums.of(np.stack([padding, size, padding**2, size**2, padding * size]), len(size))


metric(
    "ref.padding_slope", _by_padding, lambda s: slope(s) if s.count >= _PADDED else math.nan, unit="nat",
    source="padding that counts as positions moves a row further the more there is of it",
    formula="cov(left_padding, mean_Ti |y|) / var(left_padding)",
    doc="Slope of a row's mean |y| on its number of padding tokens to the left; y = ref_logprob - logprob.",
)  # fmt: skip
metric(
    "ref.padding_corr", _by_padding, lambda s: correlation(s) if s.count >= _PADDED else math.nan, unit="1",
    source="padding that counts as positions moves a row further the more there is of it",
    formula="corr(left_padding, mean_Ti |y|)",
    doc="Correlation of a row's mean |y| with its number of padding tokens to the left; y = ref_logprob - logprob.",
)  # fmt: skip


@derived
def _pair(batch: Batch) -> Pair:
    """X is logprob, y is ref_logprob, at the trained tokens where both are possible values."""
    new, reference = picked(batch, "logprob"), picked(batch, "ref_logprob")
    fine = possible(new) & possible(reference)
    return Pair.whole(new[fine], reference[fine], kept_splits(selected_splits(batch), fine), batch.run_tokens)


@reduction(zero=Sums(), needs=_NEEDS)
def _moments(batch: Batch) -> Sums:
    return Sums.of(_pair(batch).moments, int(_pair(batch).splits[-1]))


@reduction(zero=Sums(), needs=_NEEDS)
def _lags(batch: Batch) -> Sums:
    new, reference = batch.columns["logprob"], batch.columns["ref_logprob"]
    return scan(_pair(batch), new, reference, batch.splits, selection(batch), _pair(batch).moments)[0]


metric(
    "ref.corr", _moments, correlation, unit="1", source="two policies near each other rank tokens alike", formula="corr(a, b)",
    doc="Correlation of logprob and ref_logprob at the tokens trained on.",
)  # fmt: skip
metric(
    "ref.slope", _moments, slope, unit="1", source="a temperature multiplies all logits", formula="cov(a, b) / var(a)",
    doc="Slope of ref_logprob on logprob at the tokens trained on; another temperature moves it away from 1.",
)  # fmt: skip
metric(
    "ref.lag", _lags, common_lag, unit="tokens", source="two logprobs of the same text agree at one offset",
    formula="mode_i lag_i, lag_i = argmax over k in -3..3 of corr(a_t, b_t+k)",
    doc="The most frequent offset of rows in which logprob and ref_logprob agree only at an offset; 0 in place.",
)  # fmt: skip
