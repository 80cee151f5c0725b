"""The trainer: rewards, advantages, and policy-gradient updates with the true gradient of the clipped loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.simulation.policy import Floats, Ints, Law, Weights
from tests.simulation.sampling import Responses
from tests.simulation.settings import END, VOCABULARY, Settings

GOOD_TOKENS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What is rewarded: ``good`` bool ``[prompt_kinds, V]``, ``needed`` float64 ``[prompt_kinds]`` share of good tokens."""

    good: NDArray[np.bool_]
    needed: Floats


def make_task(settings: Settings, rng: np.random.Generator) -> Task:
    """Choose good tokens per prompt, a part of them shared by all prompts, and how many make a success."""
    good = np.zeros((settings.prompt_kinds, VOCABULARY), np.bool_)
    shared = rng.choice(np.arange(4, VOCABULARY), GOOD_TOKENS // 2, replace=False)
    for row in good:
        row[shared] = True
        row[rng.choice(np.arange(4, VOCABULARY), GOOD_TOKENS // 2, replace=False)] = True
    needed = rng.uniform(0.08, 0.24, settings.prompt_kinds) + settings.difficulty
    for number, source in enumerate(settings.sources):
        needed[settings.kinds_of(number)] += source.difficulty
    return Task(good, needed)


def rewards(settings: Settings, task: Task, kind: Ints, responses: Responses) -> dict[str, Floats]:
    """Reward components per response; their sum is the reward."""
    written = responses.sampled & (responses.token != END)
    share = (task.good[kind[:, None], responses.token] & written).sum(1) / np.maximum(written.sum(1), 1)
    if settings.reward == "dense":
        return {"share": share}
    success = (share >= task.needed[kind]).astype(np.float64)
    if settings.reward == "finished":
        return {"success": success * (responses.finish == "stop")}
    if settings.reward == "none":
        return {"success": np.zeros(len(kind))}
    if settings.reward == "sparse":
        return {"success": success}
    return {"success": success, "format": 0.2 * (responses.finish == "stop")}


def advantages(estimator: str, reward: Floats, group: Ints, eps: float = 1e-6) -> Floats:
    """Advantage per response by group.

    Source: GRPO arXiv:2402.03300 (standard deviation with ddof 1), Dr. GRPO arXiv:2503.20783, RLOO arXiv:2402.14740.
    """
    size = np.bincount(group).astype(np.float64)
    mean = np.bincount(group, reward) / size
    centred: Floats = reward - mean[group]
    if estimator == "dr_grpo":
        return centred
    if estimator == "rloo":
        return np.asarray(centred * (size / np.maximum(size - 1.0, 1.0))[group], np.float64)
    if estimator == "reinforce":
        return np.asarray(reward - reward.mean(), np.float64)
    deviation = np.sqrt(np.bincount(group, centred * centred) / np.maximum(size - 1.0, 1.0))
    return np.asarray(centred / (deviation + eps)[group], np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Tokens of one mini-batch in their contexts, flat ``[n]``; ``sequence`` is the index of the response in the mini-batch."""

    token: Ints
    kind: Ints
    previous: Ints
    position: Ints
    sequence: Ints
    mask: NDArray[np.bool_]
    advantage: Floats
    weight: Floats


def _log_ratio(settings: Settings, tokens: Tokens, new: Floats, old: Floats) -> Floats:
    """Log-ratio per token; for GSPO (arXiv:2507.18071) the mean over the response."""
    difference = new - old
    if settings.algorithm != "gspo":
        return difference
    count: Floats = np.bincount(tokens.sequence, tokens.mask).astype(np.float64)
    mean: Floats = np.bincount(tokens.sequence, np.where(tokens.mask, difference, 0.0)) / np.maximum(count, 1.0)
    spread: Floats = mean[tokens.sequence]
    return spread


def update(
    settings: Settings, weights: Weights, tokens: Tokens, current: Law, old: Floats, reference: Floats, rate: float
) -> tuple[Weights, float]:
    """One step of gradient ascent on the clipped objective minus ``kl_in_loss`` * k3.

    Returns:
        The next weights, and the gradient norm before clipping.
    """
    ratio = np.exp(np.clip(_log_ratio(settings, tokens, current.logprob, old), -20.0, 20.0))
    outside = np.where(tokens.advantage > 0, ratio > 1.0 + settings.clip_high, ratio < 1.0 - settings.clip_low)
    gain = np.where(outside, 0.0, tokens.advantage * ratio * tokens.weight)
    gain -= settings.kl_in_loss * (1.0 - np.exp(np.minimum(reference - current.logprob, 10.0)))
    gain = np.where(tokens.mask, gain, 0.0) / (max(int(tokens.mask.sum()), 1) * settings.trained_at)
    push = -current.probabilities * gain[:, None]
    push[np.arange(len(gain)), tokens.token] += gain
    transition = _sum_by(push, tokens.previous, VOCABULARY)
    bias = _sum_by(push, tokens.kind, settings.prompt_kinds)
    norm = float(np.sqrt((transition**2).sum() + (bias**2).sum()))
    stride = settings.step_size * rate * min(1.0, settings.max_grad_norm / max(norm, 1e-12))
    return weights.moved(stride * transition, stride * bias), norm


def _sum_by(values: Floats, key: Ints, size: int) -> Floats:
    """Sum of rows ``[n, V]`` by key, ``[size, V]``; faster than a matrix product, which starts threads."""
    order = np.argsort(key, kind="stable")
    found, starts = np.unique(key[order], return_index=True)
    sums = np.zeros((size, values.shape[1]))
    sums[found] = np.add.reduceat(values[order], starts, axis=0)
    return sums
