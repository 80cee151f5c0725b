"""What stands at tokens that are not trained, and where it gets into the numbers of those that are."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import (
    Bools,
    derived,
    known,
    per_sequence_counts,
    real_rows,
    restricted,
    selected_splits,
    selection,
    spread,
)
from rl_doctor.analyzer.formulas.segments import segment_sums
from rl_doctor.analyzer.moments import correlation
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch


@derived
def _untrained(batch: Batch) -> Bools | None:
    """Bool ``[n_tokens]``: stored tokens of rows that train something which are not trained; None for none."""
    trained = selection(batch)
    if trained.all():
        return None
    rows = real_rows(batch) & (per_sequence_counts(batch) > 0)
    found: Bools = ~trained & spread(batch, rows)
    return found if found.any() else None


@reduction(zero=Sums(), needs=("response_mask", "logprob", "ref_logprob"), optional=("response_length",))
def _kl(batch: Batch) -> Sums:
    """Sums of k1 and k3 against the reference at untrained tokens inside the response."""
    at = _untrained(batch)
    if at is None:
        return Sums()
    place = np.flatnonzero(at)
    row = np.repeat(np.arange(batch.n_sequences), np.diff(np.searchsorted(place, batch.splits)))
    gap = batch.columns["logprob"][place].astype(np.float64) - batch.columns["ref_logprob"][place]
    keep = np.isfinite(gap)
    if (length := batch.get("response_length")) is not None:
        inside = place - batch.splits[row] < length[row]
        keep &= inside | ~(known(length) & (length >= 0))[row]
    gap = np.where(keep, gap, 0.0)
    sums = [np.bincount(row, line, minlength=batch.n_sequences) for line in (gap, np.expm1(-gap) + gap)]
    return Sums.of(np.stack(sums).astype(np.float64), int(np.count_nonzero(keep)))


metric(
    "masked.kl_k1", _kl, mean, part=0, unit="nat", source="a KL term over tokens that nobody acted by is no KL of the policy",
    formula="mean over t not in T of logprob - ref_logprob",
    doc="Mean logprob - ref_logprob at stored response tokens that are not trained, in rows that train others.",
)  # fmt: skip
metric(
    "masked.kl_k3", _kl, mean, part=1, unit="nat", source="arXiv:1502.02367 uses the same non-negative form",
    formula="mean over t not in T of exp(x) - 1 - x, x = ref_logprob - logprob",
    doc="Mean k3 against the reference at stored response tokens that are not trained, in rows that train others.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("response_mask", "token_reward"))
def _rewarded(batch: Batch) -> Sums:
    """Untrained tokens between trained ones: those with a reward; sum of |token_reward| there, and over the whole rows."""
    at = _untrained(batch)
    if at is None:
        return Sums()
    reward = np.abs(np.nan_to_num(batch.columns["token_reward"].astype(np.float64), posinf=0.0, neginf=0.0))
    inside = at & _before_last(batch)
    rows = segment_sums(inside, batch.splits) > 0
    count = int(np.count_nonzero(inside))
    there, whole = segment_sums(np.where(inside, reward, 0.0), batch.splits), segment_sums(reward, batch.splits)
    return Sums(
        (
            Sum.counted(int(np.count_nonzero(inside & (reward > 0.0))), count),
            Sum.of(there[rows], count),
            Sum.of(whole[rows], count),
        )
    )


def _before_last(batch: Batch) -> Bools:
    """Bool ``[n_tokens]``: tokens before the last trained one of their row."""
    place = np.where(selection(batch), np.arange(batch.n_tokens), -1)
    last = np.full(batch.n_sequences, -1, np.int64)
    rows = np.flatnonzero(batch.lengths)
    if rows.size:
        last[rows] = np.maximum.reduceat(place, batch.splits[:-1][rows])
    before: Bools = np.arange(batch.n_tokens) < spread(batch, last)
    return before


def _share(s: Sums) -> float:
    return s[1].value / s[2].value if s[2].value > 0 else math.nan


metric(
    "masked.rewarded_frac", _rewarded, mean, part=0, unit="1", source="rewards of observed tokens enter the returns before them",
    formula="share over t not in T, t < max T[token_reward != 0]",
    doc="Of the untrained tokens before the last trained one, the share with a token_reward other than 0.",
)  # fmt: skip
metric(
    "masked.reward_share", _rewarded, _share, unit="1", source="rewards of observed tokens enter the returns before them",
    formula="sum over these |token_reward| / sum over their rows |token_reward|",
    doc="Share of the sum of |token_reward| that lies at untrained tokens before the last trained one.",
)  # fmt: skip


@reduction(zero=Sum(), needs=("response_mask", "advantage"))
def _credited(batch: Batch) -> Sum:
    """Untrained tokens before the last trained one: those with an advantage."""
    at = _untrained(batch)
    inside = None if at is None else np.flatnonzero(at & _before_last(batch))
    if inside is None or not inside.size:
        return Sum()
    values = batch.columns["advantage"][inside]
    return Sum.counted(int(np.count_nonzero(np.isfinite(values) & (values != 0.0))), inside.size)


metric(
    "masked.advantage_frac", _credited, mean, unit="1", source="an advantage belongs to what the policy did",
    formula="share over t not in T, t < max T[A != 0]",
    doc="Of the untrained tokens before the last trained one, the share with an advantage other than 0.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("response_mask", "return"), optional=("value",))
def _jumps(batch: Batch) -> Sums:
    """Over gaps in the mask: sums of length, jump of the return, their squares and product; then |jump|, and that of neighbours.

    Rows with a single return throughout say nothing and count as jumps of 0.
    """
    if _untrained(batch) is None:
        return Sums()
    counts = per_sequence_counts(batch)
    part = restricted(batch, real_rows(batch) & (counts > 1) & (counts < batch.lengths), ("response_mask", "return"))
    trained = selection(part)
    at = np.flatnonzero(trained)
    row = spread(part, np.arange(part.n_sequences))[at]
    value = part.columns["return"][at].astype(np.float64)
    same = (row[1:] == row[:-1]) & np.isfinite(value[1:]) & np.isfinite(value[:-1])
    length, jump = (at[1:] - at[:-1] - 1).astype(np.float64), value[:-1] - value[1:]
    edges = selected_splits(part)
    gap, near = same & (length > 0), same & (length == 0)
    jump = np.where(same, jump, 0.0)
    lines = [np.where(gap, line, 0.0) for line in (length, jump, length**2, jump**2, length * jump)]
    lines += [np.where(gap, np.abs(jump), 0.0), np.where(near, np.abs(jump), 0.0)]
    padded = [np.append(line, 0.0) for line in lines]
    sums = np.stack([segment_sums(line, edges) for line in padded]) if at.size else np.zeros((7, part.n_sequences))
    number = int(np.count_nonzero(gap))
    states = [Sum.of(line, number) for line in sums[:6]]
    return Sums((*states, Sum.of(sums[6], int(np.count_nonzero(near)))))


def _excess(s: Sums) -> float:
    return s[5].mean / s[6].mean if s.count and s[6].count and s[6].mean > 0 else math.nan


metric(
    "masked.return_jump_corr", _jumps, correlation, unit="1", source="a return adds up what comes after it, trained or not",
    formula="corr(tokens in the gap, return before - return after)",
    doc="Correlation over gaps in the mask of their length with the fall of the return across them.",
)  # fmt: skip
metric(
    "masked.return_jump_ratio", _jumps, _excess, unit="1", source="a return adds up what comes after it, trained or not",
    formula="mean |fall across a gap| / mean |fall between neighbours|",
    doc="Mean |change of the return| across gaps in the mask over that between neighbouring trained tokens.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("response_mask", "token_reward"), optional=("left_padding",))
def _final(batch: Batch) -> Sums:
    """Rows whose token rewards are one number: not at the last trained token; before it by the left padding; padded and off.

    A row counts where one token holds nine tenths of the sum of |token_reward|.
    """
    reward = np.abs(np.nan_to_num(batch.columns["token_reward"].astype(np.float64), posinf=0.0, neginf=0.0))
    rows = np.flatnonzero(batch.lengths)
    starts = batch.splits[:-1][rows]
    if not rows.size:
        return Sums()
    largest, whole = np.maximum.reduceat(reward, starts), np.add.reduceat(reward, starts)
    place = np.arange(batch.n_tokens)
    top = np.zeros(batch.n_sequences)
    top[rows] = largest
    where = np.maximum.reduceat(np.where(reward == spread(batch, top), place, -1), starts)
    last = np.maximum.reduceat(np.where(selection(batch), place, -1), starts)
    told = (largest > 0) & (largest >= 0.9 * whole) & (last >= 0) & real_rows(batch)[rows]
    off = told & (where != last)
    pad = batch.get("left_padding")
    padding = np.zeros(rows.size, np.int64) if pad is None else np.where(known(pad), pad, 0)[rows]
    padded = told & (padding > 0)
    count = int(told.sum())
    return Sums(
        (
            Sum.counted(int(off.sum()), count),
            Sum.counted(int((off & (last - where == padding)).sum()), int(off.sum())),
            Sum.counted(int((off & padded).sum()), int(padded.sum())),
            Sum.counted(int((off & ~padded).sum()), int((told & ~padded).sum())),
        )
    )


_LAST: Final = "an outcome reward stands at the last token of the response"
_FINAL: Final = (
    ("reward_off_last_frac", "share_i[argmax |token_reward| != max Ti]",
     "Share of the rows with one reward that is not at their last trained token."),
    ("reward_off_by_padding_frac", "share over these[max Ti - t = left_padding]",
     "Of these, the share in which it stands earlier by as many tokens as the row has padding to the left."),
    ("reward_off_padded_frac", "share_i[off], left_padding > 0", "The share of such rows among those with padding to the left."),
    ("reward_off_unpadded_frac", "share_i[off], no left_padding", "The share of such rows among the others."),
)  # fmt: skip
for _index, (_key, _formula, _doc) in enumerate(_FINAL):
    metric(f"mask.{_key}", _final, mean, part=_index, unit="1", source=_LAST, formula=_formula, doc=_doc)
