"""Reward statistics over the sequences of a generation batch."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, std
from rl_doctor.store.batch import Batch


@reduction(zero=Sums(), needs=("reward",), level="rollout")
def _moments(batch: Batch) -> Sums:
    reward = batch.columns["reward"]
    known = reward[~np.isnan(reward)]
    return Sums((Sum.of(known), Sum.of(known * known)))


@reduction(zero=Extremes(), needs=("reward",), level="rollout")
def _extremes(batch: Batch) -> Extremes:
    return Extremes.of(batch.columns["reward"])


_SOURCE = "arithmetic over the sequences that the advantage was computed from"

metric("reward.mean", _moments, lambda s: s[0].mean, unit="reward", source=_SOURCE, doc="Mean reward per sequence.")
metric(
    "reward.std",
    _moments,
    lambda s: std(s, 1),
    unit="reward",
    source=_SOURCE,
    doc="Standard deviation of the reward over the whole generation batch, ddof 1.",
)
metric("reward.min", _extremes, lambda s: s.low, unit="reward", source=_SOURCE, doc="Smallest reward.")
metric("reward.max", _extremes, lambda s: s.high, unit="reward", source=_SOURCE, doc="Largest reward.")
