"""How many tokens of a row are trained, against how long its response is, and against how long all responses are."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import known, per_sequence_counts, real_rows
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sums, mean
from rl_doctor.store.batch import Batch

_SOURCE: Final = "masks of other rows have the counts of those, and the same sums over all"


@reduction(zero=Sums(), needs=("response_mask", "response_length"))
def _counts(batch: Batch) -> Sums:
    """Over rows of known length: the difference of both numbers, then each and its square."""
    length = batch.columns["response_length"]
    counts = per_sequence_counts(batch)
    rows = real_rows(batch) & known(length) & ((length > 0) | (counts > 0))
    trained, whole = counts[rows].astype(np.float64), length[rows].astype(np.float64)
    parts = np.stack([np.abs(trained - whole), trained, whole, trained**2, whole**2])
    return Sums.of(parts, int(rows.sum())) if rows.any() else Sums()


def _apart(state: Sums) -> float:
    """Larger relative difference of the two sums and of the two sums of squares."""
    _, trained, whole, trained_squares, squares = (part.value for part in state.parts) if state.parts else (math.nan,) * 5
    if not squares > 0.0:
        return math.nan
    return max(abs(trained - whole) / whole, abs(trained_squares - squares) / squares)


metric(
    "mask.count_off", _counts, mean, part=0, unit="tokens", source=_SOURCE, formula="mean_i | |Ti| - response_length |",
    doc="Mean difference between the number of trained tokens of a row and the length of its response.",
)  # fmt: skip
metric(
    "mask.count_sums_off", _counts, _apart, unit="1", source=_SOURCE,
    formula="max(|sum_i |Ti| - sum_i response_length| / sum_i response_length, the same of squares)",
    doc="The same of the sums and sums of squares over a step: 0 where the counts are those of the lengths, in whatever order.",
)  # fmt: skip
