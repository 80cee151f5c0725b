"""Losses whose ratio is that of a whole sequence: GSPO, LUSPO, RLOO, GMPO, VESPO."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.segments import Bools, Floats, Splits, segment_means, segment_sums, spread

_LOWEST: Final = math.log(1e-8)


@checked
def sequence_log_ratio(log_ratio: Floats, splits: Splits, highest: float = np.inf) -> Floats:
    """Mean log-ratio of each sequence, at most ``highest``; its exponential is GSPO's ratio. 0 for an empty sequence.

    Source: GSPO, arXiv:2507.18071, eq. 7; verl 0.9.1 (highest = 10), TRL 1.16 ``importance_sampling_level="sequence"``,
    OpenRLHF 0.11.2, slime, NeMo-RL. LUSPO, arXiv:2602.05261, is the same ratio with the loss summed over tokens.

    Args:
        log_ratio: logprob - old_logprob, float64 ``[n]``, nat.
        splits: int64 ``[sequences + 1]``.
        highest: upper bound, nat.

    Returns:
        float64 ``[sequences]``, nat.
    """
    found: Floats = np.minimum(segment_means(log_ratio, splits), highest)
    return found


@checked
def summed_log_ratio(log_ratio: Floats, splits: Splits) -> Floats:
    """Log-ratio of the whole response, the sum over its tokens. 0 for an empty sequence.

    Source: RLOO, arXiv:2402.14740; TRL 1.16, ``RLOOTrainer``, which clips its exponential once per sequence.

    Args:
        log_ratio: logprob - old_logprob, float64 ``[n]``, nat.
        splits: int64 ``[sequences + 1]``.

    Returns:
        float64 ``[sequences]``, nat.
    """
    return segment_sums(log_ratio, splits)


@checked
def pessimistic_log_ratio(log_ratio: Floats, advantage: Floats, low: float, high: float) -> Floats:
    """GMPO's log-ratio per token: min(x, clip(x)) where A > 0, max(x, clip(x)) where A < 0, with clip to [-low, high].

    0 where A = 0, as the sign of A is multiplied in twice. Source: GMPO, arXiv:2507.20673, eq. 4; verl 0.9.1, geo_mean; TRL 1.16
    takes max(x, clip(x)) at A = 0, where the loss is 0 anyway.

    Args:
        log_ratio: x = logprob - old_logprob, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.
        low: distance of the lower bound from 0, nat.
        high: distance of the upper bound from 0, nat.

    Returns:
        float64 ``[n]``, nat.
    """
    clipped = np.clip(log_ratio, -low, high)
    falling = np.where(advantage < 0, np.maximum(log_ratio, clipped), 0.0)
    return np.where(advantage > 0, np.minimum(log_ratio, clipped), falling)


@checked
def geometric_mean_loss(
    log_ratio: Floats, advantage: Floats, splits: Splits, low: float, high: float, eps: float = 1e-8
) -> Floats:
    """-mean(A) exp(mean of GMPO's bounded log-ratio) per sequence, both means over its tokens.

    verl and TRL take the plain mean of it over the sequences of a micro-batch. Source: GMPO, arXiv:2507.20673; verl 0.9.1,
    geo_mean (eps = 1e-8); TRL 1.16, ``GMPOTrainer`` (eps = 0).

    Args:
        log_ratio: logprob - old_logprob, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.
        splits: int64 ``[sequences + 1]``.
        low: distance of the lower bound from 0, nat.
        high: distance of the upper bound from 0, nat.
        eps: what is added to the number of tokens.

    Returns:
        float64 ``[sequences]``, of the unit of A.
    """
    bounded = pessimistic_log_ratio(log_ratio, advantage, low, high)
    with np.errstate(over="ignore", invalid="ignore"):
        found: Floats = -segment_means(advantage, splits, eps) * np.exp(segment_means(bounded, splits, eps))
        return found


@checked
def geometric_weight(weight: Floats, splits: Splits, eps: float = 1e-8, floor: float = 1e-10) -> Floats:
    """exp(mean log(weight + floor)) per sequence: the importance weight that GMPO's loss is multiplied by.

    Source: verl 0.9.1, geo_mean.

    Args:
        weight: importance weight, float64 ``[n]``.
        splits: int64 ``[sequences + 1]``.
        eps: what is added to the number of tokens.
        floor: what is added to the weight.

    Returns:
        float64 ``[sequences]``.
    """
    found: Floats = np.exp(segment_means(np.log(weight + floor), splits, eps))
    return found


@checked
def log_ratio_outside(log_ratio: Floats, low: float, high: float) -> Bools:
    """Where GMPO clips: x < -low or x > high. Those with A > 0 are ``pg_clipfrac``, those with A < 0 ``pg_clipfrac_lower``.

    Source: verl 0.9.1, geo_mean. TRL 1.16 counts x < -low with A < 0 and x > high with A > 0.

    Args:
        log_ratio: x = logprob - old_logprob, float64 ``[n]``, nat.
        low: distance of the lower bound from 0, nat.
        high: distance of the upper bound from 0, nat.

    Returns:
        bool ``[n]``.
    """
    return (log_ratio < -low) | (log_ratio > high)


@checked
def vespo_weight(
    log_ratio: Floats, advantage: Floats, splits: Splits, shape: tuple[float, float], rate: tuple[float, float],
    correction: Floats | None = None,
) -> Floats:  # fmt: skip
    """exp(rate + shape log w - rate w) per sequence, w = exp(sum of log-ratios); 1 at w = 1.

    The loss is minus it times A logprob. Each log-ratio is kept within [-20, 20], each logarithm of a correction and their sum
    within [log 1e-8, 20]. Source: VESPO, arXiv:2602.10693; TRL 1.16, ``GRPOTrainer.get_gamma_weights``.

    Args:
        log_ratio: logprob - old_logprob, float64 ``[n]``, nat.
        advantage: of the sequence, float64 ``[sequences]``.
        splits: int64 ``[sequences + 1]``.
        shape: for advantages of at least 0, and below.
        rate: likewise; at least 1e-4.
        correction: importance weight of the old policy against the engine, float64 ``[n]``.

    Returns:
        float64 ``[sequences]``.
    """
    total = segment_sums(np.clip(log_ratio, -20.0, 20.0), splits)
    if correction is not None:
        with np.errstate(divide="ignore"):
            total = total + segment_sums(np.clip(np.log(correction), _LOWEST, 20.0), splits)
    total = np.clip(total, _LOWEST, 20.0)
    of_shape = np.where(advantage >= 0, *shape)
    of_rate = np.maximum(np.where(advantage >= 0, *rate), 1e-4)
    found: Floats = np.exp(of_rate + of_shape * total - of_rate * np.exp(total))
    return found


@checked
def luspo_losses(losses: Floats, splits: Splits) -> Floats:
    """Loss of each sequence times its number of tokens: what LUSPO averages over sequences.

    Source: LUSPO, arXiv:2602.05261; TRL 1.16, ``loss_type="luspo"`` with the ratio of the sequence.

    Args:
        losses: of the sequences, float64 ``[sequences]``.
        splits: int64 ``[sequences + 1]``.

    Returns:
        float64 ``[sequences]``.
    """
    return losses * np.diff(splits)


@checked
def over_tokens(of_sequences: Floats, splits: Splits) -> Floats:
    """exp(log-ratio of the sequence) at each of its tokens, for the losses that are written per token.

    Source: GSPO, arXiv:2507.18071; verl 0.9.1, gspo.

    Args:
        of_sequences: log-ratio, float64 ``[sequences]``, nat.
        splits: int64 ``[sequences + 1]``.

    Returns:
        float64 ``[n]``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return spread(np.exp(of_sequences), splits)
