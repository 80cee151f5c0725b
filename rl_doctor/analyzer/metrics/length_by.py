"""Whose responses are long: those that earn more, and those that are trained on or not."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import known, per_sequence_counts, real_rows
from rl_doctor.analyzer.grouping import aborted
from rl_doctor.analyzer.moments import correlation
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_COUNT: Final = "counting over the sequences of the generation batch, aborted ones left out"


@reduction(zero=Sums(), needs=("reward", "response_length"), optional=("finish_reason",), level="rollout")
def _together(batch: Batch) -> Sums:
    reward, length = batch.columns["reward"], batch.columns["response_length"]
    rows = known(length) & np.isfinite(reward) & ~aborted(batch)
    x, y = length[rows].astype(np.float64), reward[rows]
    return Sums(tuple(Sum.of(part) for part in (x, y, x * x, y * y, x * y)))


@reduction(zero=Sums(), needs=("response_length", "response_mask"), optional=("finish_reason",))
def _by_training(batch: Batch) -> Sums:
    length = batch.columns["response_length"]
    rows = known(length) & real_rows(batch) & ~aborted(batch)
    trained = per_sequence_counts(batch)[rows] > 0
    long = length[rows].astype(np.float64)
    return Sums((Sum.of(long[trained]), Sum.of(long[~trained])))


metric(
    "length.reward_corr", _together, correlation, unit="1", source=_COUNT, formula="corr_i(L, R)",
    doc="Pearson's correlation of length and reward over the sequences of a generation batch.",
)  # fmt: skip
metric(
    "length.trained_mean", _by_training, mean, part=0, unit="tokens", source=_COUNT, formula="mean_i L, Ti not empty",
    doc="Mean length of the responses of which some token is trained on.",
)  # fmt: skip
metric(
    "length.untrained_mean", _by_training, mean, part=1, unit="tokens", source=_COUNT, formula="mean_i L, Ti empty",
    doc="Mean length of the responses of which no token is trained on: left out, discarded or masked as a whole.",
)  # fmt: skip
