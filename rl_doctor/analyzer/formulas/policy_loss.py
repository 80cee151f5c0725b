"""Losses of a policy per token, and which tokens they clip: PPO, dual clip, CISPO, SAPO, REINFORCE, DRO.

``ratio`` is exp(logprob - old_logprob), or what a trainer takes in its place; losses are what is minimised, so minus the gain.
Where a loss has a stop-gradient the formula gives its value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.segments import Bools, Floats


class Surrogate(NamedTuple):
    """The pieces of PPO's loss, each float64 ``[n]``: -A r, -A clip(r, 1 - low, 1 + high), -A dual."""

    plain: Floats
    clipped: Floats
    ceiling: Floats


@checked
def surrogate_pieces(ratio: Floats, advantage: Floats, low: float, high: float, dual: float = np.inf) -> Surrogate:
    """The pieces of PPO's loss: -A r, -A clip(r, 1 - low, 1 + high), -A dual.

    Source: PPO, arXiv:1707.06347, eq. 7; dual clip, arXiv:1912.09729, eq. 4.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.
        dual: the largest ratio that counts where A < 0.

    Returns:
        Three float64 ``[n]``, of the unit of A.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        clipped = np.clip(ratio, 1.0 - low, 1.0 + high)
        return Surrogate(-advantage * ratio, -advantage * clipped, -advantage * dual)


@checked
def surrogate_of_ratio(ratio: Floats, advantage: Floats, low: float, high: float, dual: float | None = None) -> Floats:
    """max(-A r, -A clip(r, 1 - low, 1 + high)); with dual clip where A < 0 at most -A dual.

    Source: PPO, arXiv:1707.06347, eq. 7; dual clip, arXiv:1912.09729, eq. 4. verl 0.9.1 vanilla and gspo (ratio of the sequence),
    TRL 1.16, OpenRLHF 0.11.2, slime, AReaL, NeMo-RL, SkyRL; ROLL with dual = 1 + 2 high.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.
        dual: the largest ratio that counts where A < 0; None for no dual clip.

    Returns:
        float64 ``[n]``, of the unit of A.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        loss: Floats = np.maximum(-advantage * ratio, -advantage * np.clip(ratio, 1.0 - low, 1.0 + high))
        if dual is not None:
            loss = np.where(advantage < 0, np.minimum(loss, -advantage * dual), loss)
    return loss


@checked
def surrogate_loss(log_ratio: Floats, advantage: Floats, low: float, high: float, dual: float | None = None) -> Floats:
    """``surrogate_of_ratio`` of r = exp(log_ratio): max(-A r, -A clip(r, 1 - low, 1 + high)), where A < 0 at most -A dual.

    Source: PPO, arXiv:1707.06347, eq. 7; dual clip, arXiv:1912.09729, eq. 4.

    Args:
        log_ratio: logprob - old_logprob, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.
        dual: the largest ratio that counts where A < 0; None for no dual clip.

    Returns:
        float64 ``[n]``, of the unit of A.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return surrogate_of_ratio(np.exp(log_ratio), advantage, low, high, dual)


@checked
def dual_clip_only_loss(ratio: Floats, advantage: Floats, dual: float) -> Floats:
    """-A min(r, dual) where A < 0, -A r elsewhere: dual clip without PPO's own, which is a mistake in an implementation.

    Source: dual clip, arXiv:1912.09729, eq. 4, with the inner minimum left out.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        dual: the largest ratio that counts where A < 0.

    Returns:
        float64 ``[n]``, of the unit of A.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return -advantage * np.where(advantage < 0, np.minimum(ratio, dual), ratio)


@checked
def delta_clamped_loss(ratio: Floats, advantage: Floats, low: float, high: float, delta: float) -> Floats:
    """max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)): the unclipped side is bounded from above, for both signs of A.

    Source: TRL 1.16, ``GRPOTrainer._compute_loss`` with ``delta``; two-sided clipping of INTELLECT-2, arXiv:2505.07291.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.
        delta: the largest ratio.

    Returns:
        float64 ``[n]``, of the unit of A.
    """
    pieces = surrogate_pieces(ratio, advantage, low, high)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.maximum(-advantage * np.minimum(ratio, delta), pieces.clipped)


@checked
def binds(ratio: Floats, advantage: Floats, low: float, high: float) -> Bools:
    """Where the clipped loss is the larger one, -A clip(r) > -A r; never at A = 0.

    Source: verl 0.9.1, ``actor/pg_clipfrac``; OpenRLHF 0.11.2, ``ppo_clip_ratio``; slime, AReaL and SkyRL.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.

    Returns:
        bool ``[n]``.
    """
    return binds_below(ratio, advantage, low) | binds_above(ratio, advantage, high)


