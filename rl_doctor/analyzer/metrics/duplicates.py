"""Samples that repeat each other: within a group, and between groups."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer import kernels
from rl_doctor.analyzer.derive import Bools, Floats, column_sums, derived, filled_rows, known, over_rows, per_sequence_counts
from rl_doctor.analyzer.registry import metric, reduction, sequence_value
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

IMPROBABLE: Final = math.log(1e-6)
"""A response less probable than this does not come twice in a group by chance."""
_HASH: Final = "per_sequence.response_hash"
_LOGPROB: Final = "per_sequence.response_logprob"
_SAMPLER: Final = ("rollout_logprob", "old_logprob", "logprob")
"""Columns that say how probable the sampler found a token; the first that the run has is taken."""


@sequence_value("response_hash", needs=("token_id",))
def response_hash(batch: Batch) -> NDArray[np.int64]:
    """A 63-bit hash of the token ids of each row, ``[n_sequences]``; -1 for a row without tokens."""
    rows, edges = filled_rows(batch.splits)
    return over_rows(kernels.hashes(batch.columns["token_id"], edges), rows, batch.n_sequences, -1)


@sequence_value("response_logprob", needs=("|".join(_SAMPLER),), optional=_SAMPLER)
def response_logprob(batch: Batch) -> Floats:
    """Sum of the sampler's logprob over the trained tokens; NaN for a row without any or with one unknown."""
    name = next(name for name in _SAMPLER if name in batch.columns)
    return np.where(per_sequence_counts(batch) > 0, column_sums(batch, name), np.nan)


@derived
def _repeats(batch: Batch) -> tuple[Bools, NDArray[np.int64], NDArray[np.int64]]:
    """Rows with a group and tokens; for each of those its group code, and how many rows of the group are identical to it.

    Without uid and epoch, rows that all come equally often are passes over the same samples, unless they are the whole group.
    """
    group, hashes = batch.columns["group"], batch.columns[_HASH].astype(np.int64)
    rows = known(group) & (hashes >= 0)
    kept = codes(group[rows])
    _, inverse, counts = np.unique(np.stack([kept, hashes[rows]]), axis=1, return_inverse=True, return_counts=True)
    same = counts[inverse.reshape(-1)]
    if batch.get("uid") is None and batch.get("epoch") is None and same.size:
        passes = int(np.gcd.reduce(same))
        if passes < int(np.bincount(kept).max()):
            same = same // passes
    return rows, kept, same


@reduction(zero=Sums(), needs=("group", _HASH, _LOGPROB), level="rollout")
def _duplicates(batch: Batch) -> Sums:
    """Rows that repeat another of their group; expected number of such rows; those too improbable to be chance."""
    rows, group, same = _repeats(batch)
    logprob = batch.columns[_LOGPROB].astype(np.float64)[rows]
    size = np.bincount(group)[group].astype(np.float64) if group.size else np.empty(0)
    grouped = size > 1
    repeated = grouped & (same > 1)
    finite = np.isfinite(logprob)
    chance: Floats = np.where(finite, -np.expm1((size - 1.0) * np.log1p(-np.exp(np.minimum(logprob, -1e-12)))), 1.0)
    count = int(grouped.sum())
    return Sums(
        (
            Sum.counted(int(repeated.sum()), count),
            Sum.of(chance[grouped], count),
            Sum.counted(int((repeated & finite & (logprob < IMPROBABLE)).sum()), count),
        )
    )


_COLLISION: Final = "collision probability of independent samples: sum of squared probabilities"
metric(
    "data.duplicate_frac",
    _duplicates,
    mean,
    part=0,
    unit="1",
    source=_COLLISION,
    formula="share_i[another j of the group has tokens_j = tokens_i]",
    doc="Share of responses that are identical, token by token, to another of their group.",
)
metric(
    "data.duplicate_expected_frac",
    _duplicates,
    mean,
    part=1,
    unit="1",
    source=_COLLISION,
    formula="mean_i 1 - (1 - p_i)^(G - 1), p_i = exp(sum_Ti logprob)",
    doc="Share expected of independent samples, from the responses' own probabilities.",
)
metric(
    "data.improbable_duplicate_frac",
    _duplicates,
    mean,
    part=2,
    unit="1",
    source=_COLLISION,
    formula="share_i[tokens_j = tokens_i for a j of the group, p_i < 1e-6]",
    doc="Share of responses that are identical to another of their group although their probability is below 1e-6.",
)


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
    "data.duplicate_between_frac", _between, mean, unit="1", source="counting pairs of sequences",
    formula="share of pairs i, j of different groups[tokens_i = tokens_j]",
    doc="Share of pairs of responses to different prompts (groups) that are identical, token by token.",
)  # fmt: skip


@reduction(zero=Sums(), needs=("group", _HASH, _LOGPROB), optional=("rank",), level="rollout")
def _kinds(batch: Batch) -> Sums:
    """Groups with copies: distinct responses over responses; copies whose logprobs are equal to the bit; on other ranks."""
    rows, group, same = _repeats(batch)
    copied = same > 1
    if not copied.any():
        return Sums()
    hashes, logprob = batch.columns[_HASH].astype(np.int64)[rows], batch.columns[_LOGPROB].astype(np.float64)[rows]
    rank = batch.get("rank")
    place = np.zeros(len(group), np.int64) if rank is None else rank.astype(np.int64)[rows]
    with_copies = np.isin(group, group[copied])
    distinct = np.unique(np.stack([group[with_copies], hashes[with_copies]]), axis=1).shape[1]
    _, pair = np.unique(np.stack([group[copied], hashes[copied]]), axis=1, return_inverse=True)
    pair = pair.reshape(-1)
    sets = int(pair.max()) + 1
    low, high = np.full(sets, np.inf), np.full(sets, -np.inf)
    np.minimum.at(low, pair, logprob[copied])
    np.maximum.at(high, pair, logprob[copied])
    first, last = np.full(sets, np.iinfo(np.int64).max), np.full(sets, np.iinfo(np.int64).min)
    np.minimum.at(first, pair, place[copied])
    np.maximum.at(last, pair, place[copied])
    several = np.zeros(int(group.max()) + 1, np.bool_)
    lowest, highest = np.full(several.size, np.iinfo(np.int64).max), np.full(several.size, np.iinfo(np.int64).min)
    np.minimum.at(lowest, group, place)
    np.maximum.at(highest, group, place)
    several = lowest < highest
    spread_out = np.zeros(sets, np.bool_)
    spread_out[pair] = several[group[copied]]
    return Sums(
        (
            Sum.counted(distinct, int(with_copies.sum())),
            Sum.counted(int(np.count_nonzero(low == high)), sets),
            Sum.counted(int(np.count_nonzero((first < last) & spread_out)), int(spread_out.sum())),
        )
    )


_KINDS: Final = (
    ("distinct_frac", "distinct responses / responses, groups with copies",
     "In groups that hold copies, the number of distinct responses over that of responses."),
    ("copy_same_logprob_frac", "share of sets of copies[logprobs equal to the bit]",
     "Share of the sets of copies whose logprobs are the same to the bit."),
    ("copy_across_ranks_frac", "share of sets of copies[on several ranks]",
     "Share of the sets of copies that lie on several ranks, in groups that do."),
)  # fmt: skip
for _index, (_name, _formula, _doc) in enumerate(_KINDS):
    metric(f"data.{_name}", _kinds, mean, part=_index, unit="1", source=_COLLISION, formula=_formula, doc=_doc)
