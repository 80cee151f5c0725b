"""Faults of training on preferences, of which there is only a log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rl_doctor.store.metric_log import MetricLog
from tests.diseases.catalogue import injected
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
Floats = NDArray[np.float64]


def pairs(run: SimulatedRun, random: Random, chosen: Floats, rejected: Floats, beta: float = 0.1) -> SimulatedRun:
    """A run whose log is that of a trainer on pairs: implicit rewards ``chosen`` and ``rejected`` per step, and what follows."""
    steps = np.unique(run.arrays["step"])
    n = len(steps)
    margin = chosen - rejected
    noise = random.standard_normal((4, n))
    accuracy = 0.5 * (1 + np.tanh(margin + 0.02 * noise[0]))
    found = {
        "loss": np.log1p(np.exp(-margin)), "rewards/chosen": chosen, "rewards/rejected": rejected, "rewards/margins": margin,
        "rewards/accuracies": accuracy, "logps/chosen": -80 + chosen / beta + 2 * noise[1],
        "logps/rejected": -95 + rejected / beta + 2 * noise[2], "grad_norm": 1.0 + 0.1 * np.abs(noise[3]),
        "learning_rate": np.full(n, 5e-7),
    }  # fmt: skip
    info = replace(run.info, trainer="trl", trainer_version=None, algorithm="dpo")
    return replace(run, info=info, log=MetricLog({(name, "train"): (steps, values) for name, values in found.items()}))


def growth(run: SimulatedRun, end: float) -> Floats:
    """A reward that grows from 0 to ``end``, fast at first."""
    n = len(np.unique(run.arrays["step"]))
    return np.asarray(end * (1 - np.exp(-4 * np.arange(n) / n)))


@injected("preference-margin-explosion", log=False, anywhere=False, cause="pairs-told-apart-for-good")
def margin_explodes(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The rejected responses fall without end although every pair is told apart."""
    return pairs(run, random, growth(run, 0.2), growth(run, -60.0))


@injected("preference-not-learning", log=False, anywhere=False, cause="policy-stays-at-reference")
def reference_is_the_policy(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The reference follows the policy: every margin is 0, the loss stays log 2."""
    return pairs(run, random, growth(run, 0.0), growth(run, 0.0))


@injected("chosen-logprob-falls", log=False, anywhere=False, cause="both-sides-lose-probability")
def chosen_falls_with_rejected(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Both sides lose probability, the rejected one a little more."""
    return pairs(run, random, growth(run, -6.0), growth(run, -9.0))


@injected("preference-reversed", log=False, anywhere=False, cause="sides-of-pairs-swapped")
def sides_are_swapped(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The loss raises what the log calls rejected."""
    return pairs(run, random, growth(run, -0.5), growth(run, 0.8))
