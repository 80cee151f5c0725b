"""Response lengths, truncation, aborted responses and turns of a generation batch."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import known, share
from rl_doctor.analyzer.grouping import aborted
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.store.batch import Batch

_COUNT: Final = "counting over the sequences of the generation batch; padding rows are left out"


@reduction(zero=Sum(), needs=("response_length",), level="rollout")
def _lengths(batch: Batch) -> Sum:
    length = batch.columns["response_length"]
    return Sum.of(length[known(length)].astype(np.float64))


@reduction(zero=Extremes(), needs=("response_length",), level="rollout")
def _ends(batch: Batch) -> Extremes:
    length = batch.columns["response_length"]
    return Extremes.of(length[known(length)].astype(np.float64))


@reduction(zero=Sum(), needs=("response_length",), optional=("finish_reason",), level="rollout")
def _completed_lengths(batch: Batch) -> Sum:
    length = batch.columns["response_length"]
    return Sum.of(length[known(length) & ~aborted(batch)].astype(np.float64))


@reduction(zero=Sums(), needs=("response_length", "config.max_response_length"), optional=("finish_reason",), level="rollout")
def _limit(batch: Batch) -> Sums:
    length = batch.columns["response_length"]
    reached = length >= (batch.info.config.max_response_length or 0)
    return Sums((share(reached[known(length)]), share(reached[known(length) & ~aborted(batch)])))


@reduction(zero=Sums(), needs=("finish_reason",), optional=("response_length",), level="rollout")
def _truncated(batch: Batch) -> Sums:
    reason = batch.columns["finish_reason"]
    cut = np.equal(reason, "length").astype(np.bool_)
    return Sums((share(cut[known(reason)]), share(cut[known(reason) & ~aborted(batch)])))


@reduction(zero=Sum(), needs=("response_length|finish_reason",), level="rollout")
def _aborts(batch: Batch) -> Sum:
    told = np.zeros(batch.n_sequences, np.bool_)
    for name in ("response_length", "finish_reason"):
        if (column := batch.get(name)) is not None:
            told |= known(column)
    return share(aborted(batch)[told])


@reduction(zero=Sum(), needs=("turns",), level="rollout")
def _turns(batch: Batch) -> Sum:
    turns = batch.columns["turns"]
    return Sum.of(turns[known(turns)].astype(np.float64))


metric(
    "length.mean",
    _lengths,
    mean,
    unit="tokens",
    source=_COUNT,
    formula="mean_i L",
    doc="Mean response length, tool and aborted ones included.",
)
metric("length.min", _ends, lambda s: s.min, unit="tokens", source=_COUNT, formula="min_i L", doc="Shortest response.")
metric("length.max", _ends, lambda s: s.max, unit="tokens", source=_COUNT, formula="max_i L", doc="Longest response.")
metric(
    "length.mean_completed", _completed_lengths, mean, unit="tokens", source=_COUNT,
    formula="mean_i L, i not aborted",
    doc="Mean response length without aborted responses.",
)  # fmt: skip
metric(
    "length.limit_frac", _limit, mean, part=0, unit="1", source=_COUNT,
    formula="share_i[L >= max_response_length]",
    doc="Share of responses at least as long as the configured maximum.",
)  # fmt: skip
metric(
    "length.limit_frac_completed", _limit, mean, part=1, unit="1", source=_COUNT,
    formula="share_i[L >= max_response_length], i not aborted",
    doc="Share of responses, without aborted ones, at least as long as the configured maximum.",
)  # fmt: skip
metric(
    "length.truncated_frac", _truncated, mean, part=0, unit="1", source=_COUNT,
    formula="share_i[finish_reason = length]",
    doc="Share of responses with a known finish_reason that were cut off for their length.",
)  # fmt: skip
metric(
    "length.truncated_frac_completed", _truncated, mean, part=1, unit="1", source=_COUNT,
    formula="share_i[finish_reason = length], i not aborted",
    doc="Share of responses with a known finish_reason, without aborted ones, that were cut off for their length.",
)  # fmt: skip
metric(
    "length.aborted_frac", _aborts, mean, unit="1", source=_COUNT,
    formula="share_i[L = 0 or finish_reason = abort]",
    doc="Share of responses of length 0 or with finish_reason abort. Masked responses and padding rows are not aborted.",
)  # fmt: skip
metric(
    "turns.mean",
    _turns,
    mean,
    unit="turns",
    source=_COUNT,
    formula="mean_i turns",
    doc="Mean number of assistant turns per sequence.",
)
