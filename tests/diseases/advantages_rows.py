"""Advantages that are wrong in some rows, in groups of one reward, by a number, or for other groups than the recorded ones."""

from __future__ import annotations

import numpy as np

from rl_doctor.store.codes import codes
from tests.diseases.catalogue import graded, injected
from tests.diseases.composition import by_uid, rollout_step
from tests.simulation.inject import by_group, with_row_advantages, with_values
from tests.simulation.run import SimulatedRun

Random = np.random.Generator
Floats = np.ndarray
_NEEDS = ("reward", "group", "uid")


def _of_rows(run: SimulatedRun) -> Floats:
    """The advantage of each row as it is recorded."""
    values = np.zeros(len(run.splits) - 1)
    mask = run.arrays["response_mask"]
    values[run.rows[mask]] = run.arrays["advantage"][mask]
    return values


def _late(run: SimulatedRun, at: int, made: Floats) -> SimulatedRun:
    """The run with other advantages in rows that were sampled from a step on."""
    return with_row_advantages(run, np.where(rollout_step(run) >= at, made, _of_rows(run)))


def _some(run: SimulatedRun, random: Random, size: float) -> Floats:
    """A share of the responses, the same in all passes over them."""
    return by_uid(run, random.random(len(run.splits) - 1)) < size


@graded("advantage-mismatch", sizes=(0.01, 0.05, 0.2, 0.6), least_size=0.2, unit="share of the rows", needs=_NEEDS,
        cause="advantage-sign-turned-in-some-rows")  # fmt: skip
