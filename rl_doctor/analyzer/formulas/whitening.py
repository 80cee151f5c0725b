"""Whitening of advantages over all tokens of a batch."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.segments import Floats, mean, variance


@checked
def whiten(values: Floats, *, ddof: int = 1, eps: float = 1e-8, shift: bool = True) -> Floats:
    """(x - mean) / sqrt(variance + eps), plus the mean unless shifted.

    Source: verl 0.9.1, slime, SkyRL and ROLL, ``masked_whiten`` (ddof 1); minimind (ddof 0); TRL, ``PPOTrainer``.

    Args:
        values: of the selected tokens, float64 ``[n]``.
        ddof: 0 or 1; NaN comes out for n <= ddof.
        eps: what is added to the variance.
        shift: whether the mean of what comes out is 0.

    Returns:
        float64 ``[n]``.
    """
    centre = mean(values)
    with np.errstate(invalid="ignore"):
        whitened: Floats = (values - centre) / np.sqrt(variance(values, ddof) + eps)
    return whitened if shift else whitened + centre


@checked
def whiten_floored(values: Floats, *, ddof: int = 0, floor: float = 1e-8) -> Floats:
    """(x - mean) / sqrt(max(variance, floor)).

    Source: OpenRLHF 0.11.2, ``compute_advantages_and_returns`` (ddof 0); NeMo-RL, reinforce++ (ddof 0).

    Args:
        values: of the selected tokens, float64 ``[n]``.
        ddof: 0 or 1; NaN comes out for n <= ddof.
        floor: the least variance.

    Returns:
        float64 ``[n]``.
    """
    found: Floats = (values - mean(values)) / np.sqrt(np.maximum(variance(values, ddof), floor))
    return found
