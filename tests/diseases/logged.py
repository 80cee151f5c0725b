"""Faults that only the trainer's own log shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.store.metric_log import MetricLog
from tests.diseases.catalogue import injected
from tests.simulation.logs import relogged
from tests.simulation.run import SimulatedRun

Random = np.random.Generator


def _logging(run: SimulatedRun, **values: np.ndarray) -> SimulatedRun:
    """The run whose honest log has further metrics, by name with dots written as double underscores, one value per step."""
    made = relogged(run)
    steps = np.unique(run.arrays["step"])
    more = {(name.replace("__", "."), "train"): (steps, part) for name, part in values.items()}
    return replace(made, log=MetricLog({**made.log.points, **more}))


@injected("impossible-values", log=False, anywhere=False)
def explained_variance_above_one(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The variance of the error is divided by another one: more than all of the variance is explained."""
    n = len(np.unique(run.arrays["step"]))
    return _logging(run, value__explained_var=1.2 + 0.1 * random.random(n))