@checked
def binds_below(ratio: Floats, advantage: Floats, low: float) -> Bools:
    """Where the lower bound binds: r < 1 - low and A < 0. Source: TRL 1.16, ``clip_ratio/low_mean``.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        low: distance of the lower bound from 1.

    Returns:
        bool ``[n]``.
    """
    return (ratio < 1.0 - low) & (advantage < 0)


@checked
def binds_above(ratio: Floats, advantage: Floats, high: float) -> Bools:
    """Where the upper bound binds: r > 1 + high and A > 0. Source: TRL 1.16, ``clip_ratio/high_mean``.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        high: distance of the upper bound from 1.

    Returns:
        bool ``[n]``.
    """
    return (ratio > 1.0 + high) & (advantage > 0)


@checked
def dual_binds(ratio: Floats, advantage: Floats, low: float, dual: float) -> Bools:
    """Where dual clip binds: A < 0 and the clipped loss above -A dual, so max(r, 1 - low) > dual.

    Source: verl 0.9.1, ``actor/pg_clipfrac_lower``.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        low: distance of the lower bound from 1.
        dual: the largest ratio that counts where A < 0.

    Returns:
        bool ``[n]``.
    """
    return (advantage < 0) & (np.maximum(ratio, 1.0 - low) > dual)


@checked
def outside(ratio: Floats, low: float, high: float) -> Bools:
    """Where the ratio is out of its range whatever the sign of the advantage: r < 1 - low or r > 1 + high.

    Source: verl 0.9.1, cispo; slime, cispo; ROLL, ``actor/ppo_ratio_clipfrac``; minimind PPO, ``clipfrac``.

    Args:
        ratio: float64 ``[n]``.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.

    Returns:
        bool ``[n]``.
    """
    return (ratio < 1.0 - low) | (ratio > 1.0 + high)


@checked
def cispo_loss(ratio: Floats, advantage: Floats, logprob: Floats, low: float, high: float) -> Floats:
    """-clip(r, 1 - low, 1 + high) A logprob, with the clipped ratio held constant. The cap is relative.

    Source: CISPO, arXiv:2506.13585; verl 0.9.1, slime, NeMo-RL, SkyRL.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        logprob: of the current policy, float64 ``[n]``, nat.
        low: distance of the lower bound from 1.
        high: distance of the upper bound from 1.

    Returns:
        float64 ``[n]``.
    """
    return -np.clip(ratio, 1.0 - low, 1.0 + high) * advantage * logprob


@checked
def cispo_capped_loss(ratio: Floats, advantage: Floats, logprob: Floats, cap: float) -> Floats:
    """-min(r, cap) A logprob, with the capped ratio held constant. The cap is absolute and there is no lower bound.

    Source: CISPO, arXiv:2506.13585; TRL 1.16 and minimind, where ``epsilon_high`` is the cap.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        logprob: of the current policy, float64 ``[n]``, nat.
        cap: the largest ratio.

    Returns:
        float64 ``[n]``.
    """
    return -np.minimum(ratio, cap) * advantage * logprob


@checked
def cispo_capped(ratio: Floats, advantage: Floats, cap: float) -> Bools:
    """Where the absolute cap of CISPO binds and the advantage is positive: r > cap and A > 0.

    Source: TRL 1.16, ``cispo_clip_ratio``.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        cap: the largest ratio.

    Returns:
        bool ``[n]``.
    """
    return (ratio > cap) & (advantage > 0)


@checked
def reinforce_loss(logprob: Floats, advantage: Floats) -> Floats:
    """-A logprob.

    Source: REINFORCE, R. Williams, 1992; GPG, arXiv:2504.02546; verl 0.9.1, gpg and reinforce.

    Args:
        logprob: of the current policy, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.

    Returns:
        float64 ``[n]``.
    """
    return -logprob * advantage


@checked
def dro_loss(logprob: Floats, log_ratio: Floats, advantage: Floats, beta: float) -> Floats:
    """-(A logprob - beta / 2 log_ratio^2).

    Source: DRO, arXiv:2405.19107; verl 0.9.1, dro.

    Args:
        logprob: of the current policy, float64 ``[n]``, nat.
        log_ratio: logprob - old_logprob, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.
        beta: weight of the squared log-ratio.

    Returns:
        float64 ``[n]``.
    """
    return 0.5 * beta * log_ratio * log_ratio - logprob * advantage


@checked
def sapo_loss(ratio: Floats, advantage: Floats, positive: float, negative: float) -> Floats:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau = positive where A > 0, else negative.

    Source: SAPO, arXiv:2511.20347; verl 0.9.1, sapo; TRL 1.16, ``loss_type="sapo"``. Both average it per sequence.

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        positive: temperature where A > 0.
        negative: temperature elsewhere.

    Returns:
        float64 ``[n]``, of the unit of A.
    """
    tau: Floats = np.where(advantage > 0, positive, negative)
    with np.errstate(over="ignore"):
        return -advantage * (4.0 / tau) / (1.0 + np.exp(-tau * (ratio - 1.0)))
