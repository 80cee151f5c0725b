"""What ranks tell of one optimizer step."""

from __future__ import annotations

import math

import numpy as np

from rl_doctor.analyzer.derive import real_rows
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Keyed, Sum, Sums
from rl_doctor.store.batch import Batch


@reduction(zero=Keyed({}), needs=("grad_norm", "rank"), optional=("epoch", "minibatch", "is_padding"), level="logged")
def _by_rank(batch: Batch) -> Keyed:
    """Gradient norm by (epoch, mini-batch, rank)."""
    rows = real_rows(batch) & ~np.isnan(batch.columns["grad_norm"])
    rank, norm = batch.columns["rank"][rows].astype(np.int64), batch.columns["grad_norm"][rows]
    zeros = np.zeros(len(rank), np.int64)
    place = [zeros if (part := batch.get(name)) is None else part[rows].astype(np.int64) for name in ("epoch", "minibatch")]
    keys, member = np.unique(np.stack([*place, rank], 1), axis=0, return_inverse=True)
    return Keyed({tuple(key): Sums((Sum.of(norm[member.reshape(-1) == at]),)) for at, key in enumerate(keys.tolist())})


def _rank_ratio(state: Keyed) -> float:
    """Largest ratio of two ranks' norms in one optimizer step."""
    found: dict[tuple[int, ...], list[float]] = {}
    for key, sums in state.groups.items():
        found.setdefault(key[:-1], []).append(sums[0].mean)
    ratios = [max(values) / min(values) for values in found.values() if len(values) > 1 and min(values) > 0.0]
    return max(ratios, default=math.nan)


metric(
    "optim.grad_norm_rank_ratio", _by_rank, _rank_ratio, unit="1", source="the norm of one gradient is one number",
    formula="max over optimizer steps of max_rank grad_norm / min_rank grad_norm",
    doc="Largest gradient norm of a rank over the smallest in the same optimizer step; 1 where all ranks clip by the same norm.",
)  # fmt: skip
