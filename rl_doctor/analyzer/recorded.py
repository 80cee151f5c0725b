"""What the steps that are read gave: points of series, the sequences at the top, histograms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.registry import Metric
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.stack import Stack
from rl_doctor.analyzer.states import State, Top

_MOST_NAMES: Final = 64
"""Names of a step that a metric is told of: those with the most items."""


class Points:
    """Points of one series: arrays of what was read before, and a list of what came since.

    The arrays have room for more, so that those of a long run are not copied for each point; what was handed out stays as it is.

    Args:
        steps: int64 ``[n]``, increasing.
        values: float64 ``[n]``.
        counts: int64 ``[n]``.
    """

    __slots__ = ("_counts", "_fresh", "_size", "_steps", "_values")

    def __init__(
        self,
        steps: NDArray[np.int64] | None = None,
        values: NDArray[np.float64] | None = None,
        counts: NDArray[np.int64] | None = None,
    ) -> None:
        self._steps = np.empty(0, np.int64) if steps is None else steps
        self._values = np.empty(0, np.float64) if values is None else values
        self._counts = np.empty(0, np.int64) if counts is None else counts
        self._size = len(self._steps)
        self._fresh: list[tuple[int, float, int]] = []

    def __len__(self) -> int:
        return self._size + len(self._fresh)

    def add(self, step: int, value: float, count: int) -> None:
        """Add the point of a later step."""
        self._fresh.append((step, value, count))

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """Steps, values and counts."""
        size = len(self)
        if self._fresh:
            fresh = slice(self._size, size)
            if size > len(self._steps):
                for name in ("_steps", "_values", "_counts"):
                    before = getattr(self, name)[: self._size]
                    setattr(self, name, np.concatenate([before, np.empty(size + size // 2 - self._size, before.dtype)]))
            self._steps[fresh], self._values[fresh], self._counts[fresh] = zip(*self._fresh, strict=True)
            self._fresh, self._size = [], size
        return self._steps[:size], self._values[:size], self._counts[:size]


class Recorded:
    """What steps gave, by metric.

    Attributes:
        points: name of a series -> its points.
        tops: name of a metric -> its states by step, where they are a ``Top``.
        histograms: name of a metric -> its states by step, where they are a ``Histogram``.
        before: name of a metric of changes -> its state at the last step.

    Args:
        before: where metrics of changes go on from.
    """

    def __init__(self, before: Mapping[str, State] | None = None) -> None:
        self.points: dict[str, Points] = {}
        self.tops: dict[str, list[tuple[int, Top]]] = {}
        self.histograms: dict[str, Stack] = {}
        self.before: dict[str, Any] = dict(before or {})

    def add(self, items: Iterable[Metric], step: int, state: Any) -> None:
        """Add the state of a step, of the reduction that the metrics ``items`` share."""
        for item in items:
            if item.keyed:
                self._add_named(item, step, state)
                continue
            if isinstance(state, Top):
                self.tops.setdefault(item.name, []).append((step, state))
            if isinstance(state, Histogram):
                self.histograms.setdefault(item.name, Stack()).add(step, state)
            part = state if item.part is None else state[item.part]
            if not item.change:
                self._of(item.name).add(step, item.final(part), part.count)
                continue
            if item.name in self.before:
                self._of(item.name).add(step, item.final(self.before[item.name], part), part.count)
            self.before[item.name] = part

    def _add_named(self, item: Metric, step: int, state: Any) -> None:
        largest = sorted(state.groups.items(), key=lambda group: (-group[1].count, group[0]))[:_MOST_NAMES]
        for key, sums in largest:
            part = sums if item.part is None else sums[item.part]
            self._of(item.name + key).add(step, item.final(part), part.count)

    def _of(self, name: str) -> Points:
        if name not in self.points:
            self.points[name] = Points()
        return self.points[name]


class Folded:
    """What one reading gave: what is settled, and what would change if the run went on.

    Args:
        settled: of steps and generation batches that are finished.
        rest: of generation batches on which later steps may still train.
        left_out: steps of which the tokens of some rows were left out, and of all rows.
        reopened: how often a generation batch came back after it was taken for finished.
    """

    def __init__(
        self,
        settled: Recorded,
        rest: Recorded,
        left_out: tuple[NDArray[np.int64], NDArray[np.int64]],
        reopened: int,
    ) -> None:
        self._both = (settled, rest)
        self.left_out = left_out
        self.reopened = reopened

    def names(self, item: Metric) -> list[str]:
        """The names of the series of a metric: its own, or one for each name that its states had."""
        if not item.keyed:
            return [item.name]
        return sorted({name for one in self._both for name in one.points if name.startswith(item.name)})

    def series(self, item: Metric, name: str) -> Series:
        """The series of one metric under one of its names."""
        found = [one.points[name].arrays() for one in self._both if name in one.points]
        if len(found) != 1:
            found = [Points().arrays(), *found]
            return Series(name, item.unit, *(np.concatenate(columns) for columns in zip(*found, strict=True)))
        return Series(name, item.unit, *found[0])

    def tops(self, items: Iterable[Metric]) -> dict[str, tuple[tuple[int, Top], ...]]:
        """For each metric whose state is a ``Top``, those of all steps, in the order of steps."""
        settled, rest = (one.tops for one in self._both)
        names = [item.name for item in items if item.name in settled or item.name in rest]
        return {name: (*settled.get(name, ()), *rest.get(name, ())) for name in names}

    def histograms(self, items: Iterable[Metric]) -> dict[str, Mapping[int, Histogram]]:
        """For each metric whose state is a ``Histogram``, that of each step."""
        found: dict[str, Mapping[int, Histogram]] = {}
        for item in items:
            stacks = [one.histograms[item.name] for one in self._both if item.name in one.histograms]
            if stacks:
                found[item.name] = stacks[0].copy() if len(stacks) == 1 else {**stacks[0], **stacks[1]}
        return found
