"""A run of which there is only the trainer's log."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.metric_log import MetricLog

Floats = NDArray[np.float64]


@dataclass(eq=False)
class LoggedRun:
    """What ``api.check`` asks of a run, with no rows.

    Attributes:
        info: the run's description.
        log: what the trainer logged.
    """

    info: RunInfo
    log: MetricLog
    path: Path = Path("logged")
    critic: None = None
    recorded_in: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, trainer: str, values: Mapping[str, Floats], algorithm: str | None = None, **config: float) -> LoggedRun:
        """A log with a row per step from 1 on, by native names; what is NaN was not logged."""
        points = {}
        for name, found in values.items():
            kept = ~np.isnan(found)
            points[name, "train"] = (np.arange(1, len(found) + 1)[kept], np.asarray(found, np.float64)[kept])
        info = RunInfo(trainer=trainer, algorithm=algorithm, config=RunConfig(**config))  # type: ignore[arg-type]
        return cls(info, MetricLog(points))

    @property
    def columns(self) -> Collection[str]:
        """None."""
        return frozenset()

    @property
    def facts(self) -> StoreFacts:
        """The steps that were logged."""
        steps = [steps for steps, _ in self.log.points.values() if len(steps)]
        return StoreFacts(min(int(part[0]) for part in steps), max(int(part[-1]) for part in steps))

    def metrics(self) -> MetricLog:
        """What the trainer logged."""
        return self.log

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        """No rows."""
        del columns
        return iter(())
