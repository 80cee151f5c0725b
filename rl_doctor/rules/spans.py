"""Invariants over steps: at which steps one is broken, how badly, and how to say so when it comes and goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence


@dataclass(frozen=True, slots=True, eq=False)
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
    return Series(series.metric, series.unit, series.steps[keep], series.values[keep], series.counts[keep])
