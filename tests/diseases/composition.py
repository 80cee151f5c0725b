"""Faults between the reward functions and the reward: rows that are moved, weights left out, parts that nobody records."""

from __future__ import annotations

import numpy as np

from tests.diseases.catalogue import graded, injected
from tests.simulation.inject import onset, with_advantages, with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
_PARTS = ("reward", "score", "group", "uid")


def by_uid(run: SimulatedRun, values: np.ndarray) -> np.ndarray:
    """The value of the first row of each sampled sequence on all of its rows."""
    _, first, place = np.unique(run.arrays["uid"].astype(str), return_index=True, return_inverse=True)
    return np.asarray(values[first][place])


def rollout_step(run: SimulatedRun) -> np.ndarray:
    """The generation batch of each row."""
    return np.asarray(run.arrays["rollout_step" if "rollout_step" in run.arrays else "step"])


@graded(
    "reward-not-its-parts", "advantage-mismatch", "advantage-without-difference", "zero-variance-groups",
    sizes=(0.05, 0.1, 0.3, 1.0), least_size=0.3, unit="share of the rows", cause="rewards-of-other-rows", needs=_PARTS,
)  # fmt: skip
def rewards_in_other_rows(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:
    """Rewards keep their order where a share of the rows is shuffled; the advantages follow the rewards as they then stand."""
    step, reward = rollout_step(run), run.arrays["reward"].copy()
    _, first, place = np.unique(run.arrays["uid"].astype(str), return_index=True, return_inverse=True)
    kept = reward[first]
    for key in np.unique(step[first][step[first] >= at]):
        rows = np.flatnonzero(step[first] == key)
        chosen = rows[random.random(len(rows)) < size]
        kept[chosen] = kept[np.roll(chosen, 1)]
    return with_advantages(with_values(run, reward=kept[place]))


@injected("reward-not-its-parts", needs=_PARTS, cause="reward-weights-ignored", anywhere=False)
def reward_weights_left_out(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Weights are configured, and the reward is the plain sum."""
    return run.with_config(reward_weights={"success": 2.0, "format": 0.5})


@graded(
    "reward-not-its-parts", "reward-drift", "reward-variance-shift", "sudden-collapse",
    sizes=(0.1, 0.3, 1.0, 3.0), least_size=0.3, unit="standard deviations", cause="reward-has-unrecorded-part", needs=_PARTS,
)  # fmt: skip
def penalty_that_nobody_records(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:
    """From a step on a penalty enters the reward that is not among its components."""
    reward = run.arrays["reward"]
    penalty = by_uid(run, size * reward.std() * random.random(len(reward)))
    changed = reward - penalty * (rollout_step(run) >= at)
    return with_advantages(with_values(run, reward=changed, score=changed))


@injected("reward-not-its-parts", "reward-drift", "reward-variance-shift", "sudden-collapse", "impossible-values",
          needs=_PARTS, cause="reward-has-unrecorded-part")  # fmt: skip
def length_bonus_that_nobody_records(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a step on each response earns by its length as well, and so much that the reward jumps."""
    reward, length = run.arrays["reward"], np.diff(run.splits).astype(np.float64)
    bonus = by_uid(run, 3.0 * reward.std() * (1.0 + length / length.mean()))
    changed = reward + bonus * (rollout_step(run) >= onset(run))
    return with_advantages(with_values(run, reward=changed, score=changed))


@injected("source-without-signal", "zero-variance-groups", "reward-drift", "reward-variance-shift", "sudden-collapse",
          into="curriculum", needs=("reward", "group", "uid", "data_source"), cause="verifier-of-source-fails")  # fmt: skip
def verifier_of_one_source_stops(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The scorer of the commonest source raises from a step on, and the exception counts as 0."""
    names, counts = np.unique(run.arrays["data_source"].astype(str), return_counts=True)
    gone = (run.arrays["data_source"] == names[np.argmax(counts)]) & (rollout_step(run) >= onset(run))
    parts = {name: np.where(gone, 0.0, run.arrays[name]) for name in run.arrays if name.startswith("reward")}
    return with_advantages(with_values(run, **parts, score=np.where(gone, 0.0, run.arrays["score"])))


@injected("only-first-prompt-rewarded", "zero-variance-groups", "reward-flatline", "source-without-signal",
          needs=("reward", "group", "uid", "score"), cause="solutions-of-the-first-prompt", anywhere=False)  # fmt: skip
def all_prompts_get_the_first_solution(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Each of two ranks has four prompts and scores all of them against the solution of its first one."""
    order = np.array([int(name.partition(".")[2]) for name in run.arrays["group"]])
    rank = order // 4
    step, sequence = rollout_step(run), run.arrays["sequence"]
    wrong = np.ones(len(order), np.bool_)
    for key in np.unique(step * 2 + rank):
        rows = np.flatnonzero(step * 2 + rank == key)
        first = run.arrays["group"][rows[np.argmin(sequence[rows])]]
        wrong[rows] = run.arrays["group"][rows] != first
    parts = {name: np.where(wrong, 0.0, run.arrays[name]) for name in ("reward", "reward/success", "reward/format", "score")}
    return with_advantages(with_values(run, rank=rank, **parts))
