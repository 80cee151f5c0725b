"""Estimates of the KL divergence between two policies from the logprobs of sampled tokens.

All take x = log q - log p at samples of p, in nat, and estimate KL(p||q): for the divergence of the current policy from the
reference x = ref_logprob - logprob, from the old policy with samples of the old one x = logprob - old_logprob.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.arguments import checked, refused
from rl_doctor.analyzer.formulas.segments import Floats

_NEAR_ZERO: Final = 0.25
_COTH: Final = (1 / 12, -1 / 720, 1 / 30_240, -1 / 1_209_600, 1 / 47_900_160)
"""Terms of x/2 coth(x/2) = 1 + x^2 (1/12 - x^2/720 + ...): B_2k / (2k)!."""


@checked
def k1(x: Floats) -> Floats:
    """Minus the log-ratio: -x. Without bias, of either sign.

    Source: J. Schulman, Approximating KL divergence, 2020.

    Args:
        x: log q - log p, float64 ``[n]``, nat.

    Returns:
        float64 ``[n]``, nat.
    """
    return -x


@checked
def k2(x: Floats) -> Floats:
    """Half the squared log-ratio: x^2 / 2. Its gradient, not its value, is that of the KL on average.

    Source: J. Schulman, Approximating KL divergence, 2020.

    Args:
        x: log q - log p, float64 ``[n]``, nat.

    Returns:
        float64 ``[n]``, nat.
    """
    return 0.5 * x * x


@checked
def k3(x: Floats) -> Floats:
    """exp(x) - 1 - x, to a relative error of a few ulp at any x. Without bias and never negative.

    Source: J. Schulman, Approximating KL divergence, 2020. Near zero, where expm1(x) - x cancels, from the even function
    x/2 coth(x/2) = 1 + x^2 P(x^2), of which five terms do: k3(x) = x^2 (1/2 - x P) / (1 - x (1/2 - x P)).

    Args:
        x: log q - log p, float64 ``[n]``, nat.

    Returns:
        float64 ``[n]``, nat.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        square = x * x
        large = np.flatnonzero(~(square < _NEAR_ZERO * _NEAR_ZERO))
        half = square * _COTH[-1]
        for coefficient in _COTH[-2:0:-1]:
            half += coefficient
            half *= square
        half += _COTH[0]
        half *= x
        np.subtract(0.5, half, out=half)
        square *= half
        half *= x
        np.subtract(1.0, half, out=half)
        square /= half
        if large.size:
            apart = x[large]
            square[large] = np.where(apart == np.inf, np.inf, np.expm1(apart) - apart)
    return square


@checked
def absolute(x: Floats) -> Floats:
    """The absolute log-ratio: abs x. Source: verl 0.9.1, ``kl_penalty`` (abs); its kl_cov loss logs it as ``ppo_kl``.

    Args:
        x: log q - log p, float64 ``[n]``, nat.

    Returns:
        float64 ``[n]``, nat.
    """
    return np.abs(x)


@checked
def bounded(values: Floats, limit: float) -> Floats:
    """An estimate kept within [-limit, limit]. Source: NeMo-RL, ``calculate_kl``; OpenRLHF 0.11.2, ``compute_approx_kl``.

    Args:
        values: float64 ``[n]``, nat.
        limit: largest absolute value, nat: 10 in both.

    Returns:
        float64 ``[n]``, nat.
    """
    return np.clip(values, -limit, limit)


@checked
def low_var_kl(x: Floats, clamp: float = 20.0, limit: float = 10.0) -> Floats:
    """K3 of x kept within [-clamp, clamp], itself kept within [-limit, limit].

    Source: verl 0.9.1, ``kl_penalty_forward``. slime has clamp = inf, SkyRL and NeMo-RL the same bounds.

    Args:
        x: ref_logprob - logprob, float64 ``[n]``, nat.
        clamp: largest absolute log-ratio, nat.
        limit: largest absolute estimate, nat.

    Returns:
        float64 ``[n]``, nat.
    """
    return bounded(k3(np.clip(x, -clamp, clamp)), limit)


