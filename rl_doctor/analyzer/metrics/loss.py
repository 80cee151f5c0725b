"""Policy loss of vanilla PPO under each aggregation."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, column_sums, known, per_sequence_counts
from rl_doctor.analyzer.metrics.policy import KL_FORMULAS, NEEDS, policy_rows
from rl_doctor.analyzer.metrics.ref import kl_sums
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_NEEDS: Final = (*NEEDS, "advantage", "config.clip_low", "config.clip_high")
_NORMALISERS: Final = ("loss_scale_factor", "padded_width")
AGGREGATIONS: Final = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")


def policy_loss(batch: Batch) -> Floats:
    """Clipped surrogate, times is_weight where the run has it, summed per sequence, float64 ``[n_sequences]``."""
    loss: Floats = policy_rows(batch).sums[5]
    return loss


def aggregated(batch: Batch, sums: Floats, aggregation: str) -> Sum:
    """Sum and count whose quotient is the mean of a value, summed per sequence ``[n_sequences]``, under a loss aggregation.

    Sequences without a selected token count in none of them. Source: DAPO, arXiv:2503.14476, eq. 12 (token-mean); Dr. GRPO,
    arXiv:2503.20783 (seq-mean-token-sum-norm: the sum over loss_scale_factor, else over padded_width).
    """
    counts = per_sequence_counts(batch)
    filled = counts > 0
    sums = sums[filled]
    if aggregation == "token-mean":
        return Sum.of(sums, int(counts.sum()))
    if aggregation == "seq-mean-token-mean":
        return Sum.of(sums / counts[filled])
    if aggregation == "seq-mean-token-sum":
        return Sum.of(sums)
    if aggregation == "seq-mean-token-sum-norm":
        return Sum.of(sums / _normaliser(batch)[filled])
    return Sum()


def _normaliser(batch: Batch) -> Floats:
    factor: NDArray[Any] | None = batch.get("loss_scale_factor")
    found = np.full(batch.n_sequences, np.nan) if factor is None else factor.astype(np.float64)
    width = batch.get("padded_width")
    if width is None:
        return found
    return np.where(np.isnan(found) & known(width), width, found)


def _total(batch: Batch) -> Floats | None:
    """Total loss summed per sequence, or None where a term that the configuration asks for cannot be computed."""
    config = batch.info.config
    total = policy_loss(batch)
    if config.entropy_coef:
        if batch.get("entropy") is None:
            return None
        total = total - config.entropy_coef * column_sums(batch, "entropy")
    if config.kl_coef and not config.kl_in_reward:
        if batch.get("ref_logprob") is None or config.kl_estimator not in KL_FORMULAS:
            return None
        total = total + config.kl_coef * kl_sums(batch)[list(KL_FORMULAS).index(config.kl_estimator)]
    return total


@reduction(zero=Sums(), needs=_NEEDS, optional=("is_weight",))
def _losses(batch: Batch) -> Sums:
    return Sums(tuple(aggregated(batch, policy_loss(batch), name) for name in AGGREGATIONS))


@reduction(zero=Sum(), needs=(*_NEEDS, "config.loss_agg"), optional=("is_weight", *_NORMALISERS))
def _configured(batch: Batch) -> Sum:
    return aggregated(batch, policy_loss(batch), batch.info.config.loss_agg or "")


@reduction(
    zero=Sum(),
    needs=(*_NEEDS, "config.loss_agg", "config.entropy_coef", "config.kl_coef"),
    optional=("is_weight", "entropy", "ref_logprob", *_NORMALISERS),
)
def _configured_total(batch: Batch) -> Sum:
    total = _total(batch)
    return Sum() if total is None else aggregated(batch, total, batch.info.config.loss_agg or "")


_PPO: Final = "PPO, arXiv:1707.06347, eq. 7; dual clip, arXiv:1912.09729, eq. 4"

metric(
    "policy.loss_pg", _configured, mean, unit="1", source=_PPO,
    formula="loss_agg of max(-A r, -A clip(r)), at most dual_clip |A| where A < 0",
    doc="Clipped policy loss of vanilla PPO under the configured aggregation, over all rows of the step at once.",
)  # fmt: skip
for _index, _name in enumerate(AGGREGATIONS):
    metric(
        f"policy.loss_pg_{_name.replace('-', '_')}", _losses, mean, part=_index, unit="1", source=_PPO,
        formula=f"{_name} of max(-A r, -A clip(r)), at most dual_clip |A| where A < 0",
        doc=f"Clipped policy loss of vanilla PPO under {_name}; sequences without a token trained on are left out.",
    )  # fmt: skip
metric(
    "policy.loss_total", _configured_total, mean, unit="1", source=_PPO,
    formula="loss_pg - entropy_coef agg(entropy) + kl_coef agg(KL term)",
    doc="policy.loss_pg - entropy_coef * entropy + kl_coef * KL to the reference, each under the configured aggregation; "
    "without the KL term where the KL is in the reward.",
)  # fmt: skip
