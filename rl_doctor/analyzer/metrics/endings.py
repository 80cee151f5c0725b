"""How responses end, and what a broken policy writes: read where a cause is looked for."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import filled_rows, real_rows
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_SOURCE: Final = "counting over the rows of the step; padding rows and rows without tokens are left out"


@reduction(zero=Sums(), needs=("token_id",), optional=("response_length", "is_padding"))
def _ends(batch: Batch) -> Sums:
    """Rows whose last generated token ends a sequence, and rows that have such a token before their last one."""
    ends = batch.info.eos_token_ids
    rows, edges = filled_rows(batch.splits)
    rows, starts, stops = (part[real_rows(batch)[rows]] for part in (rows, edges[:-1], edges[1:]))
    if not ends or not rows.size:
        return Sums((Sum(), Sum()))
    if (length := batch.get("response_length")) is not None:
        told = length[rows]
        stops = np.where(told > 0, np.minimum(stops, starts + told), stops)
    closing = np.isin(batch.columns["token_id"], np.array(ends))
    before = np.concatenate([[0], np.cumsum(closing)])
    last = closing[stops - 1]
    inside = before[stops - 1] - before[starts] > 0
    return Sums((Sum.counted(int(last.sum()), rows.size), Sum.counted(int(inside.sum()), rows.size)))


@reduction(zero=Sums(), needs=("token_id",), optional=("is_padding",))
def _constant(batch: Batch) -> Sums:
    """Rows of several tokens that are all the same, and those among them that are all of id 0."""
    token, pad = batch.columns["token_id"], batch.info.pad_token_id
    rows, edges = filled_rows(batch.splits)
    if not rows.size:
        return Sums((Sum(), Sum()))
    changes = np.concatenate([[0], np.cumsum(token[1:] != token[:-1]), [0]])
    starts, stops = edges[:-1], edges[1:]
    judged = real_rows(batch)[rows] & (stops - starts >= _LEAST)
    same = judged & (changes[stops - 1] == changes[starts])
    first = token[starts] == 0
    if pad == 0:
        first &= False
    count = int(judged.sum())
    return Sums((Sum.counted(int(same.sum()), count), Sum.counted(int((same & first).sum()), count)))


_LEAST: Final = 4
"""Tokens below which a response of one token over and over says nothing."""

metric(
    "ending.closed_frac", _ends, mean, part=0, unit="1", source=_SOURCE, formula="share_i[last token ends a sequence]",
    doc="Share of rows whose last generated token is one of eos_token_ids.",
)  # fmt: skip
metric(
    "ending.inside_frac", _ends, mean, part=1, unit="1", source=_SOURCE,
    formula="share_i[a token before the last ends a sequence]",
    doc="Share of rows that hold one of eos_token_ids before their last generated token: the engine went on after the end.",
)  # fmt: skip
metric(
    "ending.constant_frac", _constant, mean, part=0, unit="1", source=_SOURCE, formula="share_i[all tokens equal, 4 or more]",
    doc="Share of rows of 4 tokens or more that are one token over and over.",
)  # fmt: skip
metric(
    "ending.zero_frac", _constant, mean, part=1, unit="1", source=_SOURCE, formula="share_i[all tokens 0, 4 or more]",
    doc="Share of rows of 4 tokens or more that are token 0 over and over, where 0 is not the padding: what the largest of NaN "
    "comes to.",
)  # fmt: skip
