"""Shifted logprobs: the offset at which two logprobs of the same row agree, looked for only in rows that disagree in place."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import FIRST_STEP, Bools, Floats, derived, selection, tokens_of_rows
from rl_doctor.analyzer.formulas.segments import kept_splits
from rl_doctor.analyzer.metrics.mismatch import (
    Pair,
    pass_moments,
    pass_pair,
    rollout_moments,
    rollout_pair,
    trainer_side,
)
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

LAGS: Final = (-3, -2, -1, 1, 2, 3)
LEAST_TOKENS: Final = 16
"""Rows with fewer pairs are not judged one by one; their pairs are pooled."""
LEAST_POOLED: Final = 3
AGREES: Final = 0.8
"""A correlation below this in place makes a row a suspect, and one above it at another offset convicts it."""
GAIN: Final = 0.3
"""By how much the other offset must correlate better."""

_SOURCE: Final = "a shift by one keeps the mean log-ratio near 0; only the correlation at another offset shows it"


@frozen(eq=False)
class RowMoments:
    """Per row: number of pairs and the sums of x, y, x*x, y*y, x*y, float64 ``[rows, 6]``."""

    table: Floats

    @property
    def n(self) -> Floats:
        """Pairs per row."""
        count: Floats = self.table[:, 0]
        return count

    @property
    def corr(self) -> Floats:
        """Correlation per row; 0 where there are no pairs or one side is constant."""
        n, x, y, xx, yy, xy = self.table.T
        left, right = n * xx - x * x, n * yy - y * y
        power = np.maximum(left, 0.0) * np.maximum(right, 0.0)
        fine = power > 1e-18 * np.maximum(n * xx * n * yy, 1e-300)
        return np.where(fine, (n * xy - x * y) / np.sqrt(np.where(fine, power, 1.0)), 0.0)


def _row_moments(pair: Pair, sums: Floats | None = None) -> RowMoments:
    sums = pair.moments if sums is None else sums
    return RowMoments(np.concatenate([np.diff(pair.splits)[np.newaxis].astype(np.float64), sums]).T)


def _shifted(x: Floats, y: Floats, splits: NDArray[np.int64], lag: int) -> RowMoments:
    """Moments of x at t against y at t + lag, inside each row."""
    size = len(x)
    row = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    there = np.arange(size) + lag
    inside = (there >= 0) & (there < size)
    there = np.clip(there, 0, max(size - 1, 0))
    other = y[there]
    fine = inside & (row == row[there]) & np.isfinite(x) & np.isfinite(other)
    return _row_moments(Pair.whole(x[fine], other[fine], kept_splits(splits, fine)))


def scan(
    pair: Pair,
    x: NDArray[Any],
    y: NDArray[Any],
    splits: NDArray[np.int64],
    counted: Bools | None = None,
    sums: Floats | None = None,
) -> tuple[Sums, Sums]:
    """Look for shifted rows.

    Args:
        pair: the two logprobs in place.
        x: float ``[n_tokens]``, NaN where it does not count.
        y: the same for the other logprob.
        splits: int64 ``[n_sequences + 1]``.
        counted: bool ``[n_tokens]``, where they count at all; by default everywhere.
        sums: ``kernels.moments`` of the pair, where they are known.

    Returns:
        Sums over judged rows (shifted rows; their correlations at the offset found; shifted rows by offset, one sum each), and
        sums over the pairs of short rows that disagree in place (six moments in place, then at each offset), of all short pairs.
    """
    placed = _row_moments(pair, sums)
    judged = placed.n >= LEAST_TOKENS
    inplace = placed.corr
    short = (placed.n >= LEAST_POOLED) & ~judged
    doubtful = short & (inplace < AGREES)
    suspect = judged & (inplace < AGREES)
    offsets = np.zeros((len(splits) - 1, len(LAGS)))
    looked = suspect | doubtful
    pooled: list[Floats] = [placed.table[doubtful], *(np.zeros((0, 6)) for _ in LAGS)]
    best: Floats = np.zeros(len(splits) - 1)
    if looked.any():
        rows = np.flatnonzero(looked)
        index, inner = tokens_of_rows(splits, rows)
        left, right = x[index].astype(np.float64), y[index].astype(np.float64)
        if counted is not None:
            left[~counted[index]] = right[~counted[index]] = np.nan
        tried = [_shifted(left, right, inner, lag) for lag in LAGS]
        pooled[1:] = [found.table[doubtful[rows]] for found in tried]
        corr = np.stack([np.where(found.n >= LEAST_TOKENS - 3, found.corr, 0.0) for found in tried], axis=1)
        top = corr.max(axis=1)
        convicted = suspect[rows] & (top > AGREES) & (top > inplace[rows] + GAIN)
        offsets[rows[convicted], corr[convicted].argmax(axis=1)] = 1.0
        best[rows] = np.where(convicted, top, 0.0)
    shifted = best > 0.0
    count = int(judged.sum())
    rows_sums: list[Sum] = [Sum.of(shifted.astype(np.float64), count), Sum.of(np.asarray(best[shifted]))]
    rows_sums += [Sum.of(offsets[:, index], count) for index in range(len(LAGS))]
    pairs = int(placed.n[short].sum())
    return Sums(tuple(rows_sums)), Sums(tuple(Sum.of(table[:, index], pairs) for table in pooled for index in range(6)))


def _by_offset(s: Sums) -> list[float]:
    return [s[2 + index].value for index in range(len(LAGS))] if s.parts else []


def common_lag(s: Sums) -> float:
    """The most frequent offset of shifted rows; 0 where none is shifted; NaN where no row could be judged."""
    if not s.count:
        return math.nan
    counts = _by_offset(s)
    return float(LAGS[int(np.argmax(counts))]) if max(counts) > 0 else 0.0


def lag_share(s: Sums) -> float:
    """Share of shifted rows that have the common offset: 1 for a global shift."""
    counts = _by_offset(s)
    return max(counts) / sum(counts) if sum(counts) > 0 else math.nan


def _short(s: Sums) -> list[float]:
    """Correlation of short rows' pairs in place, then at each offset."""
    values = [part.value for part in s.parts]
    return [float(value) for value in RowMoments(np.array(values).reshape(-1, 6)).corr]


