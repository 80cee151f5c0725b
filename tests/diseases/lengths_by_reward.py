"""Faults in which the length of a response and what it earns go together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rl_doctor.store.metric_log import MetricLog
from tests.diseases.catalogue import injected
from tests.diseases.composition import rollout_step
from tests.simulation.inject import by_group, with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator


@injected("wrong-answers-grow", "length-explosion", "length-truncation", into="dr_grpo_without_kl",
          needs=("reward", "group", "response_length"), log=False, anywhere=False, damage="length.less_earned_mean",
          cause="length-bias")  # fmt: skip
def wrong_answers_ramble(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """What earns less than its group is up to six times as long in the end; the reward stays as it is."""
    reward = run.arrays["reward"]
    wrong = reward < by_group(run, reward, lambda part: float(np.mean(part)))
    steps = np.unique(rollout_step(run))
    share = np.searchsorted(steps, rollout_step(run)) / len(steps)
    longer = np.round(run.arrays["response_length"] * (1.0 + 5.0 * share * wrong))
    means = np.array([reward[rollout_step(run) == step].mean() for step in steps])
    still = reward - means[np.searchsorted(steps, rollout_step(run))]
    kept = with_values(run, response_length=longer, reward=still + reward.mean(), score=still + reward.mean())
    return replace(kept.with_config(max_response_length=1000, loss_agg="seq-mean-token-mean"), log=MetricLog())
