"""Importance ratio, clipping and KL of the policy update."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, per_sequence_sums, selected
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum
from rl_doctor.store.batch import Batch

_NEEDS = ("logprob", "old_logprob")


@derived
def log_ratio(batch: Batch) -> Floats:
    """Logprob - old_logprob at the selected tokens, float64 ``[n_selected]``, clamped as the trainer clamps it."""
    difference = selected(batch, "logprob") - selected(batch, "old_logprob")
    clamp = batch.info.config.log_ratio_clamp
    return difference if clamp is None else np.clip(difference, -clamp, clamp)


@derived
def ratio(batch: Batch) -> Floats:
    """exp(log ratio) at the selected tokens."""
    return np.exp(log_ratio(batch))


@reduction(zero=Sum(), needs=_NEEDS)
def _ratio_sum(batch: Batch) -> Sum:
    return Sum.of(per_sequence_sums(batch, ratio(batch)), log_ratio(batch).size)


metric(
    "policy.ratio_mean",
    _ratio_sum,
    lambda s: s.mean,
    unit="1",
    source="PPO, arXiv:1707.06347, eq. 6",
    doc="Mean of exp(logprob - old_logprob) over the tokens trained on.",
)
