"""Returns and advantages per token: discounted sums, and GAE with or without the tokens of the environment."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.segments import Bools, Floats, Splits, kept_splits
from rl_doctor.analyzer.formulas.whitening import whiten


@checked
def discounted_sums(values: Floats, splits: Splits, factor: float) -> Floats:
    """Sum over k of factor^k values[t + k] to the end of each sequence, by doubling: log2(longest) passes over all tokens.

    Source: REINFORCE++, arXiv:2501.03262; verl 0.9.1, reinforce_plus_plus before it is whitened (of the tokens of the policy
    alone, so that those of the environment are skipped), and remax with factor 1; OpenRLHF 0.11.2, ``get_cumulative_returns``.

    Args:
        values: rewards, float64 ``[n]``.
        splits: int64 ``[sequences + 1]``.
        factor: discount in [0, 1].

    Returns:
        float64 ``[n]``, of the unit of the rewards.
    """
    total = values.copy()
    lengths = np.diff(splits)
    left = np.repeat(splits[1:], lengths) - np.arange(len(values))
    shift, power = 1, factor
    while lengths.size and shift < lengths.max() and power > 0.0:
        inside = left[:-shift] > shift
        total[:-shift] += np.where(inside, power * total[shift:], 0.0)
        shift, power = 2 * shift, power * power
    return total


@checked
def gae_advantage(rewards: Floats, values: Floats, splits: Splits, gamma: float, lam: float) -> Floats:
    """delta_t = r_t + gamma v_(t+1) - v_t, A_t = delta_t + gamma lam A_(t+1); the value after the last token is 0.

    Source: GAE, arXiv:1506.02438, eq. 16; TRL's ``PPOTrainer``.

    Args:
        rewards: float64 ``[n]``.
        values: of the old critic, float64 ``[n]``.
        splits: int64 ``[sequences + 1]``.
        gamma: discount.
        lam: lambda.

    Returns:
        float64 ``[n]``, of the unit of the rewards. The return of a token is its advantage plus its value.
    """
    following = np.zeros_like(values)
    following[:-1] = values[1:]
    filled = np.diff(splits) > 0
    following[splits[1:][filled] - 1] = 0.0
    return discounted_sums(rewards + gamma * following - values, splits, gamma * lam)


@checked
def gae_skipping(rewards: Floats, values: Floats, mask: Bools, splits: Splits, gamma: float, lam: float) -> Floats:
    """``gae_advantage`` of the tokens of the policy alone: those of the environment are no step. NaN at the latter.

    Source: verl 0.9.1, gae, before it is whitened.

    Args:
        rewards: float64 ``[n]``; what stands at a token of the environment is lost.
        values: of the old critic, float64 ``[n]``.
        mask: tokens of the policy, bool ``[n]``.
        splits: int64 ``[sequences + 1]``.
        gamma: discount.
        lam: lambda.

    Returns:
        float64 ``[n]``, of the unit of the rewards.
    """
    found = np.full(len(values), np.nan)
    found[mask] = gae_advantage(rewards[mask], values[mask], kept_splits(splits, mask), gamma, lam)
    return found


@checked
def gae_through(rewards: Floats, values: Floats, mask: Bools, splits: Splits, gamma: float, lam: float) -> Floats:
    """``gae_advantage`` over all tokens, with reward and value 0 at those of the environment, which count as steps.

    Source: OpenRLHF 0.11.2, ``get_advantages_and_returns``.

    Args:
        rewards: float64 ``[n]``.
        values: of the old critic, float64 ``[n]``.
        mask: tokens of the policy, bool ``[n]``.
        splits: int64 ``[sequences + 1]``.
        gamma: discount.
        lam: lambda.

    Returns:
        float64 ``[n]``, of the unit of the rewards.
    """
    return gae_advantage(np.where(mask, rewards, 0.0), np.where(mask, values, 0.0), splits, gamma, lam)


@checked
def remax(returns: Floats, baselines: Floats, splits: Splits) -> Floats:
    """Return minus the reward of the greedy response to the same prompt.

    Source: ReMax, arXiv:2310.10505; verl 0.9.1, remax.

    Args:
        returns: undiscounted, float64 ``[n]``.
        baselines: reward of the greedy response, float64 ``[sequences]``.
        splits: int64 ``[sequences + 1]``.

    Returns:
        float64 ``[n]``, of the unit of the rewards.
    """
    return returns - np.repeat(baselines, np.diff(splits))


@checked
def reinforce_plus_plus(rewards: Floats, splits: Splits, gamma: float) -> Floats:
    """Discounted returns, whitened over all tokens with ddof 1 and eps 1e-8.

    Source: REINFORCE++, arXiv:2501.03262; verl 0.9.1, reinforce_plus_plus.

    Args:
        rewards: of the tokens of the policy, float64 ``[n]``.
        splits: int64 ``[sequences + 1]``.
        gamma: discount.

    Returns:
        float64 ``[n]``.
    """
    return whiten(discounted_sums(rewards, splits, gamma))
