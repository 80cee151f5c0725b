"""Losses with a trust region on the sampled token's probability in place of a clipped ratio: DPPO, and prime-rl's."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.kl import binary_kl
from rl_doctor.analyzer.formulas.segments import Bools, Floats


@checked
def within_total_variation(logprob: Floats, old: Floats, advantage: Floats, low: float, high: float) -> Bools:
    """Where the probability has not moved too far: p - p_old <= high where A > 0, >= -low elsewhere.

    Source: DPPO, arXiv:2602.04879; verl 0.9.1, dppo_tv; prime-rl, ``default_loss_fn`` (its ``is_masked`` is the complement).

    Args:
        logprob: of the current policy, float64 ``[n]``, nat.
        old: of the policy that sampled, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.
        low: largest fall of the probability.
        high: largest rise.

    Returns:
        bool ``[n]``.
    """
    rise = np.exp(logprob) - np.exp(old)
    return np.where(advantage > 0, rise <= high, rise >= -low)


@checked
def within_binary_kl(logprob: Floats, old: Floats, advantage: Floats, low: float, high: float, eps: float = 1e-8) -> Bools:
    """Where the binary KL of the old policy from the current one is at most high where A > 0 and low elsewhere.

    Or the probability moved against the advantage: p <= p_old where A > 0, p >= p_old elsewhere. Source: DPPO, arXiv:2602.04879;
    verl 0.9.1, dppo_kl.

    Args:
        logprob: of the current policy, float64 ``[n]``, nat.
        old: of the policy that sampled, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.
        low: bound where A <= 0, nat.
        high: bound where A > 0, nat.
        eps: what keeps the logarithm finite.

    Returns:
        bool ``[n]``.
    """
    divergence = binary_kl(old, logprob, eps)
    rising = (divergence <= high) | (logprob <= old)
    falling = (divergence <= low) | (logprob >= old)
    return np.where(advantage > 0, rising, falling)


@checked
def dppo_loss(ratio: Floats, advantage: Floats, logprob: Floats, keep: Bools, cap: float) -> Floats:
    """-A min(r, cap) logprob where kept, else 0, with the ratio held constant.

    Source: DPPO, arXiv:2602.04879; verl 0.9.1, dppo_tv and dppo_kl (cap = ``clip_ratio_c``).

    Args:
        ratio: float64 ``[n]``.
        advantage: A, float64 ``[n]``.
        logprob: of the current policy, float64 ``[n]``, nat.
        keep: bool ``[n]``, as ``within_total_variation`` or ``within_binary_kl`` gives it.
        cap: the largest ratio.

    Returns:
        float64 ``[n]``.
    """
    return np.where(keep, -advantage * np.minimum(ratio, cap) * logprob, 0.0)


@checked
def dppo_capped(ratio: Floats, keep: Bools, cap: float) -> Bools:
    """Where DPPO cuts the ratio of a kept token: r > cap. Source: verl 0.9.1, ``actor/pg_clipfrac_lower`` of dppo_tv and dppo_kl.

    Args:
        ratio: float64 ``[n]``.
        keep: bool ``[n]``.
        cap: the largest ratio.

    Returns:
        bool ``[n]``.
    """
    return keep & (ratio > cap)


@checked
def kept_ratio_loss(log_ratio: Floats, advantage: Floats, keep: Bools, kl_coef: float) -> Floats:
    """kl_coef log_ratio^2 - A r where kept, kl_coef log_ratio^2 elsewhere.

    Source: prime-rl, ``default_loss_fn`` (kl_coef = ``kl_tau``); Kimi K2.5, arXiv:2602.02276.

    Args:
        log_ratio: logprob - logprob of the engine, float64 ``[n]``, nat.
        advantage: A, float64 ``[n]``.
        keep: bool ``[n]``.
        kl_coef: weight of the squared log-ratio.

    Returns:
        float64 ``[n]``.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return kl_coef * log_ratio * log_ratio - np.where(keep, advantage * np.exp(log_ratio), 0.0)
