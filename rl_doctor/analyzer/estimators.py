"""The formulas of policy optimisation on flat arrays: KL estimators, PPO surrogates, advantages. Float64 throughout."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Splits = NDArray[np.int64]

_NEAR_ZERO: Final = 0.25
_COTH: Final = (1 / 12, -1 / 720, 1 / 30_240, -1 / 1_209_600, 1 / 47_900_160)
"""Terms of x/2 coth(x/2) = 1 + x^2 (1/12 - x^2/720 + ...): B_2k / (2k)!."""


def k1(x: Floats) -> Floats:
    """Minus the log-ratio: -x."""
    return -x


def k2(x: Floats) -> Floats:
    """Half the squared log-ratio."""
    return 0.5 * x * x


def k3(x: Floats) -> Floats:
    """exp(x) - 1 - x, to a relative error of a few ulp at any x.

    With samples of p and x = log q - log p it estimates KL(p||q) without bias and is never negative.
    Source: J. Schulman, Approximating KL divergence, 2020. Near zero, where expm1(x) - x cancels, from the even function
    x/2 coth(x/2) = 1 + x^2 P(x^2), of which five terms do: k3(x) = x^2 (1/2 - x P) / (1 - x (1/2 - x P)).
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


def surrogate_loss(log_ratio: Floats, advantage: Floats, low: float, high: float, dual: float | None = None) -> Floats:
    """Loss per token: max(-A r, -A clip(r, 1 - low, 1 + high)); where A < 0 at most -A * dual.

    Source: PPO, arXiv:1707.06347, eq. 7; dual clip, arXiv:1912.09729, eq. 4.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return surrogate_of_ratio(np.exp(log_ratio), advantage, low, high, dual)


def surrogate_of_ratio(ratio: Floats, advantage: Floats, low: float, high: float, dual: float | None = None) -> Floats:
    """``surrogate_loss`` of a ratio."""
    with np.errstate(over="ignore", invalid="ignore"):
        loss: Floats = np.maximum(-advantage * ratio, -advantage * np.clip(ratio, 1.0 - low, 1.0 + high))
        if dual is not None:
            loss = np.where(advantage < 0, np.minimum(loss, -advantage * dual), loss)
    return loss


def clipped_value_errors(value: Floats, old: Floats, returns: Floats, clip: float) -> tuple[Floats, Floats]:
    """Squared errors of the value, and of the value kept within ``clip`` of the old one, each ``[n]``.

    PPO's value loss is half the mean of the larger of the two. Source: PPO as implemented in OpenAI baselines; TRL, PPOTrainer.
    """
    return (value - returns) ** 2, (np.clip(value, old - clip, old + clip) - returns) ** 2


def group_deviation(sums: Floats, sizes: NDArray[np.int64], ddof: int) -> Floats:
    """Standard deviation per group from its sum of squared deviations; NaN where the size is at most ``ddof``."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(np.where(sizes > ddof, sums / (sizes - ddof), np.nan))


def grpo_advantage(centred: Floats, deviation: Floats, eps: float) -> Floats:
    """(r - group mean) / (deviation + eps); the deviation is that of the group or of the batch.

    Source: GRPO, arXiv:2402.03300, section 4.1.2; where eps stands and its size are the trainer's choice.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return centred / (deviation + eps)


def dr_grpo_advantage(centred: Floats) -> Floats:
    """R - group mean. Source: Dr. GRPO, arXiv:2503.20783."""
    return centred


def rloo_advantage(centred: Floats, sizes: NDArray[np.int64]) -> Floats:
    """R - mean of the others = n / (n - 1) * (r - group mean). Source: RLOO, arXiv:2402.14740."""
    return centred * (sizes / np.maximum(sizes - 1, 1))


def discounted_sums(values: Floats, splits: Splits, factor: float) -> Floats:
    """Sum over k of factor**k * values[t + k] to the end of each segment, by doubling: log2(longest) passes over all tokens.

    Args:
        values: float64 ``[n]``.
        splits: int64 ``[segments + 1]``.
        factor: in [0, 1].
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


def gae_advantage(rewards: Floats, values: Floats, splits: Splits, gamma: float, lam: float) -> Floats:
    """Generalised advantage estimate per token; the value after the last token of a sequence is 0.

    delta_t = r_t + gamma v_{t+1} - v_t, A_t = delta_t + gamma lambda A_{t+1}. Source: GAE, arXiv:1506.02438, eq. 16.

    Args:
        rewards: float64 ``[n]``, per token.
        values: float64 ``[n]``.
        splits: int64 ``[sequences + 1]``.
        gamma: discount.
        lam: lambda.
    """
    following = np.zeros_like(values)
    following[:-1] = values[1:]
    filled = np.diff(splits) > 0
    following[splits[1:][filled] - 1] = 0.0
    return discounted_sums(rewards + gamma * following - values, splits, gamma * lam)
