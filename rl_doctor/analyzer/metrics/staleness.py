"""How many policy versions lie between sampling and training."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, known, per_sequence_counts, real_rows, selection
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, mean
from rl_doctor.store.batch import Batch

_ROWS: Final = ("policy_version", "weight_version")
_TOKENS: Final = ("policy_version", "token_version")


@derived
def _row_lag(batch: Batch) -> Floats:
    policy, weight = batch.columns["policy_version"], batch.columns["weight_version"]
    told = real_rows(batch) & known(policy) & known(weight)
    lag: Floats = (policy[told] - weight[told]).astype(np.float64)
    return lag


@derived
def _token_lag(batch: Batch) -> Floats:
    policy = np.repeat(batch.columns["policy_version"], per_sequence_counts(batch))
    token = batch.columns["token_version"][selection(batch)]
    told = known(policy) & known(token)
    lag: Floats = (policy[told] - token[told]).astype(np.float64)
    return lag


@reduction(zero=Sum(), needs=_ROWS)
def _rows(batch: Batch) -> Sum:
    return Sum.of(_row_lag(batch))


@reduction(zero=Extremes(), needs=_ROWS)
def _row_ends(batch: Batch) -> Extremes:
    return Extremes.of(_row_lag(batch))


@reduction(zero=Sum(), needs=_TOKENS)
def _tokens(batch: Batch) -> Sum:
    return Sum.of(_token_lag(batch))


@reduction(zero=Extremes(), needs=_TOKENS)
def _token_ends(batch: Batch) -> Extremes:
    return Extremes.of(_token_lag(batch))


_SOURCE: Final = "AReaL, arXiv:2505.24298, section 5 (staleness in policy versions)"

metric(
    "stale.mean", _rows, mean, unit="versions", source=_SOURCE,
    formula="mean_i (policy_version - weight_version)",
    doc="Mean of policy_version - weight_version over the rows trained on.",
)  # fmt: skip
metric(
    "stale.max",
    _row_ends,
    lambda s: s.max,
    unit="versions",
    source=_SOURCE,
    formula="max_i (policy_version - weight_version)",
    doc="Largest policy_version - weight_version.",
)
metric(
    "stale.min", _row_ends, lambda s: s.min, unit="versions", source=_SOURCE,
    formula="min_i (policy_version - weight_version)",
    doc="Smallest policy_version - weight_version; below 0 a version stamp is wrong.",
)  # fmt: skip
metric(
    "stale.token_mean", _tokens, mean, unit="versions", source=_SOURCE,
    formula="mean_T (policy_version - token_version)",
    doc="Mean of policy_version - token_version over the tokens trained on.",
)  # fmt: skip
metric(
    "stale.token_max", _token_ends, lambda s: s.max, unit="versions", source=_SOURCE,
    formula="max_T (policy_version - token_version)",
    doc="Largest policy_version - token_version of the tokens trained on.",
)  # fmt: skip
