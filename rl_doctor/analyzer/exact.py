"""Exact totals of float64 values as integers in units of 2**-1126, and their quotients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SHIFT: Final = 1126
UNIT: Final = 1 << SHIFT
"""The number 1 as an exact total."""
_MANTISSA: Final = 2.0**53
SHORT: Final = 256
"""Up to so many values ``short_total`` is faster than array operations."""
_LARGEST: Final = 2.0**900
"""Above this the split into parts could overflow, and values are added one by one."""


def exact_total(values: NDArray[np.float64]) -> int:
    """The sum of finite float64 values ``[n]`` as an integer in units of 2**-1126. Exact for any n below 2**40."""
    return exact_totals(values[np.newaxis])[0]


def exact_totals(values: NDArray[np.float64]) -> list[int]:
    """The sum of each row of finite float64 values ``[k, n]``, exact for any n below 2**40.

    Each round adds a power of two to the values and takes it away again, which leaves the multiples of its last bit; there are so
    few bits in those that float64 adds them without rounding in any order. Source: S. Rump, T. Ogita, S. Oishi, Accurate
    floating-point summation, part I, 2008 (ExtractVector).
    """
    if values.size <= SHORT:
        return [short_total(row) for row in values.tolist()]
    totals = [0] * len(values)
    spare = values.shape[1].bit_length() + 1
    rest = values
    while True:
        largest: list[float] = np.abs(rest).max(axis=1).tolist()
        if not any(largest):
            return totals
        if max(largest) > _LARGEST:
            return [total + short_total(row) for total, row in zip(totals, rest.tolist(), strict=True)]
        sigma = np.array([[math.ldexp(1.0, math.frexp(value)[1] + spare)] for value in largest])
        part = rest + sigma
        part -= sigma
        rest = rest - part
        sums: Sequence[Any] = part.sum(axis=1).tolist()
        totals = [total + _units(part_sum) for total, part_sum in zip(totals, sums, strict=True)]


def short_total(values: list[float]) -> int:
    """The sum of finite values, for few of them cheaper than the fixed cost of the array operations.

    ``math.fsum`` rounds the exact sum once; what that left out is the sum with the result taken away, until nothing is left.

    Raises:
        ValueError: a value is NaN, or infinities of both signs are among them.
        OverflowError: a value is infinite.
    """
    total, rest = 0, values
    try:
        while part := math.fsum(rest):
            total += _units(part)
            rest = [*rest, -part]
    except OverflowError:  # also of finite values whose sum is beyond the range of float64
        return sum(map(_units, values))
    return total


def _units(value: float) -> int:
    fraction, exponent = math.frexp(value)
    return int(fraction * _MANTISSA) << (exponent - 53 + SHIFT)


def exact_quotient(numerator: int, denominator: int) -> float:
    """The correctly rounded quotient of two exact totals, infinite where it does not fit; NaN for a zero denominator."""
    if denominator == 0:
        return math.nan
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if (numerator > 0) == (denominator > 0) else -math.inf
