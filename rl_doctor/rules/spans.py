"""Invariants over steps: at which steps one is broken, how badly, and how to say so when it comes and goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Evidence

LEAST_OFFSET: Final = 0.01
"""Nat by which two logprobs must differ for it to be told that they do by a constant."""
NO_SPREAD: Final = 0.02
ENGINE_SPREAD: Final = 0.1
"""Standard deviation over mean up to which a difference is a constant; of two programs, whose rounding is not the same."""


@frozen(eq=False)
class Breach:
    """The steps at which a series stands beyond a limit.

    Attributes:
        series: the measured steps.
        marked: bool ``[n]``, steps beyond the limit; at least one.
        limit: the limit.
    """

    series: Series
    marked: NDArray[np.bool_]
    limit: float

    @property
    def first(self) -> int:
        """First such step."""
        return int(self.series.steps[self.marked][0])

    @property
    def last(self) -> int:
        """Last such step."""
        return int(self.series.steps[self.marked][-1])

    @property
    def n(self) -> int:
        """Items behind those steps."""
        return int(self.series.counts[self.marked].sum())

    @property
    def value(self) -> float:
        """Mean over the items of those steps."""
        return pooled(self.series, self.marked)

    @property
    def items(self) -> float:
        """For a share: the number of items that it is the share of."""
        return self.value * self.n

    @property
    def when(self) -> str:
        """The steps in words: one step, all steps of a range, or k of n."""
        return when(self.series, self.marked)

    def evidence(self, *, value: float | None = None, where: Mapping[str, Any] | None = None) -> Evidence:
        """The breach as evidence; its mean unless ``value`` is given."""
        return Evidence(
            self.series.metric, self.first, self.last, self.value if value is None else value, None, self.limit,
            self.series.unit, self.n, where,
        )  # fmt: skip


def pooled(series: Series, marked: NDArray[np.bool_] | None = None) -> float:
    """Mean over the items of the marked steps (default all); the largest value where one is infinite."""
    values = series.values if marked is None else series.values[marked]
    counts = (series.counts if marked is None else series.counts[marked]).astype(np.float64)
    if not values.size or counts.sum() == 0:
        return float("nan")
    return float(np.average(values, weights=counts))


def pooled_known(series: Series | None) -> float:
    """Mean over the items of the steps whose value is known; NaN where there are none."""
    return math.nan if series is None else pooled(series, ~np.isnan(series.values))


def when(series: Series, marked: NDArray[np.bool_]) -> str:
    """The marked steps in words: one step, all steps of a range, or k of n."""
    index = np.flatnonzero(marked)
    first, last = int(series.steps[index[0]]), int(series.steps[index[-1]])
    if first == last:
        return f"at step {first}"
    among = int(index[-1] - index[0]) + 1
    if len(index) == among:
        return f"at steps {first} to {last}"
    return f"at steps {first} to {last} ({len(index)} of {among} steps)"


def above(series: Series | None, limit: float) -> Breach | None:
    """The steps above ``limit``; None if there are none or nothing was measured."""
    return None if series is None else among(series, series.values > limit, limit)


def below(series: Series | None, limit: float) -> Breach | None:
    """The steps below ``limit``; None if there are none or nothing was measured."""
    return None if series is None else among(series, series.values < limit, limit)


def among(series: Series, marked: NDArray[np.bool_], limit: float) -> Breach | None:
    """The marked steps; None if there are none."""
    return Breach(series, marked, limit) if marked.any() else None


def at(series: Series | None, steps: NDArray[np.int64]) -> Series | None:
    """The series at those of ``steps`` at which it was measured; None if at none."""
    if series is None:
        return None
    keep = np.isin(series.steps, steps)
    if not keep.any():
        return None
    return series.where(keep)


def weighted(series: Series | None, error: Series | None) -> tuple[float, float]:
    """Mean of a series over the steps, weighted by its standard error at each, and the error of that; NaN where unknown."""
    if series is None or error is None:
        return math.nan, math.nan
    steps = np.intersect1d(series.steps, error.steps)
    one, of = at(series, steps), at(error, steps)
    if one is None or of is None:
        return math.nan, math.nan
    weight = 1.0 / np.maximum(of.values, 1e-9) ** 2
    return float(np.average(one.values, weights=weight)), float(1.0 / math.sqrt(weight.sum()))


def offset_by_constant(mean: NDArray[np.float64], spread: NDArray[np.float64], most: float = ENGINE_SPREAD) -> NDArray[np.bool_]:
    """Where exp(d) is another number than 1 and (nearly) the same at every token, bool ``[k]``, from its mean and spread.

    A cut distribution, other weights and rounding differ from token to token; a constant was added to one of the two.
    """
    away = np.abs(mean - 1.0)
    found: NDArray[np.bool_] = (away > LEAST_OFFSET) & (spread < most * away)
    return found
