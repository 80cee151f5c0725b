"""Recorded advantages that are those of a known formula with the sign turned, or of other rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived
from rl_doctor.analyzer.metrics.advantage_fit import FORMULAS, NEEDS, recorded
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, mean
from rl_doctor.store.batch import Batch

_DISTINCT: Final = 4
"""Sizes of advantage that a batch needs for its multiset to tell: groups of two always hold the same two values."""
_SOURCE: Final = "GRPO, Dr. GRPO and RLOO, as in advantage.fit_*"


@derived
def _recomputed(batch: Batch) -> Floats:
    """Advantages by each formula that the configuration allows, float64 ``[formulas, n]``."""
    return np.array([found for compute in FORMULAS.values() if (found := compute(batch)) is not None])


def _nearest(residuals: Floats) -> Sum:
    """Of residuals ``[formulas, n]`` those to the formula that is nearest by them."""
    if not residuals.size:
        return Sum()
    off = residuals.mean(axis=1)
    return Sum.of(residuals[np.argmin(np.where(np.isnan(off), np.inf, off))])


@reduction(zero=Sum(), needs=NEEDS, level="rollout")
def _negated(batch: Batch) -> Sum:
    return _nearest(np.abs(recorded(batch) + _recomputed(batch)))


@reduction(zero=Sum(), needs=NEEDS, level="rollout")
def _reordered(batch: Batch) -> Sum:
    told = recorded(batch)
    if np.unique(np.round(np.abs(told), 4)).size < _DISTINCT:
        return Sum()
    return _nearest(np.abs(np.sort(told) - np.sort(_recomputed(batch), axis=1)))


metric(
    "advantage.negated_mean", _negated, mean, unit="1", source=_SOURCE,
    formula="min over formulas A' of mean_i |A + A'|",
    doc="Mean of |recorded + recomputed| by the nearest of the known formulas: 0 for advantages whose sign is turned.",
)  # fmt: skip
metric(
    "advantage.reordered_mean", _reordered, mean, unit="1", source=_SOURCE,
    formula="min over formulas A' of mean_i |sort(A)_i - sort(A')_i|",
    doc="Mean of |recorded - recomputed| by the nearest of the known formulas, both sorted over the generation batch: 0 for "
    "advantages in any order. Nothing where fewer than 4 sizes of advantage occur.",
)  # fmt: skip
