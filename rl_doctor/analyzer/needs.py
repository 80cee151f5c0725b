"""What metrics need, expanded to stored columns, and what of it a run lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Protocol

from rl_doctor.analyzer.derive import FIRST_STEP, SEEN
from rl_doctor.analyzer.registry import PER_SEQUENCE_PREFIX, Metric, sequence_values
from rl_doctor.analyzer.rollouts import PASSES
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog

CONFIG_PREFIX: Final = "config."
_ADDED: Final[Mapping[str, str]] = {FIRST_STEP: "rollout_step", PASSES: "uid", **SEEN}
"""Columns that the engine adds to batches, each with the stored column that it follows from."""


class Source(Protocol):
    """What the engine reads: a stored run, or anything that gives batches of whole sequences in the order of steps."""

    @property
    def info(self) -> RunInfo:
        """The run's description."""

    @property
    def columns(self) -> Collection[str]:
        """Canonical columns that the run has."""

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        """Batches in the order of steps, each with all of ``columns``; the batches of a step follow each other."""

    def metrics(self) -> MetricLog:
        """What the trainer itself logged."""


def requirements(names: Iterable[str]) -> tuple[set[str], set[str]]:
    """Expand what metrics need: (stored columns and ``config.`` fields, names of per-sequence values)."""
    stored: set[str] = set()
    values: set[str] = set()
    for name in (part for alternatives in names for part in alternatives.split("|")):
        if name.startswith(PER_SEQUENCE_PREFIX):
            values.add(name)
            stored.update(part for need in sequence_values()[name].needs for part in need.split("|"))
        else:
            stored.add(_ADDED.get(name, name))
    return stored, values


def lacking(needs: Iterable[str], columns: Collection[str], config: RunConfig) -> tuple[str, ...]:
    """What of ``needs`` the run does not have, in order; of alternatives the first."""
    lacks: set[str] = set()
    for need in needs:
        choices = [_lacking_one(name, columns, config) for name in need.split("|")]
        if all(choices):
            lacks.update(choices[0])
    return tuple(sorted(lacks))


def _lacking_one(name: str, columns: Collection[str], config: RunConfig) -> tuple[str, ...]:
    if name.startswith(PER_SEQUENCE_PREFIX):
        return lacking(sequence_values()[name].needs, columns, config)
    if name.startswith(CONFIG_PREFIX):
        return (name,) if getattr(config, name.removeprefix(CONFIG_PREFIX)) is None else ()
    stored = _ADDED.get(name, name)
    return () if stored in columns else (stored,)


def lacking_in(source: Source, item: Metric) -> tuple[str, ...]:
    """What the metric needs and the source does not have."""
    return lacking(item.needs, source.columns, source.info.config)
