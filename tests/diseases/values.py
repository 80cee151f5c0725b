"""Faults of value functions, as logs show them."""

from __future__ import annotations

import numpy as np

from tests.diseases.catalogue import injected
from tests.diseases.logged import logging
from tests.simulation.inject import onset, with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator


def _steps(run: SimulatedRun) -> np.ndarray:
    return np.unique(run.arrays["step"])


@injected("value-not-learning", log=False, anywhere=False, cause="value-clip-too-narrow")
def values_cannot_follow(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The clip range is a fiftieth of the returns: most values are held where they were."""
    return logging(run, value__clip_frac=0.7 + 0.05 * random.standard_normal(len(_steps(run))))


@injected("value-not-learning", log=False, anywhere=False, damage="value.loss", cause="value-diverges")
def value_loss_explodes(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The critic's learning rate is a hundred times too large."""
    n = len(_steps(run))
    return logging(run, value__loss=0.1 * np.exp(np.linspace(0.0, 6.0, n) + 0.1 * random.standard_normal(n)))


@injected("value-not-learning", log=False, anywhere=False, cause="value-learns-nothing")
def critic_without_a_gradient(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The value loss has no weight: values explain nothing from first to last."""
    return logging(run, value__explained_var=0.01 * random.standard_normal(len(_steps(run))))


@injected("reward-drift", "value-not-learning", "advantage-mismatch", "reward-component-imbalance", "sudden-collapse",
          log=False, anywhere=False, cause="reward-shift-hits-baseline")  # fmt: skip
def shift_before_a_learned_baseline(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The reward falls at once by three standard deviations, and the critic predicts the old level from then on."""
    late, reward = run.arrays["step"] >= onset(run, 0.5), run.arrays["reward"]
    down = reward - 3.0 * reward.std() * late
    part = run.arrays["reward/format"] - 3.0 * reward.std() * late
    made = with_values(run, reward=down, score=down, **{"reward/format": part}).with_config(adv_estimator="gae")
    steps = _steps(run)
    explained = np.where(steps >= onset(run, 0.5), -2.0, 0.6) + 0.05 * random.standard_normal(len(steps))
    return logging(made, value__explained_var=explained)
