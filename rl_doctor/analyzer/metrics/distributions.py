"""How values of tokens are distributed: the whole of them, where others take means. Rules ask for none of these.

That of the ratio is what ``policy.ratio_p50`` is read from.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import columns_of, tokens
from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.metrics.mismatch import PAIR_NEEDS, PAIR_OPTIONAL, rollout_pair
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.stretches import Stretches
from rl_doctor.store.batch import Batch

_SOURCE: Final = "counting by the value's top 16 bits as a float32"


def _counted(at: Stretches, values: NDArray[Any], less: NDArray[Any] | None = None) -> Histogram:
    """Histogram of ``values`` ``[m]``, or of the float64 difference ``values - less``, at the tokens ``at``, block by block."""
    counts = np.zeros(1 << 16, np.int64)
    for block in at.blocks:
        wide = block.wide(values)
        if less is not None:
            wide -= block.wide(less)
        with np.errstate(over="ignore"):
            counts += np.bincount(wide.astype(np.float32).view(np.uint32) >> 16, minlength=1 << 16)
    return Histogram.of_counts(counts)


@reduction(zero=Histogram.zero(), needs=PAIR_NEEDS, optional=PAIR_OPTIONAL)
def _to_rollout(batch: Batch) -> Histogram:
    pair = rollout_pair(batch)
    return Histogram.zero() if pair is None else _counted(pair.tokens, pair.y, pair.x)


@reduction(zero=Histogram.zero(), needs=("logprob", "ref_logprob"))
def _to_reference(batch: Batch) -> Histogram:
    new, reference = columns_of(batch, "logprob", "ref_logprob")
    return _counted(tokens(batch), reference, new)


@reduction(zero=Histogram.zero(), needs=("entropy|old_entropy",), optional=("entropy", "old_entropy"))
def _entropies(batch: Batch) -> Histogram:
    name = "entropy" if batch.get("entropy") is not None else "old_entropy"
    return _counted(tokens(batch), *columns_of(batch, name))


@reduction(zero=Histogram.zero(), needs=("advantage",))
def _advantages(batch: Batch) -> Histogram:
    return _counted(tokens(batch), *columns_of(batch, "advantage"))


def _median(state: Histogram) -> float:
    return state.quantile(0.5)


metric(
    "distribution.rollout_log_ratio", _to_rollout, _median, unit="nat", source=_SOURCE,
    formula="quantile_T(d, .5)",
    doc="Median log-ratio of the trainer's policy to the engine's over the tokens trained on at which both are possible values, "
    "right within .4%; its histogram is what is drawn.",
)  # fmt: skip
metric(
    "distribution.ref_log_ratio", _to_reference, _median, unit="nat", source=_SOURCE,
    formula="quantile_T(y, .5)",
    doc="Median of ref_logprob - logprob over the tokens trained on, right within .4%; its histogram is what is drawn.",
)  # fmt: skip
metric(
    "distribution.entropy", _entropies, _median, unit="nat", source=_SOURCE,
    formula="quantile_T(entropy, .5)",
    doc="Median entropy over the tokens trained on, of old_entropy where entropy is not recorded, right within .4%; its "
    "histogram is what is drawn.",
)  # fmt: skip
metric(
    "distribution.advantage", _advantages, _median, unit="1", source=_SOURCE,
    formula="quantile_T(A, .5)",
    doc="Median advantage over the tokens trained on, right within .4%; its histogram is what is drawn.",
)  # fmt: skip
