"""Sequences in flat arrays: what stands between two splits is one sequence, which may be empty."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.states import Sum

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Splits = NDArray[np.int64]


@checked
def segment_sums(values: NDArray[Any], splits: Splits) -> Floats:
    """Sum of the values of each sequence; 0 for an empty one.

    The bits depend on nothing but the sequence. Source: arithmetic.

    Args:
        values: ``[n]``, of any unit.
        splits: int64 ``[sequences + 1]``.

    Returns:
        float64 ``[sequences]``.
    """
    sums = np.zeros(len(splits) - 1, np.float64)
    filled = np.flatnonzero(np.diff(splits))
    if filled.size:
        with np.errstate(over="ignore", invalid="ignore"):
            sums[filled] = np.add.reduceat(values, splits[filled], dtype=np.float64)
    return sums


@checked
def segment_means(values: NDArray[Any], splits: Splits, eps: float = 0.0) -> Floats:
    """Sum of the values of each sequence over (their number + eps); 0 for an empty one.

    Source: verl 0.9.1, ``masked_mean`` over an axis (eps = 1e-8); TRL 1.16 and OpenRLHF 0.11.2 (eps = 0).

    Args:
        values: ``[n]``, of any unit.
        splits: int64 ``[sequences + 1]``.
        eps: what is added to the number of tokens.

    Returns:
        float64 ``[sequences]``.
    """
    return segment_sums(values, splits) / np.maximum(np.diff(splits) + eps, np.finfo(np.float64).tiny)


@checked
def segment_extremes(values: Floats, splits: Splits) -> tuple[Floats, Floats]:
    """Smallest and largest value of each sequence; NaN for an empty one. Source: arithmetic.

    Args:
        values: float64 ``[n]``, of any unit.
        splits: int64 ``[sequences + 1]``.

    Returns:
        Two float64 ``[sequences]``.
    """
    low, high = np.full((2, len(splits) - 1), np.nan)
    filled = np.flatnonzero(np.diff(splits))
    if filled.size:
        low[filled] = np.minimum.reduceat(values, splits[filled])
        high[filled] = np.maximum.reduceat(values, splits[filled])
    return low, high


@checked
def spread(of_sequences: NDArray[Any], splits: Splits) -> NDArray[Any]:
    """The value of a sequence at each of its tokens. Source: arithmetic.

    Args:
        of_sequences: ``[sequences]``, of any unit.
        splits: int64 ``[sequences + 1]``.

    Returns:
        ``[n]``, of the same type.
    """
    return np.repeat(of_sequences, np.diff(splits))


@checked
def kept_splits(splits: Splits, keep: Bools) -> Splits:
    """Splits of the tokens that are kept. Source: arithmetic.

    Args:
        splits: int64 ``[sequences + 1]``.
        keep: bool ``[n]``.

    Returns:
        int64 ``[sequences + 1]``.
    """
    return splits - np.searchsorted(np.flatnonzero(~keep), splits)


@checked
def mean(values: NDArray[Any]) -> float:
    """Sum of the values over their number, correctly rounded, so in any order the same bits; NaN for none.

    Source: arithmetic.

    Args:
        values: ``[n]``, of any unit.
    """
    return Sum.of(values.astype(np.float64, copy=False)).mean


@checked
def variance(values: NDArray[Any], ddof: int) -> float:
    """Sum of (x - mean)^2 over (n - ddof); NaN for n <= ddof. In any order the same bits. Source: arithmetic.

    Args:
        values: ``[n]``, of any unit.
        ddof: 0 for the variance of the values, 1 for the unbiased one.
    """
    if len(values) <= ddof:
        return float("nan")
    with np.errstate(invalid="ignore", over="ignore"):
        centred = values - mean(values)
        return mean(centred * centred) * (len(values) / (len(values) - ddof))
