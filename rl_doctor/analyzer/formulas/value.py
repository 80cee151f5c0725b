"""The critic: its loss, which tokens it clips, and how much of the returns it explains."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.segments import Bools, Floats, variance


@checked
def clipped_value_errors(value: Floats, old: Floats, returns: Floats, clip: float) -> tuple[Floats, Floats]:
    """(v - R)^2 and (clip(v, v_old - clip, v_old + clip) - R)^2.

    Source: PPO as implemented in OpenAI baselines; verl 0.9.1, ``compute_value_loss``; TRL, ``PPOTrainer``; OpenRLHF 0.11.2,
    ``ValueLoss``.

    Args:
        value: of the current critic, float64 ``[n]``.
        old: of the critic that the returns are from, float64 ``[n]``.
        returns: R, float64 ``[n]``.
        clip: distance from the old value.

    Returns:
        Two float64 ``[n]``, squared unit of the rewards.
    """
    near = np.minimum(np.maximum(value, old - clip), old + clip)
    return (value - returns) ** 2, (near - returns) ** 2


@checked
def value_loss(value: Floats, old: Floats, returns: Floats, clip: float = np.inf) -> Floats:
    """max((v - R)^2, (clip(v, v_old - clip, v_old + clip) - R)^2) / 2.

    Source: PPO as implemented in OpenAI baselines; verl 0.9.1, ``critic/vf_loss``; OpenRLHF 0.11.2, ``critic_loss``. slime
    leaves out the half.

    Args:
        value: of the current critic, float64 ``[n]``.
        old: of the critic that the returns are from, float64 ``[n]``.
        returns: R, float64 ``[n]``.
        clip: distance from the old value; infinite for none.

    Returns:
        float64 ``[n]``, squared unit of the rewards.
    """
    found: Floats = 0.5 * np.maximum(*clipped_value_errors(value, old, returns, clip))
    return found


@checked
def value_clipped(value: Floats, old: Floats, returns: Floats, clip: float) -> Bools:
    """Where the clipped error is the larger one. Source: verl 0.9.1, ``critic/vf_clipfrac``.

    Args:
        value: of the current critic, float64 ``[n]``.
        old: of the critic that the returns are from, float64 ``[n]``.
        returns: R, float64 ``[n]``.
        clip: distance from the old value.

    Returns:
        bool ``[n]``.
    """
    plain, clipped = clipped_value_errors(value, old, returns, clip)
    return clipped > plain


@checked
def value_moved(value: Floats, old: Floats, clip: float) -> Bools:
    """Where the value is further than ``clip`` from the old one, whichever error is larger. Source: slime, ``value_clipfrac``.

    Args:
        value: of the current critic, float64 ``[n]``.
        old: of the critic that the returns are from, float64 ``[n]``.
        clip: distance from the old value.

    Returns:
        bool ``[n]``.
    """
    return np.abs(value - old) > clip


@checked
def explained_variance(value: Floats, returns: Floats, ddof: int = 1, eps: float = 1e-5) -> float:
    """1 - var(R - v) / (var(R) + eps); NaN for n <= ddof, and without eps for returns that are all equal.

    Source: verl 0.9.1, ``critic/vf_explained_var`` (ddof 1, eps 1e-5); OpenAI baselines, ``explained_variance`` (ddof 0, eps 0).

    Args:
        value: of the old critic, float64 ``[n]``.
        returns: R, float64 ``[n]``.
        ddof: 0 or 1.
        eps: what is added to the variance of the returns.
    """
    total = variance(returns, ddof) + eps
    return 1.0 - variance(returns - value, ddof) / total if total else float("nan")
