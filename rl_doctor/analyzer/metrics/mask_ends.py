"""The token by which responses end that stopped by themselves: whether it is an EOS of the run, and which it is."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Bools, derived, real_rows
from rl_doctor.analyzer.metrics.mask_why import at_end
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_SOURCE: Final = "an engine that stops at EOS returns it as the last token"
_NEEDS: Final = ("token_id", "finish_reason", "response_length")
_BUCKETS: Final = 31
"""Classes of ids; a prime, so that ids that lie evenly apart do not fall together."""


@derived
def _stopped(batch: Batch) -> tuple[Bools, Bools, NDArray[np.int64]]:
    """Rows that the engine says to have stopped, those of them without EOS at their end, and their last token."""
    nothing = np.zeros(batch.n_sequences, np.bool_)
    if not batch.n_tokens or not batch.info.eos_token_ids:
        return nothing, nothing, np.zeros(batch.n_sequences, np.int64)
    rows = real_rows(batch) & (batch.columns["finish_reason"] == "stop") & (batch.lengths > 0)
    ids, token = np.array(batch.info.eos_token_ids), batch.columns["token_id"]
    ending = nothing.copy()
    for offset in (1, 2):
        place, there = at_end(batch, offset)
        ending |= there & np.isin(token[place], ids)
    place, there = at_end(batch, 1)
    return rows, rows & ~ending & there, token[place].astype(np.int64)


@reduction(zero=Sum(), needs=_NEEDS)
def _stops(batch: Batch) -> Sum:
    """Responses that stopped by themselves: those without an EOS among their last two tokens."""
    rows, without, _ = _stopped(batch)
    return Sum.counted(int(without.sum()), int(rows.sum()))


@reduction(zero=Sums(), needs=_NEEDS)
def _last_ids(batch: Batch) -> Sums:
    """Of those without EOS: how many there are, and the sum of the last ids of each class of ids."""
    _, without, last = _stopped(batch)
    if not without.any():
        return Sums()
    ids = last[without]
    classes = [ids[ids % _BUCKETS == bucket] for bucket in range(_BUCKETS)]
    return Sums((Sum.counted(len(ids), len(ids)), *(Sum.counted(int(part.sum()), len(part)) for part in classes)))


def _largest(state: Sums) -> Sum:
    return max(state.parts[1:], key=lambda part: part.count, default=Sum())


def _share(state: Sums) -> float:
    return _largest(state).count / state.count if state.count else math.nan


metric(
    "mask.stop_without_eos_frac", _stops, mean, unit="1", source=_SOURCE,
    formula="share_i[no EOS among the last two tokens], i stopped by itself",
    doc="Of the responses that stopped by themselves, as the engine says, the share whose last two tokens hold no EOS.",
)  # fmt: skip
metric(
    "mask.stop_same_token_frac", _last_ids, _share, unit="1", source=_SOURCE,
    formula="max over c[share_i[k mod 31 = c]], k the last token_id, i stopped without EOS",
    doc="Of the responses that stopped without EOS, the share whose last token is of the commonest class: 1 if it is one token.",
)  # fmt: skip
metric(
    "mask.stop_token_id", _last_ids, lambda state: _largest(state).mean, unit="1", source=_SOURCE,
    formula="mean k over the commonest class of k mod 31, k the last token_id, i stopped without EOS",
    doc="Mean id of the last tokens of that class: the token's id where it is one.",
)  # fmt: skip
