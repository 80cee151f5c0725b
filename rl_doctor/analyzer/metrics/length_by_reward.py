"""Lengths of responses that earn more and less than the others of their group."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.derive import Bools, known
from rl_doctor.analyzer.grouping import aborted, groups
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_COUNT = "counting over the sequences of groups whose rewards differ, aborted and cut ones left out"


def _cut(batch: Batch) -> Bools:
    """Rows that were cut for their length: they are long and earn little by definition."""
    reason, limit = batch.get("finish_reason"), batch.info.config.max_response_length
    if reason is not None:
        return np.asarray(reason == "length", np.bool_)
    return np.asarray(batch.columns["response_length"] >= (limit or np.inf), np.bool_)


@reduction(zero=Sums(), needs=("reward", "group", "response_length"), optional=("finish_reason",), level="rollout")
def _by_reward(batch: Batch) -> Sums:
    found, length = groups(batch, "reward"), batch.columns["response_length"]
    fine = (known(length) & ~aborted(batch) & ~_cut(batch))[found.rows]
    long = np.where(fine, length[found.rows], 0).astype(np.float64)
    return Sums((Sum.of(long[fine & (found.centred > 0.0)]), Sum.of(long[fine & (found.centred < 0.0)])))


metric(
    "length.more_earned_mean", _by_reward, mean, part=0, unit="tokens", source=_COUNT, formula="mean_i L, R > mean_g R",
    doc="Mean length of the responses that earn more than the mean of their group.",
)  # fmt: skip
metric(
    "length.less_earned_mean", _by_reward, mean, part=1, unit="tokens", source=_COUNT, formula="mean_i L, R < mean_g R",
    doc="Mean length of the responses that earn less than the mean of their group.",
)  # fmt: skip
