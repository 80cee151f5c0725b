"""Where no single explanation fits a log: two mistakes at once, the one that comes closest, and whether it follows at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.comparison import Comparison, Explanation
from rl_doctor.analyzer.factors import Multiplier
from rl_doctor.analyzer.rounding import log_rounding

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_MIN_STEPS: Final = 3
"""Steps, and different numbers logged at them, below which two mistakes at once could reproduce anything."""
_CLOSER: Final = 10.0
"""How much closer than the definition something must be to be named where nothing fits."""
_FOLLOWS: Final = 0.9
"""Correlation from which a log follows its recomputation."""
_CONSTANT: Final = 1e-6
"""Range of a series that does not vary, relative to its largest number."""


def multiplied(logged: Floats, values: Floats, slack: Floats, numbers: Floats) -> tuple[Flags, Flags]:
    """Where a value times each of ``numbers`` ``[m, n]`` is known, and where it equals the log too, bool ``[m, n]``."""
    made = values * numbers
    known = np.isfinite(made)
    with np.errstate(invalid="ignore"):
        return known, known & (np.abs(logged - made) <= slack * np.abs(numbers))


def pairs(
    item: Comparison, wrong: Flags, single: Sequence[Explanation], factors: Sequence[Multiplier], share: float
) -> Iterator[Explanation]:
    """Two mistakes at once that reproduce the log: each of ``single`` or of ``factors``, times one of ``factors``.

    Args:
        item: the comparison.
        wrong: bool ``[n]``, where the log differs and the explanations were looked at.
        single: explanations of values, none of which fits.
        factors: what the definition may be multiplied by.
        share: of the steps that it must equal the log at.
    """
    if not factors or len(np.unique(item.logged[wrong])) < _MIN_STEPS:
        return
    numbers = np.stack([factor.numbers for factor in factors])
    least = max(_MIN_STEPS, share * wrong.sum() - 1)
    bases = [(one, 0) for one in single if not one.approximate]
    for at, factor in enumerate(factors):
        values, slack = item.recomputed * factor.numbers, item.tolerance * np.abs(factor.numbers)
        bases.append((Explanation(factor.name, factor.sentence, values, slack), at + 1))
    rounding = log_rounding(item.logged) / np.abs(numbers)
    for one, start in bases:
        known, equal = multiplied(item.logged, one.values, one.tolerance + rounding[start:], numbers[start:])
        told = (known & wrong).sum(axis=1)
        fitting = (told >= least) & ((equal & wrong).sum(axis=1) >= share * told)
        for at in np.flatnonzero(fitting).tolist():
            factor = factors[start + at]
            yield Explanation(
                f"{one.name}, {factor.name}", f"{one.sentence}, and {factor.sentence}",
                np.where(wrong, one.values * factor.numbers, np.nan), one.tolerance * np.abs(factor.numbers),
            )  # fmt: skip


def closest(item: Comparison, wrong: Flags) -> tuple[Explanation, float] | None:
    """The explanation that comes closest to a log that none fits, and how far off it is, as a share of what was logged.

    None where none is much closer than the definition, or where the log does not vary.
    """
    seen = wrong if item.looked is None else wrong & item.looked
    best: tuple[Explanation, float] | None = None
    if constant(item.logged) is not None:
        return None
    for one in item.explanations:
        told = seen & np.isfinite(one.values)
        if one.approximate or told.sum() < min(_MIN_STEPS, int(seen.sum())) or told.sum() < 2:
            continue
        off, of_definition = (_distance(item.logged[told], values[told]) for values in (one.values, item.recomputed))
        if off * _CLOSER <= of_definition and (best is None or off < best[1]):
            best = one, off
    return best


def _distance(logged: Floats, values: Floats) -> float:
    size = float(np.sqrt(np.mean(logged**2)))
    return float(np.sqrt(np.mean((logged - values) ** 2))) / size if size else np.inf


def constant(logged: Floats) -> float | None:
    """The number that is logged at every one of at least three steps; None where it varies."""
    if len(logged) < _MIN_STEPS or np.ptp(logged) > _CONSTANT * np.abs(logged).max():
        return None
    return float(np.median(logged))


def constant_ratio(logged: Floats, recomputed: Floats, spread: float) -> float | None:
    """Logged over recomputed where that is the same at every step; None where it varies, or for a single step.

    Such a multiple must be much closer than the series itself. Of one that varies the log must show it: a number that stays the
    same is no multiple of it.

    Args:
        logged: float64 ``[n]``.
        recomputed: float64 ``[n]``.
        spread: part of the median ratio that the middle half of the ratios may lie around it.
    """
    if len(recomputed) < 2 or not recomputed.all():
        return None
    ratios = logged / recomputed
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    if high - low > 2 * spread * abs(middle):
        return None
    if np.median(np.abs(logged - middle * recomputed)) * _CLOSER > np.median(np.abs(logged - recomputed)):
        return None
    varies = len(logged) >= _MIN_STEPS and constant(recomputed) is None
    if varies and (constant(logged) is not None or np.sign(middle) * np.corrcoef(logged, recomputed)[0, 1] < _FOLLOWS):
        return None
    return float(middle)
