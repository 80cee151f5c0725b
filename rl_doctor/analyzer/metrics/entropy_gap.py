"""Entropy against minus the logprob of the sampled tokens: the same in expectation, where the policy is the one that sampled."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import FIRST_STEP, Bools, column_sums, per_sequence_counts
from rl_doctor.analyzer.metrics.mismatch import first_pass
from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Sums
from rl_doctor.store.batch import Batch

_SOURCE: Final = "the entropy is the expected value of minus the logprob of a sample"
_LEAST_ROWS: Final = 8


def _sums(batch: Batch, entropy: str, logprob: str, rows: Bools | None) -> Sums:
    """Of the rows: g = sum of -logprob - entropy, entropy, g^2, g n, n^2 with n tokens."""
    if rows is None:
        return Sums()
    counts, level = per_sequence_counts(batch).astype(np.float64), column_sums(batch, entropy)
    gap = -column_sums(batch, logprob) - level
    told = rows & (counts > 0) & np.isfinite(gap)
    g, h, n = gap[told], level[told], counts[told]
    ones = np.ones(len(g))
    return Sums.of(np.stack([g, h, g * g, g * n, n * n, ones]), int(n.sum()))


def _gap(s: Sums) -> float:
    return s[0].mean if s.count and s[5].value >= _LEAST_ROWS else math.nan


def _share(s: Sums) -> float:
    level = s[1].mean
    return _gap(s) / level if s.count and level > 0.0 else math.nan


def _error(s: Sums) -> float:
    """Of the mean gap; rows are independent, and what stands in one adds up."""
    gap = _gap(s)
    if math.isnan(gap):
        return math.nan
    rows = s[5].value
    scatter = s[2].value - 2.0 * gap * s[3].value + gap * gap * s[4].value
    return math.sqrt(max(scatter, 0.0) * rows / (rows - 1.0)) / s.count


@reduction(zero=Sums(), needs=("entropy", "logprob"), optional=("minibatch", "epoch", FIRST_STEP))
def _current(batch: Batch) -> Sums:
    return _sums(batch, "entropy", "logprob", first_pass(batch))


@reduction(zero=Sums(), needs=("old_entropy", "old_logprob"))
def _old(batch: Batch) -> Sums:
    return _sums(batch, "old_entropy", "old_logprob", np.ones(batch.n_sequences, np.bool_))


def _declare(prefix: str, of: Reduction, logprob: str, entropy: str, rows: str) -> None:
    told = f"-{logprob} - {entropy}, trained tokens{rows}"
    metric(
        f"{prefix}entropy_gap", of, _gap, unit="nat", source=_SOURCE, formula=f"mean (-{logprob} - {entropy})",
        doc=f"Mean of {told}: 0 in expectation where this policy sampled.",
    )  # fmt: skip
    metric(
        f"{prefix}entropy_gap_share", of, _share, unit="1", source=_SOURCE,
        formula=f"mean (-{logprob} - {entropy}) / mean {entropy}", doc=f"The same over the mean entropy: {told}.",
    )  # fmt: skip
    metric(
        f"{prefix}entropy_gap_error", of, _error, unit="nat", source="standard error of a ratio of sums over independent rows",
        formula="sqrt(n / (n - 1) sum_i (g_i - g n_i)^2) / N, g_i the sum of a row, n_i the tokens of it, g the mean of all",
        doc=f"Standard error of the mean of {told}.",
    )  # fmt: skip


_declare("policy.", _current, "logprob", "entropy", " of the first mini-batch after sampling")
_declare("policy.old_", _old, "old_logprob", "old_entropy", "")
