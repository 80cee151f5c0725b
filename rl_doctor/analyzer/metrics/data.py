"""Values that cannot be: logprobs above 0, impossible lengths, samples that repeat each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Bools, Floats, derived, known, segment_sums, selection
from rl_doctor.analyzer.registry import Reduction, metric, reduction, sequence_value
from rl_doctor.analyzer.states import Extremes, Sum, Sums
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

LOGPROBS: Final = ("logprob", "old_logprob", "rollout_logprob", "ref_logprob", "teacher_logprob")
IMPROBABLE: Final = math.log(1e-6)
"""A response less probable than this does not come twice in a group by chance."""


def _mean(index: int) -> Callable[[Sums], float]:
    return lambda s: s[index].mean if s.parts else math.nan


def _above_zero(column: str) -> Reduction:
    @reduction(zero=Extremes(), needs=(column,))
    def largest(batch: Batch) -> Extremes:
        values = batch.columns[column][selection(batch)]
        return Extremes.of(values[np.isfinite(values)])

    return largest


def _positive(column: str) -> Reduction:
    @reduction(zero=Sums(), needs=(column,))
    def counted(batch: Batch) -> Sums:
        values = batch.columns[column]
        finite = selection(batch) & np.isfinite(values)
        above = finite & (values > 0.0)
        count = int(np.count_nonzero(finite))
        if not above.any():
            return Sums((Sum(count=count), Sum()))
        rows = np.repeat(segment_sums(above, batch.splits) > 0, np.diff(batch.splits))
        told = finite & rows & (values != 0.0)
        coarse = told & ((values.astype(np.float32).view(np.uint32) & 0xFFFF) == 0)
        return Sums((Sum.counted(int(above.sum()), count), Sum.counted(int(coarse.sum()), int(told.sum()))))

    return counted


for _column in LOGPROBS:
    metric(
        f"data.{_column}_max",
        _above_zero(_column),
        lambda s: s.high,
        unit="nat",
        source="a probability is at most 1",
        doc=f"Largest {_column} at a trained token.",
    )
    _counts = _positive(_column)
    metric(
        f"data.{_column}_positive_frac",
        _counts,
        _mean(0),
        unit="1",
        source="a probability is at most 1",
        doc=f"Share of trained tokens whose {_column} is above 0.",
    )
    metric(
        f"data.{_column}_coarse_frac",
        _counts,
        _mean(1),
        unit="1",
        source="bfloat16 keeps the upper 16 bits of a float32",
        doc=f"Share of the non-zero values of {_column} that bfloat16 can hold exactly, in rows with a value above 0.",
    )


_LENGTHS: Final = ("prompt_length", "response_length", "stored_length", "prompt_loss_tokens", "turns", "left_padding")


@reduction(zero=Sums(), optional=_LENGTHS)
def _lengths(batch: Batch) -> Sums:
    """Rows with a negative length; rows whose lengths contradict each other."""
    columns = {name: batch.columns[name] for name in _LENGTHS if name in batch.columns}
    there = np.zeros(batch.n_sequences, np.bool_)
    negative, contradicting = there.copy(), there.copy()
    for values in columns.values():
        there |= known(values)
        negative |= known(values) & (values < 0)
    if (stored := columns.get("stored_length")) is not None:
        tokens = np.diff(batch.splits)
        contradicting |= known(stored) & (stored != tokens) & (tokens > 0)
    if "prompt_loss_tokens" in columns and "prompt_length" in columns:
        in_loss, prompt = columns["prompt_loss_tokens"], columns["prompt_length"]
        contradicting |= known(in_loss) & known(prompt) & (in_loss > prompt)
    count = int(there.sum())
    return Sums((Sum.counted(int(negative.sum()), count), Sum.counted(int(contradicting.sum()), count)))


metric(
    "data.negative_length_frac", _lengths, _mean(0), unit="1", source="arithmetic", doc="Share of rows with a negative length."
)
metric(
    "data.contradicting_length_frac",
    _lengths,
    _mean(1),
    unit="1",
    source="arithmetic",
    doc="Share of rows whose stored_length is not the number of tokens stored, or with more prompt loss tokens than prompt.",
)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection of 64-bit words that scatters their bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@derived
def _hashes(batch: Batch) -> NDArray[np.int64]:
    """A 63-bit hash of the token ids of each row, ``[n_sequences]``; -1 for a row without tokens."""
    position = np.arange(batch.n_tokens) - np.repeat(batch.splits[:-1], np.diff(batch.splits))
    word = (batch.columns["token_id"].astype(np.int64) + 1).view(np.uint64) << np.uint64(32)
    mixed = _mix(_mix(word + position.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15))
    lengths = np.diff(batch.splits)
    hashes = np.full(batch.n_sequences, -1, np.int64)
    filled = np.flatnonzero(lengths)
    if filled.size:
        sums = np.add.reduceat(mixed, batch.splits[filled])
        hashes[filled] = (sums >> np.uint64(1)).view(np.int64)
    return hashes


@sequence_value("response_hash", needs=("token_id",))
def response_hash(batch: Batch) -> NDArray[Any]:
    """A hash of the row's token ids; equal rows have equal hashes."""
    return _hashes(batch)


@sequence_value("response_logprob", needs=("rollout_logprob|old_logprob|logprob",), optional=LOGPROBS[:3])
def response_logprob(batch: Batch) -> NDArray[Any]:
    """Sum of the sampler's logprob over the trained tokens; NaN for a row without any or with one unknown."""
    column = next(batch.columns[name] for name in ("rollout_logprob", "old_logprob", "logprob") if name in batch.columns)
    chosen = selection(batch)
    sums = segment_sums(np.where(chosen, column.astype(np.float64), 0.0), batch.splits)
    return np.where(segment_sums(chosen, batch.splits) > 0, sums, np.nan)


_HASH, _LOGPROB = "per_sequence.response_hash", "per_sequence.response_logprob"


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
    _mean(0),
    unit="1",
    source=_COLLISION,
    doc="Share of responses that are identical, token by token, to another of their group.",
)
metric(
    "data.duplicate_expected_frac",
    _duplicates,
    _mean(1),
    unit="1",
    source=_COLLISION,
    doc="Share expected of independent samples, from the responses' own probabilities.",
)
metric(
    "data.improbable_duplicate_frac",
    _duplicates,
    _mean(2),
    unit="1",
    source=_COLLISION,
    doc="Share of responses that are identical to another of their group although their probability is below 1e-6.",
)