def short_lag(s: Sums) -> float:
    """Offset at which the pooled pairs of short rows agree although they do not in place; 0 for none, NaN for no short rows."""
    if s.count < 2 * LEAST_TOKENS:
        return math.nan
    if s[0].value < 0.5 * s.count:
        return 0.0
    inplace, *others = _short(s)
    top = int(np.argmax(others))
    return float(LAGS[top]) if inplace < AGREES and others[top] > AGREES and others[top] > inplace + GAIN else 0.0


_OPTIONAL: Final = ("old_logprob", "logprob", "minibatch", "epoch", FIRST_STEP, "response_length")
_NEEDS: Final = ("rollout_logprob", "old_logprob|logprob")
_PASSES: Final = ("logprob", "old_logprob")


@derived
def _rollout_scan(batch: Batch) -> tuple[Sums, Sums]:
    pair, trainer = rollout_pair(batch), trainer_side(batch)
    if pair is None or trainer is None:
        return Sums(), Sums()
    rollout = batch.columns["rollout_logprob"]
    return scan(pair, rollout, trainer, batch.splits, selection(batch), rollout_moments(batch))


@derived
def _pass_scan(batch: Batch) -> tuple[Sums, Sums]:
    old, new = batch.columns["old_logprob"], batch.columns["logprob"]
    return scan(pass_pair(batch), old, new, batch.splits, selection(batch), pass_moments(batch))


@reduction(zero=Sums(), needs=_NEEDS, optional=_OPTIONAL)
def _rollout(batch: Batch) -> Sums:
    return _rollout_scan(batch)[0]


@reduction(zero=Sums(), needs=_NEEDS, optional=_OPTIONAL)
def _rollout_short(batch: Batch) -> Sums:
    return _rollout_scan(batch)[1]


@reduction(zero=Sums(), needs=_PASSES)
def _passes(batch: Batch) -> Sums:
    return _pass_scan(batch)[0]


@reduction(zero=Sums(), needs=_PASSES)
def _passes_short(batch: Batch) -> Sums:
    return _pass_scan(batch)[1]


for _prefix, _of, _of_short, _who in (
    ("mismatch.", _rollout, _rollout_short, "the trainer's logprob against rollout_logprob"),
    ("mismatch.pass_", _passes, _passes_short, "logprob against old_logprob"),
):
    metric(
        f"{_prefix}shifted_frac",
        _of,
        mean,
        part=0,
        unit="1",
        source=_SOURCE,
        formula="share_i[lag_i != 0], lag_i = argmax over k in -3..3 of corr(a_t, b_t+k)",
        doc=f"Share of rows with at least 16 trained tokens in which {_who} agrees only at an offset of 1 to 3 positions.",
    )
    metric(
        f"{_prefix}lag",
        _of,
        common_lag,
        unit="tokens",
        source=_SOURCE,
        formula="mode_i lag_i",
        doc=f"The most frequent offset in -3..3 at which {_who} agrees; 0 in place.",
    )
    metric(
        f"{_prefix}lag_share",
        _of,
        lag_share,
        unit="1",
        source=_SOURCE,
        formula="share of i with lag_i != 0[lag_i = mode]",
        doc=f"Share of the shifted rows that have the most frequent offset, {_who}: 1 for a global shift.",
    )
    metric(
        f"{_prefix}lag_corr",
        _of,
        mean,
        part=1,
        unit="1",
        source=_SOURCE,
        formula="mean over i with lag_i != 0 of corr(a_t, b_t+lag_i)",
        doc=f"Mean correlation of the shifted rows at their offset, {_who}.",
    )
    metric(
        f"{_prefix}short_lag",
        _of_short,
        short_lag,
        unit="tokens",
        source=_SOURCE,
        formula="argmax over k in -3..3 of corr(a_t, b_t+k), rows pooled",
        doc=f"Offset at which the pooled pairs of rows with fewer than 16 trained tokens agree, {_who}; 0 in place.",
    )