def sign_turned_in_some_rows(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:
    """The sign depends on something that a share of the responses has."""
    made = _of_rows(run)
    return _late(run, at, np.where(_some(run, random, size), -made, made))


@injected("advantage-mismatch", "advantage-reversed", needs=_NEEDS, cause="advantage-of-another-in-group")
def advantages_exchanged_within_groups(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The samples of a prompt are in another order where advantages are given back to them."""
    values, first = _of_rows(run), np.unique(run.arrays["uid"].astype(str), return_index=True)[1]
    group, moved = codes(run.arrays["group"]), values.copy()
    for key in np.unique(group[first]):
        rows = first[group[first] == key]
        moved[rows] = values[np.roll(rows, 1)]
    return with_row_advantages(run, by_uid(run, moved))


@graded("advantage-mismatch", sizes=(0.95, 0.8, 0.5), least_size=0.8, unit="times the advantage", needs=_NEEDS,
        cause="advantage-scaled-in-some-rows")  # fmt: skip
def failures_weigh_less(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:  # noqa: ARG001
    """Advantages below 0 are multiplied by a weight that nobody configured."""
    made = _of_rows(run)
    return _late(run, at, np.where(made < 0.0, size * made, made))


@graded("advantage-mismatch", sizes=(0.05, 0.1, 0.3), least_size=0.3, unit="share of the rows", needs=_NEEDS,
        cause="advantage-zeroed-in-some-rows")  # fmt: skip
def filtered_rows_keep_their_place(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:
    """What a filter takes out stays in the batch, with an advantage of 0."""
    return _late(run, at, np.where(_some(run, random, size), 0.0, _of_rows(run)))


@injected("advantage-mismatch", "advantage-without-difference", "zero-variance-groups", needs=_NEEDS, anywhere=False,
          cause="epsilon-missing")  # fmt: skip
def epsilon_left_out(run: SimulatedRun, random: Random) -> SimulatedRun:
    """What rounding leaves of equal rewards is divided by its own deviation."""
    reward = by_uid(run, run.arrays["reward"] + 1e-9 * random.standard_normal(len(run.splits) - 1))
    return with_row_advantages(run, _standardised(run, reward, 0.0))


def _standardised(run: SimulatedRun, reward: Floats, eps: float) -> Floats:
    """GRPO over the recorded groups."""
    return np.asarray((reward - by_group(run, reward, _mean)) / (by_group(run, reward, _deviation) + eps))


@graded("advantage-mismatch", sizes=(0.03, 0.1, 0.5), least_size=0.1, unit="rewards", needs=_NEEDS, cause="epsilon-differs")
def epsilon_near_the_deviation(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:  # noqa: ARG001
    """The epsilon beside the deviation is of its size."""
    return _late(run, at, _standardised(run, run.arrays["reward"], size))


@graded("advantage-mismatch", "impossible-values", sizes=(1.3, 2.0, 5.0), least_size=2.0, unit="times the advantage",
        needs=_NEEDS, cause="advantage-scaled")  # fmt: skip
def advantages_times_a_constant(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:  # noqa: ARG001
    """A coefficient of the loss is multiplied into the advantage; beyond what a group allows that is impossible."""
    return _late(run, at, size * _of_rows(run))


@injected(
    "advantage-mismatch", "advantage-without-difference", needs=_NEEDS, anywhere=False, cause="compared-within-other-groups"
)
def groups_moved_by_two_rows(run: SimulatedRun, random: Random) -> SimulatedRun:
    """Rows are taken in blocks after two of them went to the end, and are shuffled afterwards."""
    step, order = rollout_step(run), random.permutation(len(run.splits) - 1)
    label = np.zeros(len(step), np.int64)
    for key in np.unique(step):
        rows = np.flatnonzero(step == key)
        label[rows] = 1000 * key + np.roll(np.arange(len(rows)) // 6, 2)
    made = with_row_advantages(run, _by_label(run.arrays["reward"], label))
    return made.take(order[np.argsort(step[order], kind="stable")])


@graded("advantage-mismatch", "advantage-without-difference", sizes=(0.1, 0.3, 1.0), least_size=0.3, unit="share of the prompts",
        needs=_NEEDS, cause="compared-within-other-groups")  # fmt: skip
def prompts_share_groups(run: SimulatedRun, random: Random, size: float, at: int) -> SimulatedRun:
    """Half of the samples of some prompts are compared with half of those of others."""
    group, uid = codes(run.arrays["group"]), codes(run.arrays["uid"])
    label = group.copy()
    for key in np.unique(rollout_step(run)):
        inside = np.unique(group[rollout_step(run) == key])
        chosen = random.permutation(inside)[: max(round(size * len(inside)), 2)]
        for one, other in zip(chosen, np.roll(chosen, 1), strict=True):
            samples = np.unique(uid[group == one])
            label[(group == one) & np.isin(uid, samples[: len(samples) // 2])] = other
    return _late(run, at, _by_label(run.arrays["reward"], label, uid))


@injected("advantage-mismatch", "impossible-values", needs=_NEEDS, anywhere=False, cause="divided-by-another-number")
def divided_by_the_mean_absolute_deviation(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """A robust scale is put in place of the standard deviation."""
    reward = run.arrays["reward"]
    scale = by_group(run, reward, lambda part: float(np.abs(part - part.mean()).mean()))
    return with_row_advantages(run, (reward - by_group(run, reward, _mean)) / (scale + 1e-6))


@injected("advantage-mismatch", "advantage-without-difference", "impossible-values", "no-baseline", needs=_NEEDS, anywhere=False,
          cause="another-baseline")  # fmt: skip
def compared_with_the_best_of_the_group(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The baseline is the best reward of the group."""
    reward = run.arrays["reward"]
    centred = reward - by_group(run, reward, lambda part: float(part.max()))
    return with_row_advantages(run, centred / (by_group(run, reward, _deviation) + 1e-6))


def _by_label(reward: Floats, label: Floats, uid: Floats | None = None) -> Floats:
    """GRPO over the rows of each label, each response once."""
    made = np.zeros(len(reward))
    for key in np.unique(label):
        rows = np.flatnonzero(label == key)
        once = rows if uid is None else rows[np.unique(uid[rows], return_index=True)[1]]
        part = reward[once]
        made[rows] = (reward[rows] - part.mean()) / ((part.std(ddof=1) if len(part) > 1 else 0.0) + 1e-6)
    return made


@injected("advantage-mismatch", "advantage-without-difference", "aborted-responses", needs=(*_NEEDS, "finish_reason"),
          anywhere=False, cause="unfinished-left-out-of-baseline")  # fmt: skip
def cut_responses_left_out_of_the_baseline(run: SimulatedRun, random: Random) -> SimulatedRun:
    """What was aborted is compared with the others, and they are not compared with it."""
    cut = by_uid(run, random.random(len(run.splits) - 1)) < 0.25
    run = with_values(run, finish_reason=np.where(cut, "abort", run.arrays["finish_reason"]).astype(object))
    reward = np.where(cut, np.nan, run.arrays["reward"])
    centred = run.arrays["reward"] - by_group(run, reward, _mean)
    return with_row_advantages(run, centred / (by_group(run, reward, _deviation) + 1e-6))


def _mean(part: Floats) -> float:
    known = part[~np.isnan(part)]
    return float(known.mean()) if len(known) else 0.0


def _deviation(part: Floats) -> float:
    known = part[~np.isnan(part)]
    return float(known.std(ddof=1)) if len(known) > 1 else 0.0
