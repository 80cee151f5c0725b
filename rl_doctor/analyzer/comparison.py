"""A logged number beside its recomputation, and what else it may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_PRECISION: Final = 1e-12
"""Difference up to which two explanations are the same number, relative."""


@frozen(eq=False)
class Explanation:
    """What a key would be if it were computed in one known wrong way.

    Attributes:
        name: a few words.
        sentence: what the logged number then is or does; follows "the logged <key>".
        values: float64 ``[n]`` at the steps of the comparison, NaN where they were not looked at or cannot be told.
        tolerance: float64 ``[n]``, as that of the comparison.
        approximate: whether the data can only be consistent with it: nothing gives the number itself.
    """

    name: str
    sentence: str
    values: Floats
    tolerance: Floats
    approximate: bool = False


@frozen
class Untried:
    """An explanation that could not be tried: its name, and the columns that the run lacks for it."""

    name: str
    columns: tuple[str, ...]


@frozen(eq=False)
class Comparison:
    """One logged metric against its recomputation.

    Attributes:
        name: native name, as the trainer logged it.
        metric: canonical metric that it corresponds to, or None.
        unit: unit of both.
        steps: int64 ``[n]``, steps at which both exist.
        logged: float64 ``[n]``.
        recomputed: float64 ``[n]``.
        tolerance: float64 ``[n]``, what rounding in the trainer and in the log can explain.
        explanations: known ways to get it wrong, the most specific first; none where the log is right.
        untried: further ones, for which the run lacks columns.
        looked: bool ``[n]``, where the explanations were looked at; None for everywhere.
        unreal_steps: int64 ``[m]``, further steps: there the recomputed number is finite and the logged one is not.
        unreal: float64 ``[m]``, what was logged there.
        doubt: what shows that rows of the recording may be missing, of which the recomputed numbers then lack a part; or "".
    """

    name: str
    metric: str | None
    unit: str
    steps: NDArray[np.int64]
    logged: Floats
    recomputed: Floats
    tolerance: Floats
    explanations: tuple[Explanation, ...] = ()
    untried: tuple[Untried, ...] = ()
    looked: Flags | None = None
    unreal_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    unreal: Floats = field(default_factory=lambda: np.empty(0))
    doubt: str = ""

    @property
    def compared(self) -> int:
        """Number of steps that were compared."""
        return len(self.steps) + len(self.unreal_steps)


@frozen(eq=False)
class Fit:
    """How well an explanation fits.

    Attributes:
        explanation: the explanation.
        equal: number of steps at which it equals the log.
        told: number of steps that differ from the definition and at which it is known.
        looked: number of those at which the explanations were looked at.
        worst: largest distance from the log at these, in tolerances.
        first: index of the first step at which it equals the log.
    """

    explanation: Explanation
    equal: int
    told: int
    looked: int
    worst: float
    first: int

    def fits(self, share: float) -> bool:
        """Whether it equals the log at ``share`` of the steps; one may be without the step before or after it."""
        return self.told >= max(1, share * self.looked - 1) and self.share >= share

    @property
    def share(self) -> float:
        """Share of the steps at which it equals the log."""
        return self.equal / self.told if self.told else 0.0


def differing(item: Comparison, limits: Mapping[str, float]) -> Flags | None:
    """Where the logged number is another than the recomputed one, bool ``[n]``; None where that is at too few steps to judge.

    Args:
        item: the comparison.
        limits: ``relative``, difference in units of the larger of the two numbers up to which they are equal; ``min_steps``
            that must differ, or all where fewer were compared; ``share_warning`` of the steps that must.
    """
    wrong = unequal(item, limits["relative"])
    number, compared = int(wrong.sum()), len(item.steps)
    if number < max(1, min(limits["min_steps"], compared)) or number < limits["share_warning"] * compared:
        return None
    return wrong


def unequal(item: Comparison, relative: float) -> Flags:
    """Where the two numbers differ by more than rounding explains and more than ``relative`` of the larger, bool ``[n]``."""
    with np.errstate(over="ignore"):  # of numbers near the largest that there is
        return np.asarray(np.abs(item.logged - item.recomputed) > allowed(item, relative), np.bool_)


def allowed(item: Comparison, relative: float) -> Floats:
    """The largest difference up to which the two numbers count as equal, float64 ``[n]``; see ``unequal``."""
    size = np.maximum(np.abs(item.logged), np.abs(item.recomputed))
    return np.asarray(np.maximum(item.tolerance, relative * size), np.float64)


def fits(item: Comparison, wrong: Flags) -> list[Fit]:
    """How well each explanation fits where the log is ``wrong`` (bool ``[n]``), the best first, else in their order."""
    seen = wrong if item.looked is None else wrong & item.looked
    found = [_fit(item, one, seen) for one in item.explanations]
    return sorted(found, key=lambda fit: (fit.explanation.approximate, -fit.share))


def _fit(item: Comparison, one: Explanation, wrong: Flags) -> Fit:
    told = wrong & np.isfinite(one.values)
    if not told.any():
        return Fit(one, 0, 0, int(wrong.sum()), np.inf, 0)
    with np.errstate(over="ignore"):
        distance = np.abs(item.logged[told] - one.values[told])
        tolerance = np.maximum(one.tolerance[told], np.finfo(np.float64).tiny)
        worst = float((distance / tolerance).max())
    equal = distance <= tolerance
    first = int(np.flatnonzero(told)[np.argmax(equal)])
    return Fit(one, int(equal.sum()), int(told.sum()), int(wrong.sum()), worst, first)


def same(item: Comparison, one: Explanation, other: Explanation) -> bool:
    """Whether two explanations give the same numbers wherever both were looked at."""
    both = np.isfinite(one.values) & np.isfinite(other.values)
    scale = np.maximum(np.abs(one.values[both]), np.abs(other.values[both])) + np.abs(item.recomputed[both]) * 1e-3
    return bool(both.any() and (np.abs(one.values[both] - other.values[both]) <= _PRECISION * scale).all())
