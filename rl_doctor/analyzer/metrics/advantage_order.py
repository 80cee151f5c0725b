"""Recorded advantages that are those of a known formula with the sign turned, or of other rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.metrics.advantage_fit import FORMULAS, NEEDS, compared
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, mean
from rl_doctor.store.batch import Batch

_DISTINCT: Final = 4
"""Sizes of advantage that a batch needs for its multiset to tell: groups of two always hold the same two values."""
_SOURCE: Final = "GRPO, Dr. GRPO and RLOO, as in advantage.fit_*"


def _nearest(batch: Batch, residuals: Callable[[Floats, Floats], Floats]) -> Sum:
    """The residuals to the formula that is nearest by them."""
    best: Floats = np.empty(0)
    for compute in FORMULAS.values():
        recomputed = compute(batch)
        if recomputed is None:
            continue
        found = residuals(*compared(batch, recomputed))
        if found.size and (not best.size or found.mean() < best.mean()):
            best = found
    return Sum.of(best)


def _turned(recorded: Floats, recomputed: Floats) -> Floats:
    return np.abs(recorded + recomputed)


def _sorted(recorded: Floats, recomputed: Floats) -> Floats:
    if np.unique(np.round(np.abs(recorded), 4)).size < _DISTINCT:
        return np.empty(0)
    return np.abs(np.sort(recorded) - np.sort(recomputed))


@reduction(zero=Sum(), needs=NEEDS, level="rollout")
def _negated(batch: Batch) -> Sum:
    return _nearest(batch, _turned)


@reduction(zero=Sum(), needs=NEEDS, level="rollout")
def _reordered(batch: Batch) -> Sum:
    return _nearest(batch, _sorted)


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
