"""To how many digits a log rounds."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_FEWEST_DECIMALS: Final = 4
_FEWEST_DIGITS: Final = 3
_MOST_DIGITS: Final = 7


def log_rounding(logged: Floats) -> Floats:
    """What the precision of a log can hide, from how many digits its values have: float64 ``[n]``.

    A log that rounds to d decimals has no value with more; one that rounds to d significant digits likewise: its larger values
    have fewer decimals. Fewer than four decimals are not taken for rounding where every value is a whole number: such values are
    counts.

    Args:
        logged: the values of one key, float64 ``[n]``.
    """
    if not logged.size:
        return np.zeros(0)
    digits = []
    for value in logged.tolist():
        digits.append(_digits(value))
        if min(digits[-1]) > _MOST_DIGITS:  # it rounds to no number of digits; most logs show that with the first value
            return np.asarray(np.abs(logged) * 2.0**-24)
    places = np.array([places for places, _ in digits])
    decimals, significant = int(places.max()), max(_FEWEST_DIGITS, *(length for _, length in digits))
    exponent = np.floor(np.log10(np.maximum(np.abs(logged), np.finfo(np.float64).tiny)))
    by_digits = np.asarray(0.5 * 10.0 ** (exponent - significant + 1))
    if decimals <= _MOST_DIGITS:
        rounding = np.full(logged.size, 0.5 * 10.0 ** -(_FEWEST_DECIMALS if decimals == 0 else decimals))
        larger = exponent > exponent[places == decimals].max()  # of so many decimals they would have as many
        return np.where(larger & (decimals > 0), np.maximum(rounding, by_digits), rounding)
    return by_digits if significant <= _MOST_DIGITS else np.asarray(np.abs(logged) * 2.0**-24)


def _digits(value: float) -> tuple[int, int]:
    """Number of decimals and of significant digits in the shortest form of a number."""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = fraction.rstrip("0")
    decimals = max(len(fraction) - int(power or 0), 0)
    return decimals, len((whole + fraction).lstrip("0"))
