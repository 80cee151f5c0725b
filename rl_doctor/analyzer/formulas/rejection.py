"""Which tokens or whole sequences are left out of the loss because the engine and the policy disagree too much."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.kl import floored_binary_kl, k1, k2, k3, total_variation
from rl_doctor.analyzer.formulas.segments import (
    Bools,
    Floats,
    Splits,
    segment_extremes,
    segment_means,
    segment_sums,
    spread,
)

Over = Literal["token", "seq_sum", "seq_mean", "seq_max"]
Kind = Literal["k1", "k2", "k3"]
_KINDS: Final = {"k1": k1, "k2": k2, "k3": k3}


@checked
def statistic(log_ratio: Floats, splits: Splits, over: Over, kind: Kind, clamp: float = 20.0) -> Floats:
    """The estimate k1, k2 or k3 of clip(log_ratio), per token, or its sum, mean or maximum over the sequence.

    0 for an empty one. Source: verl 0.9.1, ``compute_rollout_rejection_mask``, which has no seq_max_k1.

    Args:
        log_ratio: old_logprob - rollout_logprob, float64 ``[n]``, nat.
        splits: int64 ``[sequences + 1]``.
        over: token, seq_sum, seq_mean or seq_max.
        kind: k1, k2 or k3.
        clamp: largest absolute log-ratio, nat.

    Returns:
        float64 ``[n]`` for token, else ``[sequences]``, nat.
    """
    tokens = _KINDS[kind](np.clip(log_ratio, -clamp, clamp))
    if over == "token":
        return tokens
    if over == "seq_max":
        _, highest = segment_extremes(tokens, splits)
        return np.where(np.diff(splits) > 0, highest, 0.0)
    return segment_sums(tokens, splits) if over == "seq_sum" else segment_means(tokens, splits)


@checked
def kept(values: Floats, upper: float, lower: float = -np.inf) -> Bools:
    """Where lower <= statistic <= upper.

    The bounds of k1 are logarithms of those of the ratio, upper and 1 / upper unless two are configured; k2 and k3 have an upper
    one. Source: verl 0.9.1, ``compute_rollout_rejection_mask``.

    Args:
        values: as ``statistic`` gives them, float64 ``[n]`` or ``[sequences]``, nat.
        upper: largest value.
        lower: least value.

    Returns:
        bool, of the same shape.
    """
    return (values >= lower) & (values <= upper)


@checked
def kept_tokens(
    log_ratio: Floats, splits: Splits, over: Over, kind: Kind, bounds: tuple[float, float], clamp: float = 20.0
) -> Bools:
    """Tokens that a criterion keeps: lower <= statistic <= upper of the token, or of its sequence.

    Source: verl 0.9.1, ``compute_rollout_rejection_mask``; of several criteria a token must meet all.

    Args:
        log_ratio: old_logprob - rollout_logprob, float64 ``[n]``, nat.
        splits: int64 ``[sequences + 1]``.
        over: token, seq_sum, seq_mean or seq_max.
        kind: k1, k2 or k3.
        bounds: lower and upper bound, nat.
        clamp: largest absolute log-ratio, nat.

    Returns:
        bool ``[n]``.
    """
    found = kept(statistic(log_ratio, splits, over, kind, clamp), bounds[1], bounds[0])
    return found if over == "token" else spread(found, splits)


@checked
def engine_gate(old: Floats, rollout: Floats, kind: Literal["ratio", "binary_kl", "tv"]) -> Floats:
    """What OpenRLHF bounds per token: log of the ratio old / rollout, binary KL, or change of the probability.

    Per sequence it takes the mean; of the ratio it then takes the exponential. Source: OpenRLHF 0.11.2, ``PolicyLoss``, where
    both probabilities are kept within [1e-6, 1 - 1e-6].

    Args:
        old: logprob of the old policy, float64 ``[n]``, nat.
        rollout: logprob of the engine, float64 ``[n]``, nat.
        kind: ratio, binary_kl or tv.

    Returns:
        float64 ``[n]``, nat, or probability for tv.
    """
    if kind == "ratio":
        return old - rollout
    if kind == "binary_kl":
        return floored_binary_kl(rollout, old)
    low, high = np.log(1e-6), np.log1p(-1e-6)
    return total_variation(np.clip(rollout, low, high), np.clip(old, low, high))


@checked
def off_policy_kept(log_ratio: Floats, advantage: Floats, splits: Splits, limit: float) -> Bools:
    """Sequences that off-policy sequence masking keeps: A >= 0, or mean of -log_ratio over the sequence <= limit.

    Tokens without a logprob of the engine count as 0. Source: DeepSeek-V3.2, arXiv:2512.02556, eq. 9; TRL 1.16,
    ``get_off_policy_mask``; slime, opsm.

    Args:
        log_ratio: logprob - rollout_logprob (or - old_logprob), float64 ``[n]``, nat, NaN where unknown.
        advantage: of the sequence, float64 ``[sequences]``.
        splits: int64 ``[sequences + 1]``.
        limit: largest mean, nat.

    Returns:
        bool ``[sequences]``.
    """
    behind = segment_means(np.where(np.isnan(log_ratio), 0.0, -log_ratio), splits)
    return (advantage >= 0) | (behind <= limit)
