"""Faults of parts of the reward."""

from __future__ import annotations

import numpy as np

from tests.diseases.catalogue import injected
from tests.simulation.inject import with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator


@injected("reward-component-idle", least="info", needs=("reward", "reward/success"))
def component_that_is_never_earned(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """A parser that never matches: one more component is 0 for every response."""
    return with_values(run, **{"reward/citation": np.zeros(len(run.splits) - 1)})
