"""Responses that are the same for different prompts."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import known
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

_HASH: Final = "per_sequence.response_hash"


def _pairs(labels: NDArray[np.int64]) -> int:
    """Number of pairs with equal labels."""
    sizes = np.bincount(labels)
    return int((sizes * (sizes - 1) // 2).sum())


@reduction(zero=Sum(), needs=("group", _HASH), level="rollout")
def _between(batch: Batch) -> Sum:
    rows = known(batch.columns["group"]) & (batch.columns[_HASH] >= 0)
    group, response = codes(batch.columns["group"][rows]), codes(batch.columns[_HASH][rows])
    both = group * (int(response.max(initial=0)) + 1) + response
    _, both = np.unique(both, return_inverse=True)
    every = group.size * (group.size - 1) // 2
    return Sum.counted(_pairs(response) - _pairs(both), every - _pairs(group))


metric(
    "data.duplicate_between_frac", _between, lambda s: s.mean, unit="1", source="counting pairs of sequences",
    doc="Share of pairs of responses to different prompts (groups) that are identical, token by token.",
)  # fmt: skip
