"""What tells apart why a mask is wrong: which rows train padding, which lose their last token, how much of the prompt."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import (
    Bools,
    derived,
    known,
    per_sequence_counts,
    positions,
    real_rows,
    restricted,
    selection,
    spread,
)
from rl_doctor.analyzer.metrics.masks import closing, sampled
from rl_doctor.analyzer.moments import moments, std
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_SOURCE: Final = "the loss covers what the policy sampled, and nothing else"
_NEEDS: Final = ("response_mask", "token_id|response_length")
_OPTIONAL: Final = ("token_id", "response_length", "finish_reason")


@derived
def _ends(batch: Batch) -> NDArray[np.int64]:
    """Int64 ``[n_sequences]``: number of stored tokens of the row that belong to the response, padding after it left out."""
    stored, length, token = batch.lengths, batch.get("response_length"), batch.get("token_id")
    found = stored.copy()
    pad = batch.info.pad_token_id
    if token is not None and pad is not None:
        shared = pad in (batch.info.eos_token_ids or ())
        found = np.minimum(closing(batch, token == pad) + 1 + (1 if shared else 0), stored)
    if length is not None:
        found = np.where(known(length) & (length >= 0), np.minimum(stored, np.maximum(length, 0)), found)
    return np.asarray(found, np.int64)


def at_end(batch: Batch, offset: int) -> tuple[NDArray[np.int64], Bools]:
    """Place of the token ``offset`` before the end of each response, int64 ``[n_sequences]``, and whether there is one."""
    end = _ends(batch)
    there = (end >= offset) & (batch.lengths > 0)
    return np.where(there, batch.splits[:-1] + end - offset, 0), there


@derived
def _ended(batch: Batch) -> Bools:
    """Bool ``[n_sequences]``: the response ended by itself: its last token is an EOS, or else as its finish reason says."""
    token, ids, finish = batch.get("token_id"), batch.info.eos_token_ids, batch.get("finish_reason")
    if token is not None and ids and batch.n_tokens:
        place, there = at_end(batch, 1)
        return there & np.isin(token[place], np.array(ids))
    if finish is None:
        return np.zeros(batch.n_sequences, np.bool_)
    return np.asarray(finish == "stop", np.bool_)


def _end_known(batch: Batch) -> Bools:
    """Bool ``[n_sequences]``: whether it is known if the response ended by itself, by its tokens or its finish reason."""
    finish = batch.get("finish_reason")
    if batch.get("token_id") is not None and batch.info.eos_token_ids:
        return np.ones(batch.n_sequences, np.bool_)
    return np.zeros(batch.n_sequences, np.bool_) if finish is None else np.asarray(finish != "", np.bool_)


@derived
def _trained_padding(batch: Batch) -> NDArray[np.int64]:
    """Int64 ``[n_sequences]``: number of trained tokens behind the response."""
    before = np.concatenate([[0], np.cumsum(selection(batch), dtype=np.int64)])
    return np.asarray(before[batch.splits[1:]] - before[batch.splits[:-1] + _ends(batch)], np.int64)


@reduction(zero=Sums(), needs=_NEEDS, optional=_OPTIONAL)
def _padded(batch: Batch) -> Sums:
    """Rows that train padding: among those that ended, and among the others that have some.

    A recording keeps padding only where a mask covers it, so that a row that ended counts whether or not any is stored. A row
    of which neither the tokens nor the finish reason tell how it ended counts as neither.
    """
    if not batch.n_tokens:
        return Sums()
    trained, ended = _trained_padding(batch) > 0, _ended(batch)
    rows = real_rows(batch) & (per_sequence_counts(batch) > 0) & _end_known(batch)
    groups = (rows & ended, rows & ~ended & (_ends(batch) < batch.lengths))
    return Sums(tuple(Sum.counted(int((trained & group).sum()), int(group.sum())) for group in groups))


metric(
    "mask.padding_after_end_frac", _padded, mean, part=0, unit="1", source=_SOURCE, version=3,
    formula="share_i[padding trained], i ended",
    doc="Of the rows whose response ended by itself, the share that trains padding after it.",
)  # fmt: skip
metric(
    "mask.padding_after_cut_frac", _padded, mean, part=1, unit="1", source=_SOURCE, version=3,
    formula="share_i[padding trained], i not ended and padded",
    doc="Of the rows with padding after a response that did not end by itself, the share that trains some of it.",
)  # fmt: skip


@reduction(zero=Sums(), needs=_NEEDS, optional=_OPTIONAL)
def _overshoot(batch: Batch) -> Sums:
    number = _trained_padding(batch) if batch.n_tokens else np.empty(0, np.int64)
    return moments(number[(number > 0) & real_rows(batch)].astype(np.float64)) if number.any() else Sums()


metric(
    "mask.padding_trained_mean", _overshoot, mean, part=0, unit="tokens", source=_SOURCE,
    formula="mean_i n_i, n_i > 0: trained tokens behind the response",
    doc="Tokens of padding that are trained in a row, of the rows that train any.",
)  # fmt: skip
metric(
    "mask.padding_trained_std", _overshoot, lambda found: std(found, 0), unit="tokens", source=_SOURCE,
    formula="std_i n_i, n_i > 0: trained tokens behind the response",
    doc="How much that number differs among those rows: 0 where a mask ends late by the same number of tokens in all of them.",
)  # fmt: skip


_SAMPLED: Final = ("response_mask", "token_id", "finish_reason", "rollout_logprob")


@reduction(zero=Sums(), needs=_SAMPLED)
def _sampled_padding(batch: Batch) -> Sums:
    """Rows that stopped: tokens that the engine sampled after the first of the padding that closes them; those that end openly.

    The first are counted of the trained tokens there, the second, without EOS, of the rows that no padding closes. An engine
    stops once, so that it sampled none of these tokens. A broken policy that writes nothing but padding never stops.
    """
    pad, ends = batch.info.pad_token_id, batch.info.eos_token_ids
    rows = real_rows(batch) & (batch.columns["finish_reason"] == "stop") & (batch.lengths > 1)
    if pad is None or not ends or not rows.any():
        return Sums()
    last = batch.columns["token_id"][np.maximum(batch.splits[1:] - 1, 0)]
    bare = rows & (last != pad)
    open_ended = Sum.counted(int(np.count_nonzero(bare & ~np.isin(last, np.array(ends)))), int(np.count_nonzero(bare)))
    if not (rows & ~bare).any():
        return Sums((Sum(), open_ended))
    part = restricted(batch, rows & ~bare, ("is_padding", *_SAMPLED))
    extra = selection(part) & (positions(part) > spread(part, closing(part, part.columns["token_id"] == pad) + 1))
    return Sums((Sum.counted(int(np.count_nonzero(extra & sampled(part))), int(np.count_nonzero(extra))), open_ended))


metric(
    "mask.padding_sampled_frac", _sampled_padding, mean, part=0, unit="1",
    source="an engine gives no logprob of what it did not sample",
    formula="share over trained t after the first padding at the end of i[rollout_logprob known and not 0], i stopped by itself",
    doc="Of the trained tokens after the first padding token that closes a row which stopped by itself, the share for which the "
    "engine gave a logprob: there the row's token ids are not those that were sampled.",
)  # fmt: skip
metric(
    "mask.stop_open_frac", _sampled_padding, mean, part=1, unit="1",
    source="an engine that stops at EOS returns it as the last token",
    formula="share_i[last stored token no EOS], i stopped by itself, last stored token no padding",
    doc="Of the rows that stopped by themselves and that no padding closes, the share that does not end by an EOS.",
)  # fmt: skip


@reduction(zero=Sum(), needs=_NEEDS, optional=_OPTIONAL)
def _last(batch: Batch) -> Sum:
    """Rows that did not end by themselves and train the token before their last one: those that do not train the last."""
    if not batch.n_tokens:
        return Sum()
    (last, _), (before, there), trained = at_end(batch, 1), at_end(batch, 2), selection(batch)
    rows = real_rows(batch) & there & ~_ended(batch) & trained[before]
    return Sum.counted(int((rows & ~trained[last]).sum()), int(rows.sum()))


metric(
    "mask.cut_last_missed_frac", _last, mean, unit="1", source=_SOURCE,
    formula="share_i[last token untrained | token before it trained], i not ended",
    doc="Of the rows that did not end by themselves, the share whose last token is not trained though the one before it is.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("prompt_loss_tokens", "prompt_length"))
def _prompts(batch: Batch) -> Sums:
    count, length = batch.columns["prompt_loss_tokens"], batch.columns["prompt_length"]
    rows = real_rows(batch) & known(count) & known(length) & (count > 0)
    number = int(rows.sum())
    return Sums(
        (
            Sum.counted(int((rows & (count >= length)).sum()), number),
            Sum.counted(int((rows & (count <= 3) & (count < length)).sum()), number),
        )
    )


metric(
    "mask.prompt_whole_frac", _prompts, mean, part=0, unit="1", source=_SOURCE,
    formula="share_i[prompt_loss_tokens >= prompt_length], prompt_loss_tokens > 0",
    doc="Of the rows with prompt tokens in the loss, the share with the whole prompt in it.",
)  # fmt: skip
metric(
    "mask.prompt_edge_frac", _prompts, mean, part=1, unit="1", source=_SOURCE,
    formula="share_i[prompt_loss_tokens <= 3], prompt_loss_tokens > 0",
    doc="Of the rows with prompt tokens in the loss, the share with its last three or fewer in it.",
)  # fmt: skip
