"""Version stamps of samples, and how the distance to the sampler depends on them."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import FIRST_STEP, Bools, derived, known, real_rows
from rl_doctor.analyzer.metrics.mismatch import rollout_pair, rollout_rows
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Named, Sum, Sums, mean
from rl_doctor.store.batch import Batch

_BOTH: Final = ("policy_version", "weight_version")
_SOURCE: Final = "public trainer issues on samples with a wrong stamp, or with none"
_STALENESS: Final = "AReaL, arXiv:2505.24298, section 5 (staleness in policy versions)"


@derived
def _stamped(batch: Batch) -> Bools:
    """Bool ``[n_sequences]``: real rows with both versions."""
    fine: Bools = real_rows(batch) & known(batch.columns["policy_version"]) & known(batch.columns["weight_version"])
    return fine


@reduction(zero=Sum(), needs=("weight_version",))
def _missing(batch: Batch) -> Sum:
    real = real_rows(batch)
    return Sum.counted(int(np.count_nonzero(real & ~known(batch.columns["weight_version"]))), int(np.count_nonzero(real)))


@reduction(zero=Sum(), needs=_BOTH)
def _ahead(batch: Batch) -> Sum:
    fine = _stamped(batch)
    ahead = batch.columns["weight_version"] > batch.columns["policy_version"]
    return Sum.counted(int(np.count_nonzero(ahead & fine)), int(np.count_nonzero(fine)))


@reduction(zero=Sum(), needs=_BOTH)
def _behind(batch: Batch) -> Sum:
    fine = _stamped(batch)
    behind = batch.columns["weight_version"] < batch.columns["policy_version"]
    return Sum.counted(int(np.count_nonzero(behind & fine)), int(np.count_nonzero(fine)))


@reduction(zero=Named({}), needs=("weight_version",))
def _by_version(batch: Batch) -> Named:
    """Rows by their stamp."""
    version = batch.columns["weight_version"]
    fine = known(version) & real_rows(batch)
    found, counts = np.unique(version[fine], return_counts=True)
    keys = [str(value) for value in found.tolist()]
    return Named.of(keys, np.arange(len(keys)), counts.astype(np.float64)[None], counts)


def _distinct(state: Named) -> float:
    return len(state.groups) / state.count if state.count else math.nan


@reduction(zero=Extremes(), needs=("weight_version",))
def _newest(batch: Batch) -> Extremes:
    version = batch.columns["weight_version"]
    return Extremes.of(version[known(version) & real_rows(batch)].astype(np.float64))


@reduction(zero=Extremes(), needs=("policy_version",))
def _trained(batch: Batch) -> Extremes:
    version = batch.columns["policy_version"]
    return Extremes.of(version[known(version) & real_rows(batch)].astype(np.float64))


@reduction(zero=Named({}), needs=("weight_version", "rank"))
def _by_rank(batch: Batch) -> Named:
    version, rank = batch.columns["weight_version"], batch.columns["rank"]
    fine = known(version) & known(rank) & real_rows(batch)
    ranks, place = np.unique(rank[fine], return_inverse=True)
    ones = np.ones(int(np.count_nonzero(fine)), np.int64)
    return Named.of([str(value) for value in ranks.tolist()], place.reshape(-1), version[fine].astype(np.float64)[None], ones)


@reduction(zero=Sum(), needs=("weight_version", "first_weight_version"))
def _mixed(batch: Batch) -> Sum:
    newest, oldest = batch.columns["weight_version"], batch.columns["first_weight_version"]
    fine = known(newest) & known(oldest) & real_rows(batch)
    return Sum.counted(int(np.count_nonzero(fine & (oldest < newest))), int(np.count_nonzero(fine)))


@reduction(
    zero=Sums(), needs=("rollout_logprob", "old_logprob|logprob", *_BOTH),
    optional=("old_logprob", "logprob", "minibatch", "epoch", FIRST_STEP, "response_length"),
)  # fmt: skip
def _gap(batch: Batch) -> Sums:
    """Per row with lag l, n pairs and s = sum |d|: sums of n, n l, n l^2, s, l s, s^2 / n."""
    pair, rows = rollout_pair(batch), rollout_rows(batch)
    if pair is None or rows is None:
        return Sums()
    counts = np.diff(pair.splits).astype(np.float64)
    told = _stamped(batch) & (counts > 0)
    n, size = counts[told], rows.sums[0][told]
    lag = (batch.columns["policy_version"][told] - batch.columns["weight_version"][told]).astype(np.float64)
    return Sums.of(np.stack([n, n * lag, n * lag * lag, size, lag * size, size * size / n]), int(np.count_nonzero(told)))


def _moments(state: Sums) -> tuple[float, float, float, float]:
    """Of |d| on the lag, rows weighted by their tokens: weight, variance of the lag, covariance, variance of |d|."""
    if not state.parts or not all(part.finite for part in state.parts):
        return (math.nan,) * 4
    weight, lag, squared, size, both, size_squared = (part.value for part in state.parts)
    if weight <= 0.0:
        return (math.nan,) * 4
    centre, level = lag / weight, size / weight
    return weight, squared / weight - centre * centre, both / weight - centre * level, size_squared / weight - level * level


def _slope(state: Sums) -> float:
    _, spread, together, _ = _moments(state)
    return together / spread if spread > 1e-9 else math.nan


def _error(state: Sums) -> float:
    _, spread, together, noise = _moments(state)
    if not spread > 1e-9 or state.count < 4:
        return math.nan
    return math.sqrt(max(noise - together * together / spread, 0.0) / (spread * (state.count - 2)))


metric(
    "version.missing_frac", _missing, mean, unit="1", source=_SOURCE, formula="share_i[weight_version is null]",
    doc="Share of rows without a weight_version.",
)  # fmt: skip
metric(
    "version.ahead_frac", _ahead, mean, unit="1", source=_SOURCE, formula="share_i[weight_version > policy_version]",
    doc="Share of rows whose weight_version is newer than the policy being trained, which cannot be.",
)  # fmt: skip
metric(
    "version.distinct_frac", _by_version, _distinct, unit="1", source=_SOURCE, formula="distinct weight_version / rows",
    doc="Number of different weight_versions per row; 1 where every sample has a number of its own.",
)  # fmt: skip
metric(
    "version.weight_max", _newest, lambda s: s.max, unit="versions", source=_SOURCE, formula="max_i weight_version",
    doc="Newest weight_version.",
)  # fmt: skip
metric(
    "version.policy_max", _trained, lambda s: s.max, unit="versions", source=_SOURCE, formula="max_i policy_version",
    doc="Newest policy_version.",
)  # fmt: skip
metric(
    "version.weight_by.rank.", _by_rank, mean, part=0, unit="versions", source=_SOURCE, formula="mean_i weight_version of a rank",
    doc="Mean weight_version by rank.",
)  # fmt: skip
metric(
    "stale.behind_frac", _behind, mean, unit="1", source=_STALENESS, formula="share_i[weight_version < policy_version]",
    doc="Share of rows that were sampled by an older version than the one being trained.",
)  # fmt: skip
metric(
    "stale.mixed_frac", _mixed, mean, unit="1", source=_STALENESS, formula="share_i[first_weight_version < weight_version]",
    doc="Share of rows that several versions of the policy wrote, as partial rollouts are.",
)  # fmt: skip
metric(
    "stale.gap_slope", _gap, _slope, unit="nat", source=_STALENESS,
    formula="cov_i(mean_Ti |d|, lag_i) / var_i(lag_i), rows weighted by tokens",
    doc="How much |trainer's logprob - rollout_logprob| grows per version of lag, among the rows of a step.",
)  # fmt: skip
metric(
    "stale.gap_slope_error", _gap, _error, unit="nat", source="arithmetic", formula="standard error of stale.gap_slope",
    doc="Standard error of that slope, from the scatter of the rows.",
)  # fmt: skip
