"""Advantages that are computed wrongly, in the ways in which implementations have gone wrong."""

from __future__ import annotations

import numpy as np

from rl_doctor.store.codes import codes
from tests.diseases.catalogue import graded, injected
from tests.diseases.composition import rollout_step
from tests.simulation.inject import onset, with_row_advantages, with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
_NEEDS = ("reward", "group", "uid")


def _by_step(run: SimulatedRun, compute: object, values: np.ndarray | None = None) -> np.ndarray:
    """``compute(values, rows)`` of the rows of each generation batch."""
    step = rollout_step(run)
    reward = run.arrays["reward"] if values is None else values
    made = np.zeros(len(step))
    for key in np.unique(step):
        rows = np.flatnonzero(step == key)
        made[rows] = compute(reward[rows], rows)  # type: ignore[operator]
    return made


def _whiten(values: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:  # noqa: ARG001
    return np.asarray((values - values.mean()) / (values.std(ddof=1) + 1e-6))


def _grouped(values: np.ndarray, label: np.ndarray, ddof: int = 1) -> np.ndarray:
    made = np.zeros(len(values))
    for key in np.unique(label):
        rows = np.flatnonzero(label == key)
        part = values[rows]
        made[rows] = (part - part.mean()) / ((part.std(ddof=ddof) if len(part) > 1 else 0.0) + 1e-6)
    return made


def _of_rows(run: SimulatedRun) -> np.ndarray:
    """The advantage of each row as it is recorded."""
    values = np.zeros(len(run.splits) - 1)
    mask = run.arrays["response_mask"]
    values[run.rows[mask]] = run.arrays["advantage"][mask]
    return values


@injected("advantage-reversed", "advantage-mismatch", needs=_NEEDS, cause="advantage-sign-turned")
def sign_turns_in_mid_run(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """A restart with another version of the loss: from a step on the advantage has the opposite sign."""
    late = rollout_step(run) >= onset(run)
    return with_values(run, advantage=np.where(late[run.rows], -1.0, 1.0) * run.arrays["advantage"])


@graded(
    "advantage-mismatch", "advantage-without-difference", "advantage-reversed", sizes=(0.05, 0.2, 1.0), least_size=0.2,
    unit="share of the rows", cause="advantages-of-other-rows", needs=_NEEDS,
)  # fmt: skip
def some_advantages_in_other_rows(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:
    """From a step on a share of the rows of each batch trades its advantages."""
    _, first, place = np.unique(run.arrays["uid"].astype(str), return_index=True, return_inverse=True)
    values, step = _of_rows(run)[first], rollout_step(run)[first]
    for key in np.unique(step[step >= at]):
        rows = np.flatnonzero(step == key)
        chosen = rows[random.random(len(rows)) < size]
        values[chosen] = values[np.roll(chosen, 1)]
    return with_row_advantages(run, values[place])


@injected("advantage-varies-in-response", "advantage-mismatch", "advantage-without-difference", needs=_NEEDS, anywhere=False,
          cause="advantage-spread-along-wrong-axis")  # fmt: skip
def advantages_spread_over_columns(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Batch and width are equal, and the advantages of the rows are spread over the positions."""
    values, step, rows = _of_rows(run), rollout_step(run), run.rows
    place = np.arange(len(rows)) - run.splits[:-1][rows]
    made = np.zeros(len(rows))
    for key in np.unique(step):
        inside, tokens = np.flatnonzero(step == key), np.flatnonzero(step[rows] == key)
        made[tokens] = values[inside][place[tokens] % len(inside)]
    return with_values(run, advantage=np.where(run.arrays["response_mask"], made, 0.0))


@injected("advantage-varies-in-response", "advantage-mismatch", "advantage-without-difference", needs=_NEEDS, anywhere=False,
          cause="advantage-per-token")  # fmt: skip
def entropy_bonus_in_the_advantage(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """A part of each token's entropy is added to its advantage, and nothing says so."""
    made = run.arrays["advantage"] + 0.8 * run.arrays["entropy"]
    return with_values(run, advantage=np.where(run.arrays["response_mask"], made, 0.0))


@injected("advantage-whitened-by-rank", needs=_NEEDS, anywhere=False, cause="statistics-of-one-rank")
def whitening_by_rank(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """REINFORCE++ on two ranks: mean and deviation are taken over the tokens of each rank."""
    rank = np.arange(len(run.splits) - 1) % 2
    key = (rollout_step(run) * 2 + rank)[run.rows]
    mask = run.arrays["response_mask"]
    made = run.arrays["reward"][run.rows].astype(np.float64)
    for part in np.unique(key):
        chosen = mask & (key == part)
        made[chosen] = (made[chosen] - made[chosen].mean()) / (made[chosen].std() + 1e-8)
    made = np.where(mask, made, 0.0)
    return with_values(run, rank=rank, advantage=made).with_config(adv_estimator="reinforce_plus_plus")


@injected("advantage-without-difference", "broken-groups", "advantage-mismatch", "impossible-values", "no-baseline",
          needs=_NEEDS, anywhere=False, cause="groups-fall-back-to-batch")  # fmt: skip
def uneven_groups_fall_back(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A tenth of the responses is lost, and groups that cannot be reshaped are compared as one."""
    run = run.take(np.flatnonzero(random.random(len(run.splits) - 1) >= 0.1))
    return with_row_advantages(run, _by_step(run, _whiten))


@injected("advantage-mismatch", "broken-groups", "advantage-without-difference", needs=_NEEDS, anywhere=False,
          cause="samples-lost-after-advantages")  # fmt: skip
def responses_lost_after_advantages(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A tenth of the responses is lost once every response has been compared with its group."""
    return run.take(np.flatnonzero(random.random(len(run.splits) - 1) >= 0.1))


@injected("advantage-mismatch", "advantage-without-difference", "impossible-values", needs=_NEEDS, anywhere=False,
          cause="groups-ignored")  # fmt: skip
def rewards_whitened_by_step(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """GRPO is declared, the rewards are whitened over each batch."""
    return with_row_advantages(run, _by_step(run, _whiten))


@injected("advantage-mismatch", "impossible-values", needs=_NEEDS, anywhere=False, cause="standard-deviation-swapped")
def deviation_of_the_batch(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The group's mean is subtracted, and the batch's deviation divides."""
    group = codes(run.arrays["group"])

    def made(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        means = np.bincount(group[rows], values)[group[rows]] / np.bincount(group[rows])[group[rows]]
        return np.asarray((values - means) / (values.std(ddof=1) + 1e-6))

    return with_row_advantages(run, _by_step(run, made))


@injected("advantage-mismatch", needs=_NEEDS, anywhere=False, cause="advantage-normalised-twice")
def normalised_by_group_and_batch(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """What is normalised by group is whitened over the batch once more."""
    return with_row_advantages(run, _by_step(run, _whiten, _of_rows(run)))


@injected("advantage-mismatch", "advantage-without-difference", "impossible-values", needs=_NEEDS, anywhere=False,
          cause="groups-by-position")  # fmt: skip
def groups_taken_by_position(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Six neighbours are compared, whatever their prompts."""

    def made(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return _grouped(values, np.argsort(np.argsort(run.arrays["sequence"][rows])) // 6)

    return with_row_advantages(run, _by_step(run, made))


@injected("advantage-mismatch", "impossible-values", needs=_NEEDS, anywhere=False, cause="groups-split-over-ranks")
def groups_split_over_two_ranks(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Each rank compares the half of a group that it has."""
    rank = np.array([int(name.partition(".")[2]) for name in run.arrays["uid"]]) % 2
    label = codes(run.arrays["group"]) * 2 + rank
    return with_row_advantages(with_values(run, rank=rank), _grouped(run.arrays["reward"], label))


@injected("advantage-mismatch", "impossible-values", needs=_NEEDS, anywhere=False, into="dense_rloo",
          cause="deviation-of-the-others")  # fmt: skip
def deviation_of_the_others(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """RLOO is declared, and each response is divided by the deviation of the others as well."""
    reward, group = run.arrays["reward"], codes(run.arrays["group"])
    made = np.zeros(len(reward))
    for row in range(len(reward)):
        others = reward[(group == group[row]) & (np.arange(len(reward)) != row)]
        made[row] = (reward[row] - others.mean()) / (others.std(ddof=1) + 1e-6)
    return with_row_advantages(run, made)


@injected("advantage-mismatch", "impossible-values", needs=_NEEDS, anywhere=False, cause="deviation-cancels")
def deviation_lost_in_rounding(run: SimulatedRun, random: Random) -> SimulatedRun:
    """In one group of four the deviation comes out near 0, so that its advantages are tens or hundreds of times as large."""
    group = codes(run.arrays["group"])
    factor = np.where(random.random(int(group.max()) + 1) < 0.25, 10.0 ** random.uniform(1.5, 2.5, int(group.max()) + 1), 1.0)
    return with_row_advantages(run, _of_rows(run) * factor[group])


@injected("advantage-mismatch", needs=_NEEDS, least="info", anywhere=False, cause="advantage-convention-differs")
def other_degrees_of_freedom(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The deviation is numpy's, and torch's is configured."""
    return with_row_advantages(run, _grouped(run.arrays["reward"], codes(run.arrays["group"]), 0))
