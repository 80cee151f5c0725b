"""Faults that only the trainer's own log shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.store.metric_log import MetricLog
from tests.diseases.catalogue import injected
from tests.simulation.inject import with_row_advantages
from tests.simulation.logs import relogged
from tests.simulation.run import SimulatedRun

Random = np.random.Generator


def logging(run: SimulatedRun, **values: np.ndarray) -> SimulatedRun:
    """The run whose honest log has further metrics, by name with dots written as double underscores, one value per step."""
    made = relogged(run)
    steps = np.unique(run.arrays["step"])
    more = {(name.replace("__", "."), "train"): (steps, part) for name, part in values.items()}
    return replace(made, log=MetricLog({**made.log.points, **more}))


@injected("impossible-values", log=False, anywhere=False, cause="number-mislogged")
def explained_variance_above_one(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The variance of the error is divided by another one: more than all of the variance is explained."""
    n = len(np.unique(run.arrays["step"]))
    return logging(run, value__explained_var=1.2 + 0.1 * random.random(n))


@injected("no-baseline", "advantage-mismatch", "broken-groups", "advantage-without-difference",
          anywhere=False, cause="reward-taken-for-advantage")  # fmt: skip
def advantages_are_raw_rewards(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The baseline is never subtracted: each token's advantage is the reward of its response."""
    return with_row_advantages(run, run.arrays["reward"])


@injected("value-not-learning", log=False, anywhere=False, cause="value-worse-than-constant")
def critic_worse_than_a_constant(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Values are read at the wrong token: they explain less than nothing of the returns from first to last."""
    n = len(np.unique(run.arrays["step"]))
    return logging(run, value__explained_var=-0.8 + 0.1 * random.standard_normal(n))


@injected("part-off-policy", log=False, anywhere=False, cause="part-of-another-policy")
def prefix_of_another_policy(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A prefix that another model wrote is trained on with that model's logprobs; the continuation is on-policy."""
    n = len(np.unique(run.arrays["step"]))
    values = {
        "part__prefix__policy__kl_old_k1": -0.8 + 0.05 * random.standard_normal(n),
        "part__continuation__policy__kl_old_k1": 1e-4 * random.standard_normal(n),
    }
    return logging(run, **values)