@checked
def bias_corrected_k3(x: Floats, log_ratio: Floats) -> Floats:
    """(exp(x) - 1 - x) * exp(log_ratio): k3 of samples of the old policy, weighted to those of the current one.

    Source: TRL 1.16, ``GRPOTrainer._compute_loss`` with ``use_bias_correction_kl``; DeepSeek-V3.2, arXiv:2512.02556.

    Args:
        x: ref_logprob - logprob, float64 ``[n]``, nat.
        log_ratio: logprob - old_logprob, float64 ``[n]``, or its mean over the sequence, nat.

    Returns:
        float64 ``[n]``, nat.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return k3(x) * np.exp(log_ratio)


ESTIMATORS: Final[Mapping[str, Callable[[Floats], Floats]]] = {
    "k1": k1, "kl": k1, "abs": absolute, "k2": k2, "mse": k2, "k3": low_var_kl, "low_var_kl": low_var_kl,
}  # fmt: skip
"""verl's estimators by the names in its configuration."""


@checked
def penalty(x: Floats, kind: str) -> Floats:
    """The estimate that verl calls ``kind``: k1 or kl, k2 or mse, abs, and k3 or low_var_kl with its bounds.

    A ``+`` behind the name (k1+, k3+: straight-through) leaves the value as it is; only the gradient becomes that of k2,
    -x times the gradient of the logprob. Source: verl 0.9.1, ``kl_penalty``; before 0.8 the names with ``+`` raise there.

    Args:
        x: ref_logprob - logprob, float64 ``[n]``, nat.
        kind: name in verl's configuration.

    Returns:
        float64 ``[n]``, nat.

    Raises:
        ValueError: of any other name.
    """
    estimator = ESTIMATORS.get(kind.removesuffix("+"))
    if estimator is None:
        raise refused("kind", f"one of {', '.join(ESTIMATORS)}, with or without + behind it", kind)
    return estimator(x)


@checked
def total_variation(logprob: Floats, other: Floats) -> Floats:
    """Change of the sampled token's probability: abs(exp(logprob) - exp(other)).

    Source: DPPO, arXiv:2602.04879; OpenRLHF 0.11.2, ``PolicyLoss`` (tv).

    Args:
        logprob: float64 ``[n]``, nat.
        other: float64 ``[n]``, nat.

    Returns:
        float64 ``[n]``, probability.
    """
    low, high = np.minimum(logprob, other), np.maximum(logprob, other)
    with np.errstate(invalid="ignore"):
        found: Floats = -np.exp(high) * np.expm1(low - high)
    return found


@checked
def binary_kl(logprob: Floats, other: Floats, eps: float = 1e-8) -> Floats:
    """KL between "this token" and "any other" under p = exp(logprob) and q = exp(other).

    p (logprob - other) + (1 - p) log((1 - p + eps) / (1 - q + eps)). Source: DPPO, arXiv:2602.04879; verl 0.9.1, dppo_kl, with
    p the old policy and q the current one.

    Args:
        logprob: of the policy that sampled, float64 ``[n]``, nat.
        other: float64 ``[n]``, nat.
        eps: what keeps the logarithm finite.

    Returns:
        float64 ``[n]``, nat.
    """
    p, other_left, left = np.exp(logprob), -np.expm1(other), -np.expm1(logprob)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = p * (logprob - other) + left * np.log((left + eps) / (other_left + eps))
    return found


@checked
def floored_binary_kl(logprob: Floats, other: Floats, floor: float = 1e-6) -> Floats:
    """``binary_kl`` of probabilities that are kept within [floor, 1 - floor]: p log(p/q) + (1 - p) log((1 - p) / (1 - q)).

    Source: OpenRLHF 0.11.2, ``PolicyLoss`` (binary_kl), with p the engine and q the old policy.

    Args:
        logprob: of the policy that sampled, float64 ``[n]``, nat.
        other: float64 ``[n]``, nat.
        floor: smallest probability, and smallest that is left for the others.

    Returns:
        float64 ``[n]``, nat.
    """
    p, q = np.clip(np.exp(logprob), floor, 1.0 - floor), np.clip(np.exp(other), floor, 1.0 - floor)
    found: Floats = p * np.log(p / q) + (1.0 - p) * np.log((1.0 - p) / (1.0 - q))
    return found


@checked
def jensen_shannon(logprob: Floats, other: Floats) -> Floats:
    """Half of k3 of logprob - m and half of k3 of other - m, m = log((exp(logprob) + exp(other)) / 2).

    Source: NeMo-RL, ``js_divergence_error``, with the policy and the engine.

    Args:
        logprob: float64 ``[n]``, nat.
        other: float64 ``[n]``, nat.

    Returns:
        float64 ``[n]``, nat.
    """
    half = 0.5 * (logprob - other)
    above = np.abs(half) - np.log(2.0) + np.log1p(np.exp(-2.0 * np.abs(half)))
    return 0.5 * (k3(half - above) + k3(-half - above))
