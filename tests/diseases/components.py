"""Faults of parts of the reward."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.diseases.catalogue import injected
from tests.simulation.inject import onset, with_reward, with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
Floats = NDArray[np.float64]
_OTHER = ("value-not-learning", "near-zero-variance-groups")
"""What may be told beside rewards that were put in place of those that the policy was trained for."""


@injected("reward-component-idle", least="info", needs=("reward", "reward/success"), cause="component-dead")
def component_that_is_never_earned(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """A parser that never matches: one more component is 0 for every response."""
    return with_values(run, **{"reward/citation": np.zeros(len(run.splits) - 1)})


def _rewarded(run: SimulatedRun, parts: dict[str, Floats]) -> SimulatedRun:
    """The run with these components, the reward that they sum to (the form counts a fifth), and all that follows from it."""
    _, rows, place = np.unique(run.arrays["uid"].astype(str), return_index=True, return_inverse=True)
    once = {name: part[rows][place] for name, part in parts.items()}
    run = with_reward(run, once["success"] + 0.2 * once["format"])
    return with_values(run, **{f"reward/{name}": part for name, part in once.items()})


def _parts(run: SimulatedRun, random: Random) -> dict[str, Floats]:
    """A verdict that depends on the prompt, and a form that most responses have."""
    rows = len(run.splits) - 1
    _, prompt = np.unique(run.arrays["group"], return_inverse=True)
    hard = random.normal(0.0, 1.5, int(prompt.max()) + 1)[prompt]
    right = random.random(rows) < 1.0 / (1.0 + np.exp(hard))
    return {"success": right.astype(np.float64), "format": (random.random(rows) < 0.8).astype(np.float64)}


@injected("reward-component-imbalance", *_OTHER, least="warning", needs=("reward", "group", "reward/success"), anywhere=False,
          cause="component-drowns-others")  # fmt: skip
def binary_component_hundred_times_too_large(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Points out of 100 beside a verdict of 0 or 1. The KL or the value may lag behind a reward of that size."""
    parts = _parts(run, random)
    return _rewarded(run, {**parts, "format": 100.0 * parts["format"]})


@injected("reward-component-idle", *_OTHER, least="error", needs=("reward", "group", "reward/success"), anywhere=False,
          cause="verifier-of-component-fails")  # fmt: skip
def verifier_that_fails_for_good(run: SimulatedRun, random: Random) -> SimulatedRun:
    """From a step on no verdict is right, and the other component goes on."""
    parts = _parts(run, random)
    parts["success"][run.arrays["step"] >= onset(run)] = 0.0
    return _rewarded(run, parts)


@injected("reward-drift", *_OTHER, least="warning", needs=("reward", "group", "reward/success"), anywhere=False,
          cause="component-earned-less")  # fmt: skip
def verifier_that_loses_verdicts(run: SimulatedRun, random: Random) -> SimulatedRun:
    """From a step on six of ten verdicts are lost and count as 0."""
    parts = _parts(run, random)
    lost = (run.arrays["step"] >= onset(run)) & (random.random(len(parts["success"])) < 0.6)
    parts["success"][lost] = 0.0
    return _rewarded(run, parts)
