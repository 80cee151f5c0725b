"""How large the exponents of ratios become, masked positions included."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes
from rl_doctor.store.batch import Batch


@reduction(zero=Extremes(), needs=("logprob", "old_logprob"))
def _exponents(batch: Batch) -> Extremes:
    """Of all stored positions, also those outside the mask; what is not finite is counted elsewhere."""
    with np.errstate(invalid="ignore"):
        difference = batch.columns["logprob"] - batch.columns["old_logprob"]
    if not difference.size:
        return Extremes()
    low, high = float(difference.min()), float(difference.max())
    if np.isfinite(low) and np.isfinite(high):
        return Extremes(low, high, difference.size)
    return Extremes.of(difference[np.isfinite(difference)])


metric(
    "numerics.log_ratio_max_stored", _exponents, lambda s: s.max, unit="nat", source="IEEE 754",
    formula="max over stored t of (logprob - old_logprob)",
    doc="Largest log-ratio at any stored token, masked ones included: exp overflows in float32 and bfloat16 from 88.7 on.",
)  # fmt: skip
