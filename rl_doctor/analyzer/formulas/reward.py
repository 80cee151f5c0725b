"""Rewards: of several parts, less a KL penalty, per token or per response."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.arguments import checked, positive
from rl_doctor.analyzer.formulas.segments import Floats, Splits, mean, segment_means


@checked
def weighted_reward(parts: Floats, weights: Floats) -> Floats:
    """Sum of weight times part, parts of NaN left out; NaN where all are.

    Source: TRL 1.16, ``GRPOTrainer._generate_and_score_completions``.

    Args:
        parts: float64 ``[sequences, parts]``.
        weights: float64 ``[parts]``.

    Returns:
        float64 ``[sequences]``.
    """
    known = ~np.isnan(parts)
    summed = np.where(known, parts * weights, 0.0).sum(axis=1)
    return np.where(known.any(axis=1), summed, np.nan)


@checked
def reward_at_end(rewards: Floats, splits: Splits) -> Floats:
    """The reward of a response at its last token, 0 at the others. That of an empty one is lost.

    Source: verl 0.9.1, OpenRLHF 0.11.2, ``compute_reward``.

    Args:
        rewards: float64 ``[sequences]``.
        splits: int64 ``[sequences + 1]``.

    Returns:
        float64 ``[n]``.
    """
    found = np.zeros(int(splits[-1]))
    filled = np.diff(splits) > 0
    found[splits[1:][filled] - 1] = rewards[filled]
    return found


@checked
def less_penalty(rewards: Floats, kl: Floats, coef: float) -> Floats:
    """Reward - coef * KL.

    Source: verl 0.9.1, ``apply_kl_penalty``, per token; OpenRLHF 0.11.2, ``compute_reward``, per token; TRL 1.16,
    ``RLOOTrainer``, per response with the sum of k1 over its tokens.

    Args:
        rewards: float64 ``[n]`` or ``[sequences]``.
        kl: an estimate of the KL to the reference, of the same shape, nat.
        coef: weight of the KL.

    Returns:
        float64, of the same shape.
    """
    return rewards - coef * kl


@checked
def penalty_mean(kl: Floats, splits: Splits) -> float:
    """Mean over sequences of the mean over tokens, 0 for an empty sequence.

    Source: verl 0.9.1, ``actor/reward_kl_penalty``.

    Args:
        kl: an estimate of the KL to the reference, float64 ``[n]``, nat.
        splits: int64 ``[sequences + 1]``.
    """
    return mean(segment_means(kl, splits))


@checked
def adaptive_coef(coef: float, kl: float, target: float, samples: int, horizon: float) -> float:
    """The next coefficient: coef (1 + clip(kl / target - 1, -0.2, 0.2) samples / horizon).

    Source: arXiv:1909.08593, section 2.2; verl 0.9.1, ``AdaptiveKLController``; OpenRLHF 0.11.2.

    Args:
        coef: the coefficient now.
        kl: mean KL of the batch, nat.
        target: wanted KL, nat.
        samples: number of responses in the batch.
        horizon: number of responses in which an error of .2 changes the coefficient by a fifth.
    """
    positive(target=target, horizon=horizon)
    return coef * (1.0 + float(np.clip(kl / target - 1.0, -0.2, 0.2)) * samples / horizon)
