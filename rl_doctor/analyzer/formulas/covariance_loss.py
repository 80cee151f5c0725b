"""Losses that treat tokens by the covariance of their logprob and advantage: clip-cov and kl-cov."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.policy_loss import surrogate_of_ratio
from rl_doctor.analyzer.formulas.segments import Bools, Floats, mean


@checked
def covariances(logprob: Floats, advantage: Floats) -> Floats:
    """(A - mean A)(logprob - mean logprob) per token, the means over all tokens given.

    Source: arXiv:2505.22617, eq. 11; verl 0.9.1, clip_cov and kl_cov.

    Args:
        logprob: of the current policy, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.

    Returns:
        float64 ``[n]``.
    """
    return (advantage - mean(advantage)) * (logprob - mean(logprob))


@checked
def clip_cov_candidates(covariance: Floats, bound: Bools, lower: float, upper: float) -> Bools:
    """Tokens that clip-cov draws from: lower < covariance < upper where PPO's clip does not bind.

    Source: arXiv:2505.22617, section 4.2; verl 0.9.1, clip_cov.

    Args:
        covariance: as ``covariances`` gives it, float64 ``[n]``.
        bound: where the clip binds, bool ``[n]``.
        lower: least covariance.
        upper: largest covariance.

    Returns:
        bool ``[n]``.
    """
    return (covariance > lower) & (covariance < upper) & ~bound


@checked
def clip_cov_number(tokens: int, candidates: int, share: float) -> int:
    """Number of tokens that clip-cov drops: max(floor(share tokens), 1), at most the number of candidates.

    Its share of the tokens is ``actor/pg_clipfrac``, although which tokens they are is drawn at random. Source: verl 0.9.1,
    clip_cov.

    Args:
        tokens: number of tokens.
        candidates: number of candidates.
        share: configured share.
    """
    return min(max(int(share * tokens), 1), candidates)


@checked
def clip_cov_loss(ratio: Floats, advantage: Floats, low: float, high: float, dropped: Bools) -> Floats:
    """PPO's loss max(-A r, -A clip(r, 1 - low, 1 + high)), 0 where dropped.

    Source: arXiv:2505.22617, section 4.2; verl 0.9.1, clip_cov.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.
        dropped: tokens that were drawn, bool ``[n]``.

    Returns:
        float64 ``[n]``, of the unit of A.
    """
    return np.where(dropped, 0.0, surrogate_of_ratio(ratio, advantage, low, high))


@checked
def kl_cov_selected(covariance: Floats, share: float) -> Bools:
    """The max(floor(share n), 1) tokens of the largest covariance; of equal ones the first.

    Source: arXiv:2505.22617, section 4.3; verl 0.9.1, kl_cov.

    Args:
        covariance: as ``covariances`` gives it, float64 ``[n]``.
        share: configured share.

    Returns:
        bool ``[n]``.
    """
    selected = np.zeros(len(covariance), np.bool_)
    selected[np.argsort(-covariance, kind="stable")[: max(int(len(covariance) * share), 1)]] = True
    return selected


@checked
def kl_cov_loss(log_ratio: Floats, advantage: Floats, selected: Bools, coef: float) -> Floats:
    """-A r, plus coef abs(log_ratio) where selected.

    Source: arXiv:2505.22617, section 4.3; verl 0.9.1, kl_cov.

    Args:
        log_ratio: logprob - old_logprob, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.
        selected: as ``kl_cov_selected`` gives it, bool ``[n]``.
        coef: ``ppo_kl_coef``.

    Returns:
        float64 ``[n]``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(selected, coef * np.abs(log_ratio), 0.0) - advantage * np.exp(log_ratio)
