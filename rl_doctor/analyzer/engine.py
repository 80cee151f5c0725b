"""One pass over a run: folds every chosen reduction, step by step, reading only the columns that they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from rl_doctor.analyzer.registry import PER_SEQUENCE_PREFIX, Metric, Reduction, metrics, sequence_values
from rl_doctor.analyzer.rollouts import Rollouts
from rl_doctor.analyzer.series import Series
from rl_doctor.errors import UsageError
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.batch import Batch

CONFIG_PREFIX = "config."


class Source(Protocol):
    """What the engine reads: a stored run, or anything that gives batches of whole sequences in the order of steps."""

    @property
    def info(self) -> RunInfo:
        """The run's description."""

    @property
    def columns(self) -> Collection[str]:
        """Canonical columns that the run has."""

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        """Batches in the order of steps; the batches of a step follow each other."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Series by metric name, and for each metric that could not be computed what it lacks."""

    series: Mapping[str, Series]
    missing: Mapping[str, tuple[str, ...]]


def requirements(names: Iterable[str]) -> tuple[set[str], set[str]]:
    """Expand ``per_sequence.`` names: (stored columns and ``config.`` fields needed, per-sequence values needed)."""
    stored: set[str] = set()
    values: set[str] = set()
    for name in names:
        if name.startswith(PER_SEQUENCE_PREFIX):
            values.add(name)
            stored.update(sequence_values()[name].needs)
        else:
            stored.add(name)
    return stored, values


def lacking(needs: Iterable[str], columns: Collection[str], config: RunConfig) -> tuple[str, ...]:
    """What of ``needs`` the run does not have, in order."""
    known = {CONFIG_PREFIX + field.name for field in fields(config) if getattr(config, field.name) is not None}
    stored, _ = requirements(needs)
    return tuple(sorted(name for name in stored if name not in columns and name not in known))


def analyze(source: Source, names: Sequence[str] | None = None) -> Analysis:
    """Compute metrics in one pass.

    Args:
        source: the run.
        names: canonical metric names; by default all that the run has the columns for.

    Returns:
        The series, and for each metric that was skipped the columns it lacks.

    Raises:
        UsageError: a name is not a metric.
    """
    known = metrics()
    chosen = list(known) if names is None else list(dict.fromkeys(names))
    if unknown := [name for name in chosen if name not in known]:
        raise UsageError(f"unknown metric {unknown[0]!r}; `rl-doctor metrics --list` names them all")
    missing = {name: lack for name in chosen if (lack := lacking(known[name].needs, source.columns, source.info.config))}
    wanted = [known[name] for name in chosen if name not in missing]
    fold = _Fold(source, wanted)
    for batch in source.batches(fold.columns):
        fold.add(batch)
    fold.finish()
    return Analysis({item.name: fold.series(item) for item in wanted}, missing)


class _Fold:
    """States of the step being read, and the finished values of the steps before."""

    def __init__(self, source: Source, wanted: Sequence[Metric]) -> None:
        self._by_reduction: dict[Reduction, list[Metric]] = {}
        for item in wanted:
            self._by_reduction.setdefault(item.reduction, []).append(item)
        self._token = [r for r in self._by_reduction if r.level == "token"]
        self._rollout = [r for r in self._by_reduction if r.level == "rollout"]
        self._points: dict[str, list[tuple[int, float, int]]] = {item.name: [] for item in wanted}
        self._step: int | None = None
        self._states: dict[Reduction, Any] = {}
        names = {name for r in self._rollout for name in (*r.needs, *r.optional)}
        stored, values = requirements(names)
        self._rollouts = Rollouts(
            columns={name for name in stored if not name.startswith(CONFIG_PREFIX)},
            values=[
                sequence_values()[name] for name in sorted(values) if self._computable(sequence_values()[name].needs, source)
            ],
        )
        needed = {name for r in self._by_reduction for name in (*r.needs, *r.optional)}
        optional = {name for value in self._rollouts.values for name in value.optional}
        base = requirements(needed)[0] | optional | self._rollouts.keys | {"response_mask", "is_padding"}
        self.columns = sorted(base & set(source.columns))

    @staticmethod
    def _computable(needs: Iterable[str], source: Source) -> bool:
        return not lacking(needs, source.columns, source.info.config)

    def add(self, batch: Batch) -> None:
        """Fold one batch."""
        if batch.step != self._step:
            self._close_step()
            self._step = batch.step
        for r in self._token:
            self._states[r] = self._states.get(r, r.zero) + r.partial(batch)
        if self._rollout:
            self._rollouts.add(batch)

    def finish(self) -> None:
        """Close the last step."""
        self._close_step()
        for rollout in self._rollouts.flush():
            self._reduce(rollout)

    def _close_step(self) -> None:
        if self._step is None:
            return
        for r, state in self._states.items():
            self._record(r, self._step, state)
        self._states = {}

    def _reduce(self, rollout: Batch) -> None:
        for r in self._rollout:
            self._record(r, rollout.step, r.partial(rollout))

    def _record(self, r: Reduction, step: int, state: Any) -> None:
        for item in self._by_reduction[r]:
            self._points[item.name].append((step, item.final(state), state.count))

    def series(self, item: Metric) -> Series:
        """The finished series of one metric."""
        points = sorted(self._points[item.name])
        return Series(
            item.name,
            item.unit,
            np.array([step for step, _, _ in points], np.int64),
            np.array([value for _, value, _ in points], np.float64),
            np.array([count for _, _, count in points], np.int64),
        )
