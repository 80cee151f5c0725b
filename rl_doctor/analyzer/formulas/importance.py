"""Importance weights between the engine that sampled and the policy that is trained: truncation, statistics, distances.

``log_ratio`` is old_logprob - rollout_logprob throughout.
"""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.segments import Bools, Floats, Splits, mean, segment_means, segment_sums


@checked
def token_weights(log_ratio: Floats, clamp: float = 20.0) -> Floats:
    """exp(clip(log_ratio, -clamp, clamp)).

    Source: verl 0.9.1, ``compute_rollout_correction_weights`` (token); TRL 1.16, OpenRLHF 0.11.2 and slime with clamp = inf.

    Args:
        log_ratio: float64 ``[n]``, nat.
        clamp: largest absolute log-ratio, nat.

    Returns:
        float64 ``[n]``.
    """
    with np.errstate(over="ignore"):
        return np.exp(np.clip(log_ratio, -clamp, clamp))


@checked
def sequence_weights(log_ratio: Floats, splits: Splits, clamp: float = 20.0) -> Floats:
    """exp(clip(sum of log_ratio over the sequence, -clamp, clamp)); 1 for an empty one.

    Source: verl 0.9.1, ``compute_rollout_correction_weights`` (sequence); TRL 1.16, sequence_truncate and sequence_mask (clamp
    = inf).

    Args:
        log_ratio: float64 ``[n]``, nat.
        splits: int64 ``[sequences + 1]``.
        clamp: largest absolute sum, nat.

    Returns:
        float64 ``[sequences]``.
    """
    return token_weights(segment_sums(log_ratio, splits), clamp)


@checked
def geometric_weights(log_ratio: Floats, splits: Splits) -> Floats:
    """exp(mean of log_ratio over the sequence); 1 for an empty one.

    Source: OpenRLHF 0.11.2, ``PolicyLoss`` (seq, ratio); ROLL, geometric; SkyRL, geometric sequence mask.

    Args:
        log_ratio: float64 ``[n]``, nat.
        splits: int64 ``[sequences + 1]``.

    Returns:
        float64 ``[sequences]``.
    """
    with np.errstate(over="ignore"):
        found: Floats = np.exp(segment_means(log_ratio, splits))
        return found


@checked
def truncated(weights: Floats, upper: float, lower: float = 0.0) -> Floats:
    """min(max(w, lower), upper): truncated importance sampling.

    Source: arXiv:1606.02396, and F. Yao et al. 2025 for engines; verl 0.9.1 (lower 0); TRL 1.16, token_truncate; slime,
    ``tis_clip``; OpenRLHF 0.11.2, clip.

    Args:
        weights: float64 ``[n]``.
        upper: largest weight.
        lower: least weight.

    Returns:
        float64 ``[n]``.
    """
    return np.minimum(np.maximum(weights, lower), upper)


@checked
def dropped_outside(weights: Floats, lower: float, upper: float) -> Floats:
    """The weight where lower <= w <= upper, else 0: IcePop.

    Source: IcePop, arXiv:2510.18855; verl 0.9.1 with a threshold "lower_upper"; TRL 1.16, token_mask and sequence_mask; slime.

    Args:
        weights: float64 ``[n]``.
        lower: least weight that counts.
        upper: largest weight that counts.

    Returns:
        float64 ``[n]``.
    """
    return np.where((weights >= lower) & (weights <= upper), weights, np.where(np.isnan(weights), np.nan, 0.0))


@checked
def outside_bounds(weights: Floats, lower: float, upper: float) -> Bools:
    """Where w < lower or w > upper.

    Source: verl 0.9.1, ``rollout_is_oob_ratio``, ``rollout_is_ratio_fraction_high`` and ``_low``, with the weight before it is
    cut.

    Args:
        weights: float64 ``[n]``.
        lower: least weight; without one verl takes 1 / upper.
        upper: largest weight.

    Returns:
        bool ``[n]``.
    """
    return (weights < lower) | (weights > upper)


