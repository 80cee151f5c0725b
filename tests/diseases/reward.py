"""Faults of rewards, groups and advantages."""

from __future__ import annotations

import numpy as np

from tests.diseases.catalogue import graded, injected, simulated
from tests.diseases.collapse import with_entropy
from tests.simulation.inject import (
    by_group,
    onset,
    shifted,
    with_advantages,
    with_reward,
    with_row_advantages,
    with_values,
)
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings

Random = np.random.Generator
_REWARD = ("reward", "group", "uid")


def _by_uid(run: SimulatedRun, values: np.ndarray) -> np.ndarray:
    """The value of the first row of each sampled sequence on all of its rows."""
    _, first, place = np.unique(run.arrays["uid"].astype(str), return_index=True, return_inverse=True)
    return np.asarray(values[first][place])


def _late(run: SimulatedRun) -> np.ndarray:
    return np.asarray(run.arrays["rollout_step" if "rollout_step" in run.arrays else "step"] >= onset(run))


@injected("reward-drift", "reward-component-imbalance", needs=_REWARD)
def reward_mean_jumps_up(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Someone changed the scorer: from a step on every reward is 3 standard deviations higher, by one component that grew."""
    reward = run.arrays["reward"]
    return with_reward(run, reward + 3.0 * reward.std() * _late(run))


@injected("reward-drift", "sudden-collapse", needs=_REWARD)
def reward_mean_jumps_down(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """From a step on every reward is 2 standard deviations lower."""
    reward = run.arrays["reward"]
    return with_reward(run, reward - 2.0 * reward.std() * _late(run))


@injected("reward-variance-shift", "reward-component-imbalance", needs=_REWARD)
def reward_variance_jumps(run: SimulatedRun, random: Random) -> SimulatedRun:
    """From a step on the scorer of one component is noisy: the standard deviation is five times as large, the mean the same."""
    reward = run.arrays["reward"]
    noise = _by_uid(run, 5.0 * reward.std() * random.standard_normal(len(reward)))
    return with_reward(run, reward + noise * _late(run))


@simulated(
    "reward-flatline", "zero-variance-groups", "grad-vanished", "grad-zero", "kl-flatline", cause="scorer-returns-constant"
)
def reward_always_zero(seed: int) -> Settings:
    """The scorer always fails. No group has variance, the gradient is 0, the policy never leaves the reference."""
    return Settings(seed=seed, reward="none")


@injected("reward-at-bound", "zero-variance-groups", needs=_REWARD, cause="reward-clamped")
def reward_at_clamp(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A reward model whose scores are clamped at 3, where two thirds of them are; whole groups are equal there."""
    score = _by_uid(run, 3.4 + random.standard_normal(len(run.splits) - 1))
    return with_reward(run, np.minimum(score, 3.0))


@graded("reward-clipped", "zero-variance-groups", "near-zero-variance-groups", "reward-at-bound", "reward-not-its-parts",
        "reward-drift", "reward-variance-shift", "reward-component-imbalance", sizes=(0.1, 0.25, 0.5), least_size=0.25,
        unit="of the responses", cause="reward-clipped-below-its-parts", needs=_REWARD)  # fmt: skip
def reward_clipped_below_its_parts(run: SimulatedRun, random: Random, size: float, first: int) -> SimulatedRun:
    """A score and a bonus add up to the reward, which from some step on is clipped where ``size`` of the responses are."""
    rows = len(run.splits) - 1
    score, bonus = _by_uid(run, random.standard_normal(rows)), 1.0 * (_by_uid(run, random.random(rows)) < 0.6)
    whole = score + 0.3 * bonus
    cut = np.where(run.arrays["step"] >= first, np.minimum(whole, np.quantile(whole, 1.0 - size)), whole)
    others = {name: np.full(rows, np.nan) for name in run.arrays if name.startswith("reward/")}
    parts = {**others, "reward/model": score, "reward/bonus": bonus}
    return with_advantages(with_values(run, **parts, reward=cut, score=cut))


@injected("reward-component-imbalance", anywhere=False, cause="component-drowns-others")
def component_five_hundred_times_too_large(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A format score that seven responses of ten earn counts in another unit, 500 times as large: success decides nothing."""
    form = 100.0 * (_by_uid(run, random.random(len(run.splits) - 1)) < 0.7)
    reward = run.arrays["reward/success"] + form
    return with_advantages(with_values(run, **{"reward/format": form, "reward": reward, "score": reward}))


@injected("zero-variance-groups", "reward-flatline", needs=_REWARD, cause="prompts-too-hard")
def zero_variance_groups(run: SimulatedRun, random: Random) -> SimulatedRun:
    """In nine of ten groups all samples fail alike."""
    dead = by_group(run, random.random(len(run.splits) - 1), lambda part: float(part[0])) < 0.9
    return with_reward(run, np.where(dead, run.arrays["reward"].min(), run.arrays["reward"]))


@injected("near-zero-variance-groups", needs=_REWARD, cause="noise-amplified")
def near_zero_variance_groups(run: SimulatedRun, random: Random) -> SimulatedRun:
    """In four of five groups the rewards differ in the fifth digit only; normalisation makes full advantages of that."""
    flat = by_group(run, random.random(len(run.splits) - 1), lambda part: float(part[0])) < 0.8
    reward = run.arrays["reward"]
    near = by_group(run, reward, lambda part: float(np.mean(part))) + _by_uid(run, 1e-5 * random.standard_normal(len(reward)))
    return with_reward(run, np.where(flat, near, reward))


@injected("broken-groups", "advantage-mismatch", "no-baseline", needs=_REWARD, cause="group-id-per-response")
def groups_of_one(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Every sequence is a group of its own; the trainer takes 0 for the mean and 1 for the standard deviation."""
    alone = with_values(run, group=run.arrays["uid"])
    return with_row_advantages(alone, run.arrays["reward"])


@injected("advantage-mismatch", needs=_REWARD, cause="advantage-of-another-estimator")
def advantage_not_normalised(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """GRPO is declared, the advantages are only centred."""
    return with_advantages(run, "dr_grpo")


@injected("advantage-mismatch", "advantage-without-difference", "impossible-values", needs=_REWARD, cause="groups-ignored")
def advantage_whitened_over_batch(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """GRPO is declared, the rewards are whitened over the whole run instead of over groups.

    A rare reward is then further from the mean than any can be from that of its group.
    """
    reward = run.arrays["reward"]
    return with_row_advantages(run, (reward - reward.mean()) / reward.std())


@injected("advantage-mismatch", "advantage-reversed", needs=_REWARD, cause="advantage-sign-turned")
def advantage_of_the_other_sign(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """What is rewarded is discouraged, and nothing in the configuration says how advantages are computed."""
    return with_values(run, advantage=-run.arrays["advantage"]).with_config(adv_estimator=None)


@injected("advantage-mismatch", "advantage-without-difference", needs=_REWARD, cause="advantages-of-other-rows")
def advantage_of_another_row(run: SimulatedRun, random: Random) -> SimulatedRun:
    """The rewards were joined to the wrong rows of their step when the advantages were computed."""
    step, order = run.arrays["step"], np.arange(len(run.splits) - 1)
    for key in np.unique(step):
        rows = np.flatnonzero(step == key)
        order[rows] = random.permutation(rows)
    values = np.zeros(len(order))
    values[run.rows] = run.arrays["advantage"]
    return with_row_advantages(run, values[order])


@injected("reward-hacking-suspected", "reward-drift", "length-explosion", "kl-runaway", "kl-spike", "entropy-collapse",
          "duplicate-samples", anywhere=False, damage="reward.component.success.mean",
          cause="component-bought-with-another")  # fmt: skip
def one_component_bought_with_another(run: SimulatedRun, random: Random) -> SimulatedRun:
    """A format score rises to its maximum while success falls to nothing, far from the reference, at low entropy."""
    steps = np.unique(run.arrays["step"])
    share = np.clip((np.searchsorted(steps, run.arrays["step"]) / len(steps) - 0.4) / 0.4, 0.0, 1.0)
    lucky = _by_uid(run, random.random(len(share)))
    success = np.where(lucky < 0.9 * share, 0.0, run.arrays["reward/success"])
    form = np.where(_by_uid(run, random.random(len(share))) < 0.2 + 0.75 * share, 2.0, 0.0)
    changed = {"reward/success": success, "reward/format": form, "reward": success + form, "score": success + form}
    distance = 0.9 * share[run.rows]
    far = shifted(run, distance * random.standard_normal(len(distance)) - distance**2 / 2, "ref_logprob")
    return with_advantages(with_entropy(with_values(far, **changed), 1.0 - 0.7 * share[run.rows]))
