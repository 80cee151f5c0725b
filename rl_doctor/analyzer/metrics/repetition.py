"""Responses that repeat themselves: a tail that runs in a circle, and phrases that come again."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Bools, derived, known, real_rows, restricted, selection, spread
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, Top, mean
from rl_doctor.schema import ROLES
from rl_doctor.store.batch import Batch

_LEAST: Final = 32
"""Tokens below which a row has no tail to speak of."""
_TAIL: Final = 64
_PERIODS: Final = range(1, 17)
_REPEATED: Final = 24
_ASSISTANT: Final = ROLES.index("assistant")
_PHRASE: Final = 4
_SCATTER: Final = np.uint64(0x9E3779B97F4A7C15)

NEEDS: Final = ("token_id",)
OPTIONAL: Final = ("response_mask", "response_length")


@derived
def _ends(batch: Batch) -> NDArray[np.int64]:
    """Int64 ``[n_sequences]``: where the response of each row ends: its length where known, else its last trained token."""
    splits, length = batch.splits, batch.get("response_length")
    told = np.zeros(batch.n_sequences, np.bool_) if length is None else known(length) & (length >= 0)
    stop = splits[1:].copy()
    if batch.get("response_mask") is not None and not told.all():
        place = np.flatnonzero(selection(batch))
        until = np.searchsorted(place, splits)
        stop = np.where(until[1:] > until[:-1], place[np.maximum(until[1:], 1) - 1] + 1 if place.size else 0, splits[:-1])
    if length is not None:
        stop = np.where(told, np.minimum(splits[:-1] + np.where(told, length, 0), splits[1:]), stop)
    return np.where(real_rows(batch), stop, splits[:-1])


@derived
def _tails(batch: Batch) -> tuple[NDArray[np.int64], Bools, NDArray[np.int32]]:
    """Rows long enough int64 ``[k]``; whether their tail runs in a circle; the last token, int32 ``[k]``."""
    stop, token = _ends(batch), batch.columns["token_id"]
    size = stop - batch.splits[:-1]
    rows = np.flatnonzero(size >= _LEAST)
    ends = stop[rows]
    looped, last = np.zeros(rows.size, np.bool_), token[ends - 1]
    again = token[ends[:, None] - 1 - np.array(_PERIODS)] == last[:, None]  # few rows hold their last token just before
    at = np.flatnonzero(again.any(axis=1))
    window = np.arange(-_TAIL, 0)
    tail = token[np.maximum(ends[at][:, None] + window, 0)]
    tail = np.where(window >= -size[rows[at]][:, None], tail, -1)
    for period in _PERIODS:
        needed = max(_REPEATED, 2 * period)
        same = (tail[:, -needed:] == tail[:, -needed - period : -period]).all(axis=1)
        looped[at] |= same & (tail[:, -needed - period] >= 0)
    return rows, looped, last.astype(np.int32)


@reduction(zero=Sums(), needs=NEEDS, optional=(*OPTIONAL, "finish_reason"))
def _loops(batch: Batch) -> Sums:
    """Rows whose tail loops, among the long ones; the same among those cut for their length; looping ones of token 0 alone."""
    rows, looped, last = _tails(batch)
    finish = batch.get("finish_reason")
    cut = np.zeros(rows.size, np.bool_) if finish is None else np.asarray(finish == "length", np.bool_)[rows]
    number = int(np.count_nonzero(looped))
    return Sums(
        (
            Sum.counted(number, rows.size),
            Sum.counted(int(np.count_nonzero(looped & cut)), int(np.count_nonzero(cut))),
            Sum.counted(int(np.count_nonzero(looped & ~cut)), int(np.count_nonzero(~cut))),
            Sum.counted(int(np.count_nonzero(looped & (last == 0))), number),
        )
    )


_SOURCE: Final = "degenerate text repeats itself (arXiv:1904.09751)"
_METRICS: Final = (
    ("loop_frac", "share_i[the last 24 tokens or more repeat with a period of 16 or less]",
     "Share of the responses of 32 tokens or more whose tail runs in a circle."),
    ("loop_cut_frac", "the same, finish_reason = length", "The same of the responses that were cut for their length."),
    ("loop_ended_frac", "the same, finish_reason other than length", "The same of the other responses."),
    ("loop_zero_frac", "share over looping ones[last token = 0]", "Of the responses that loop, the share that ends by token 0."),
)  # fmt: skip
for _index, (_name, _formula, _doc) in enumerate(_METRICS):
    metric(f"repeat.{_name}", _loops, mean, part=_index, unit="1", source=_SOURCE, formula=_formula, doc=_doc)


@reduction(zero=Top(), needs=(*NEEDS, "sequence"), optional=(*OPTIONAL, "uid"))
def _looping(batch: Batch) -> Top:
    rows, looped, _ = _tails(batch)
    chosen, uid = rows[looped], batch.get("uid")
    length = (_ends(batch) - batch.splits[:-1]).astype(np.float64)
    return Top.of(length[chosen], batch.columns["sequence"][chosen], None if uid is None else uid[chosen])


metric(
    "repeat.rows", _looping, lambda top: top.largest, unit="tokens", source="arithmetic", formula="max over looping i of L",
    doc="Length of the longest response whose tail runs in a circle; the rows are told as samples.",
)  # fmt: skip


@reduction(zero=Sums(), needs=NEEDS, optional=(*OPTIONAL, "role"))
def _phrases(batch: Batch) -> Sums:
    """Sum over rows of the share of 4-grams that came before in the row, and the number of 4-grams that come again."""
    own = np.arange(batch.n_tokens) < spread(batch, _ends(batch))
    if (role := batch.get("role")) is not None:
        own &= (role == _ASSISTANT) | (role < 0)
    part = restricted(batch, np.ones(batch.n_sequences, np.bool_), NEEDS)
    token = part.columns["token_id"].astype(np.uint64)
    word = np.zeros(batch.n_tokens, np.uint64)
    whole = np.zeros(batch.n_tokens, np.bool_)
    if batch.n_tokens >= _PHRASE:
        count = batch.n_tokens - _PHRASE + 1
        row = spread(batch, np.arange(batch.n_sequences))
        whole[:count] = row[:count] == row[_PHRASE - 1 :]
        for offset in range(_PHRASE):
            word[:count] = (word[:count] + token[offset : offset + count] + np.uint64(1)) * _SCATTER
            word[:count] ^= word[:count] >> np.uint64(29)
            whole[:count] &= own[offset : offset + count]
        number = np.bincount(row[whole], minlength=batch.n_sequences)
        again = number - _distinct(row[whole], word[whole], batch.n_sequences)
        told = number > 0
        return Sums((Sum.of(np.where(told, again / np.where(told, number, 1), 0.0), int(told.sum())),))
    return Sums((Sum(),))


def _distinct(row: NDArray[np.int64], word: NDArray[np.uint64], rows: int) -> NDArray[np.int64]:
    """How many of the hashes ``[n]`` of each row differ, int64 ``[rows]``; told apart by as many bits as the row leaves."""
    bits = np.uint64(64 - max(rows - 1, 1).bit_length())
    keys = np.sort(row.astype(np.uint64) << bits | word >> (np.uint64(64) - bits))
    new = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return np.bincount((keys[new] >> bits).astype(np.int64), minlength=rows)


metric(
    "repeat.phrase_frac", _phrases, mean, part=0, unit="1", source=_SOURCE,
    formula="mean_i share of 4-grams of i that came before in i",
    doc="Mean share of the 4-grams of a response that it contains before.",
)  # fmt: skip
