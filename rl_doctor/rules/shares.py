"""Shares that are above 1: in per cent, or not shares at all. No rule but the one that tells it judges them as they stand."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series

_SHARE: Final = re.compile(r".*_frac(_[a-z]+)*|.*pref\.accuracy")
_ROUNDING: Final = 1e-6
PER_CENT: Final = 0.2
"""Of the rows in which a share is not 0, those that must be above 1 to be taken for per cent."""
CERTAIN: Final = 2.0
"""A share that reaches this in per cent cannot be another number that is a little too large."""


def impossible(series: Series) -> bool:
    """Whether it is a share and above 1 somewhere, by more than rounding; of measured steps."""
    return bool((series.values > 1.0 + _ROUNDING).any()) and _SHARE.fullmatch(series.metric) is not None


def in_per_cent(values: NDArray[np.float64]) -> bool:
    """Whether a share seems to be logged in per cent: above 1 in many rows, and never above 100.

    Args:
        values: of the share, float64 ``[n]``, finite.
    """
    counted = values[values != 0.0]
    return bool(counted.size) and float(counted.max()) <= 100.0 and float(np.mean(counted > 1.0)) >= PER_CENT


def possible(series: Series) -> Series:
    """A series as rules may judge it: a share above 1 scaled where it is in per cent for certain, else left out.

    Left out are the rows above 1 where they are few, and all rows where they are many; other metrics stay as they are.

    Args:
        series: measured steps of any metric.
    """
    values = series.values
    if not impossible(series):
        return series
    if in_per_cent(values):
        if float(values.max()) >= CERTAIN:
            return Series(series.metric, series.unit, series.steps, values / 100.0, series.counts)
        keep = np.zeros(len(series), np.bool_)
    else:
        counted = values != 0.0
        many = float(np.mean(values[counted] > 1.0)) >= PER_CENT
        keep = (values <= 1.0 + _ROUNDING) & (not many)
    return Series(series.metric, series.unit, series.steps[keep], values[keep], series.counts[keep])
