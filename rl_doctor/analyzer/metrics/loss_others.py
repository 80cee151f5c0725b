"""The policy loss at either level of the ratio: easily confused where an algorithm is set by its name alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import (
    FIRST_STEP,
    Floats,
    derived,
    per_sequence_counts,
    per_sequence_sums,
    selected,
    selected_splits,
)
from rl_doctor.analyzer.metrics.policy import NEEDS
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Keyed, Sum, Sums
from rl_doctor.store.batch import Batch

_NEEDS: Final = (*NEEDS, "advantage", "config.clip_low", "config.clip_high")
_OPTIONAL: Final = ("is_weight",)
_UPDATE: Final = (FIRST_STEP, "epoch", "minibatch", "window")


def _clipped(batch: Batch, log_ratio: Floats) -> Floats:
    """The clipped surrogate of PPO at a log-ratio ``[n_selected]``, without dual clip."""
    config, advantage = batch.info.config, selected(batch, "advantage")
    clamp = config.log_ratio_clamp
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(log_ratio if clamp is None else np.clip(log_ratio, -clamp, clamp))
        bounded = np.clip(ratio, 1.0 - (config.clip_low or 0.0), 1.0 + (config.clip_high or 0.0))
        loss: Floats = np.maximum(-advantage * ratio, -advantage * bounded)
    return loss


@derived
def _sums(batch: Batch) -> Floats:
    """The losses by sequence and by token summed per sequence, float64 ``[2, n_sequences]``."""
    log_ratio = selected(batch, "logprob") - selected(batch, "old_logprob")
    counts = per_sequence_counts(batch)
    row_mean = per_sequence_sums(batch, log_ratio) / np.maximum(counts, 1)
    values = [_clipped(batch, np.repeat(row_mean, np.diff(selected_splits(batch)))), _clipped(batch, log_ratio)]
    if batch.get("is_weight") is not None:
        values = [value * selected(batch, "is_weight") for value in values]
    return np.stack([per_sequence_sums(batch, value) for value in values])


@reduction(zero=Keyed({}), needs=_NEEDS, optional=(*_UPDATE, *_OPTIONAL))
def _losses(batch: Batch) -> Keyed:
    """By optimizer step: both losses, aggregated as configured over its rows."""
    how, zeros = batch.info.config.loss_agg or "token-mean", np.zeros(batch.n_sequences, np.int64)
    keys = np.stack([batch.columns.get(name, zeros).astype(np.int64) for name in _UPDATE], axis=1)
    found, place = np.unique(keys, axis=0, return_inverse=True)
    sums, counts = _sums(batch), per_sequence_counts(batch)
    groups = {}
    for index, key in enumerate(found.tolist()):
        rows = (place.reshape(-1) == index) & (counts > 0)
        groups[tuple(key)] = Sums(tuple(_aggregated(line[rows], counts[rows], how) for line in sums))
    return Keyed(groups)


def _aggregated(sums: Floats, counts: NDArray[np.int64], how: str) -> Sum:
    """Sum and count whose quotient is the mean of what is summed per sequence."""
    if how == "token-mean":
        return Sum.of(sums, int(counts.sum()))
    return Sum.of(sums / counts if how == "seq-mean-token-mean" else sums)


def _mean(part: int) -> Callable[[Keyed], float]:
    """The plain mean over optimizer steps."""
    return lambda state: float(np.mean([sums[part].mean for sums in state.groups.values()])) if state.groups else float("nan")


for _index, (_name, _formula, _doc) in enumerate(
    (
        (
            "by_sequence",
            "loss_agg of max(-A s, -A clip(s)), s_i = exp(mean_Ti x)",
            "Clipped policy loss with one ratio per sequence, its tokens' geometric mean, and no dual clip; mean over updates.",
        ),
        (
            "by_token",
            "loss_agg of max(-A r, -A clip(r))",
            "Clipped policy loss with a ratio per token, and no dual clip; mean over updates.",
        ),
    )
):
    metric(
        f"policy.loss_if_{_name}", _losses, _mean(_index), unit="1",
        source="PPO, arXiv:1707.06347, eq. 7; GSPO, arXiv:2507.18071, eq. 5", formula=_formula, doc=_doc,
    )  # fmt: skip
