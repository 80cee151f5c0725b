"""How the ratio leaves 1 before any update, and at which update: what tells passes over the same weights from outdated ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import FIRST_STEP, Bools, derived, known, per_sequence_counts, picked, real_rows, row_sums
from rl_doctor.analyzer.metrics.mismatch import bypassed, first_pass
from rl_doctor.analyzer.metrics.policy import policy_rows, share_of
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Named, Sum, Sums, mean
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("logprob", "old_logprob")
_FIRST: Final = ("minibatch", "epoch", FIRST_STEP, "rollout_logprob")
_UPDATES: Final = ("epoch", "minibatch")
_LEAST: Final = 4
"""Tokens below which a row is not counted as equal or different."""
_EQUAL: Final = 1e-6
"""Mean |x| of a row, in nat, below which its two passes are the same but for the last bit."""
_HALF: Final = np.uint32(0x1FFF)
"""Bits of a float32 that are 0 in every value of half precision (bfloat16 and float16)."""
_SOURCE: Final = "two passes over the same weights differ by precision, kernels or dropout, each in its own way"


@derived
def _untouched(batch: Batch) -> Bools | None:
    """Bool ``[n_sequences]``: rows before any update whose old_logprob is not the engine's; None where the run does not tell."""
    first = first_pass(batch)
    return None if first is None else first & ~bypassed(batch)


@reduction(zero=Sums(), needs=_NEEDS, optional=_FIRST)
def _differences(batch: Batch) -> Sums:
    """Sums of x and x^2."""
    rows = _untouched(batch)
    return Sums() if rows is None else row_sums(batch, policy_rows(batch).sums[1:3], rows)


def _deviation(state: Sums) -> float:
    first, second = state[0].mean, state[1].mean
    return math.sqrt(max(second - first * first, 0.0)) if math.isfinite(second) else math.nan


@reduction(zero=Sum(), needs=_NEEDS, optional=_FIRST)
def _rows(batch: Batch) -> Sum:
    rows = _untouched(batch)
    if rows is None:
        return Sum()
    counts = per_sequence_counts(batch)
    told = rows & (counts >= _LEAST)
    return Sum.counted(
        int(np.count_nonzero(policy_rows(batch).sums[4][told] > _EQUAL * counts[told])), int(np.count_nonzero(told))
    )


def _halved(name: str, batch: Batch) -> Sum:
    """Trained tokens whose value is one of half precision; 0 is left out, which every precision has."""
    values = np.ascontiguousarray(picked(batch, name), np.float32)
    values = values[np.isfinite(values) & (values != 0.0)]
    return Sum.counted(int(np.count_nonzero((values.view(np.uint32) & _HALF) == 0)), values.size)


def _zeros(rows: Callable[[Batch], Bools], batch: Batch) -> Sum:
    return share_of(batch, 0, 6, rows=rows(batch))


def _slices(batch: Batch) -> Bools:
    flags: Bools = (batch.columns["epoch"] == 0) & (batch.columns["minibatch"] > 0)
    return flags


def _reused(batch: Batch) -> Bools:
    flags: Bools = batch.columns["epoch"] > 0
    return flags


@reduction(zero=Named({}), needs=(*_NEEDS, *_UPDATES, "config.clip_low", "config.clip_high"))
def _by_update(batch: Batch) -> Named:
    """Tokens outside the clip range by epoch and mini-batch."""
    epoch, minibatch = batch.columns["epoch"], batch.columns["minibatch"]
    fine = known(epoch) & known(minibatch) & real_rows(batch)
    places, found = np.unique(np.stack([epoch[fine], minibatch[fine]], 1), axis=0, return_inverse=True)
    member = np.full(batch.n_sequences, -1, np.int64)
    member[fine] = found.reshape(-1)
    counts = policy_rows(batch).counts
    outside = (counts[1] + counts[2]).astype(np.float64)
    return Named.of([f"{one}.{other}" for one, other in places.tolist()], member, outside[None], per_sequence_counts(batch))


metric(
    "mismatch.first_bias", _differences, mean, part=0, unit="nat", source=_SOURCE, formula="mean_F x",
    doc="Mean of logprob - old_logprob, first mini-batch. Between two honest policies it is about as small as k3.",
)  # fmt: skip
metric(
    "mismatch.first_std", _differences, _deviation, unit="nat", source=_SOURCE, formula="std_F x",
    doc="Standard deviation of logprob - old_logprob over tokens, first mini-batch.",
)  # fmt: skip
metric(
    "mismatch.first_rows_frac", _rows, mean, unit="1", source=_SOURCE, formula="share_i[mean_Ti |x| > 1e-6], first mini-batch",
    doc="Share of rows of the first mini-batch in which logprob and old_logprob differ at all.",
)  # fmt: skip
for _name in _NEEDS:
    metric(
        f"half.{_name}_frac", reduction(zero=Sum(), needs=(_name,))(partial(_halved, _name)), mean, unit="1",
        source=_SOURCE, formula=f"share_T[{_name} is a value of half precision]",
        doc=f"Share of trained tokens whose {_name} is exactly a value of float16 or bfloat16 (by chance 1 in 8,192).",
    )  # fmt: skip
for _name, _of, _when in (
    ("slice", _slices, "of the first pass, in mini-batches after the first"),
    ("reuse", _reused, "of later passes over the generation batch"),
):
    metric(
        f"policy.{_name}_zero_frac", reduction(zero=Sum(), needs=(*_NEEDS, *_UPDATES))(partial(_zeros, _of)), mean, unit="1",
        source="counting over the tokens trained on", formula="share[x = 0]",
        doc=f"Share of tokens whose log-ratio is exactly 0, {_when}.",
    )  # fmt: skip
metric(
    "policy.outside_by.update.", _by_update, mean, part=0, unit="1", source="PPO, arXiv:1707.06347, eq. 7",
    formula="share_T[r < 1 - clip_low or r > 1 + clip_high] of each update",
    doc="Share of tokens outside the clip range by epoch and mini-batch (0.0 is before any update).",
)  # fmt: skip