@checked
def normalised(weights: Floats, average: float, least: float = 1e-8) -> Floats:
    """The weight over the average, or as it is where the average is at most ``least``.

    Source: verl 0.9.1, ``rollout_is_batch_normalize``: the average is over tokens, or over sequences with a token.

    Args:
        weights: float64 ``[n]``.
        average: mean weight.
        least: smallest average that is divided by.

    Returns:
        float64 ``[n]``.
    """
    return weights / average if average > least else weights


@checked
def effective_share(weights: Floats, upper: float = np.inf, eps: float = 0.0) -> float:
    """1 / mean((w / (mean w + eps))^2), w at most ``upper``: effective sample size over the number of samples, in (0, 1].

    Source: Kish, Survey sampling, 1965; verl 0.9.1, ``rollout_is_eff_sample_size`` (eps = 1e-8).

    Args:
        weights: float64 ``[n]``.
        upper: largest weight.
        eps: what is added to the mean.
    """
    cut = np.clip(weights, 0.0, upper)
    square = mean((cut / (mean(cut) + eps)) ** 2) if cut.any() else float("nan")
    return 1.0 / square


@checked
def weight_deviation(weights: Floats, upper: float = np.inf) -> float:
    """sqrt(mean((w - mean w)^2)), w within [0, upper]; 0 for one token.

    Source: verl 0.9.1, ``rollout_is_std``, which takes it from mean(w^2) - (mean w)^2.

    Args:
        weights: float64 ``[n]``.
        upper: largest weight.
    """
    cut = np.clip(weights, 0.0, upper)
    return float(np.sqrt(mean((cut - mean(cut)) ** 2)))


@checked
def chi_squared_tokens(log_ratio: Floats, clamp: float = 20.0) -> float:
    """mean(exp(2 clip(log_ratio))) - 1 over tokens: the chi-squared divergence of the policy from the engine.

    Source: verl 0.9.1, ``rollout_corr/chi2_token``.

    Args:
        log_ratio: float64 ``[n]``, nat.
        clamp: largest absolute log-ratio, nat.
    """
    return mean(np.expm1(2.0 * np.clip(log_ratio, -clamp, clamp)))


@checked
def chi_squared_sequences(log_ratio: Floats, splits: Splits, clamp: float = 20.0) -> float:
    """mean(exp(2 clip(sum of log_ratio))) - 1 over sequences.

    Source: verl 0.9.1, ``rollout_corr/chi2_seq``.

    Args:
        log_ratio: float64 ``[n]``, nat.
        splits: int64 ``[sequences + 1]``.
        clamp: largest absolute sum, nat.
    """
    return chi_squared_tokens(segment_sums(log_ratio, splits), clamp)


@checked
def log_perplexity(logprob: Floats, splits: Splits) -> Floats:
    """-mean of the logprobs of each sequence; 0 for an empty one. Its exponential is the perplexity.

    Source: verl 0.9.1, ``rollout_corr/training_log_ppl`` and ``rollout_log_ppl``: the mean of it over sequences;
    ``training_ppl`` and ``rollout_ppl``: the mean of its exponential; ``log_ppl_diff``: that of the policy minus that of the
    engine; ``ppl_ratio``: the mean of the exponential of the latter.

    Args:
        logprob: float64 ``[n]``, nat.
        splits: int64 ``[sequences + 1]``.

    Returns:
        float64 ``[sequences]``, nat.
    """
    return -segment_means(logprob, splits)


@checked
def probability_change(logprob: Floats, other: Floats) -> Floats:
    """exp(abs(logprob - other)). Source: NeMo-RL, ``token_mult_prob_error``.

    Args:
        logprob: float64 ``[n]``, nat.
        other: float64 ``[n]``, nat.

    Returns:
        float64 ``[n]``.
    """
    with np.errstate(over="ignore"):
        return np.exp(np.abs(logprob - other))
