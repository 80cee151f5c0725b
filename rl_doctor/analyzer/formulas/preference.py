"""DPO and what is logged of it, from logprobs summed over the chosen and the rejected response of each pair."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.arguments import checked, positive, refused
from rl_doctor.analyzer.formulas.segments import Bools, Floats


@checked
def log_sigmoid(x: Floats) -> Floats:
    """-log(1 + exp(-x)), without overflow. Source: arithmetic.

    Args:
        x: float64 ``[n]``.

    Returns:
        float64 ``[n]``, nat.
    """
    return np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))


@checked
def preference_logits(chosen: Floats, rejected: Floats, ref_chosen: Floats, ref_rejected: Floats) -> Floats:
    """(chosen - ref_chosen) - (rejected - ref_rejected): how much more it is preferred than by the reference.

    Source: DPO, arXiv:2305.18290, eq. 7; TRL 1.16, ``DPOTrainer`` (reverse_kl); OpenRLHF 0.11.2, ``DPOLoss``.

    Args:
        chosen: logprob of the chosen response under the policy, float64 ``[pairs]``, nat.
        rejected: likewise of the rejected one.
        ref_chosen: likewise under the reference.
        ref_rejected: likewise.

    Returns:
        float64 ``[pairs]``, nat.
    """
    return (chosen - ref_chosen) - (rejected - ref_rejected)


@checked
def implicit_reward(logprob: Floats, ref_logprob: Floats, beta: float) -> Floats:
    """Beta (logprob - ref_logprob) of a response. Source: DPO, arXiv:2305.18290, eq. 5; TRL 1.16, ``rewards/chosen``.

    Args:
        logprob: of the response, float64 ``[pairs]``, nat.
        ref_logprob: under the reference, float64 ``[pairs]``, nat.
        beta: strength of the reference.

    Returns:
        float64 ``[pairs]``.
    """
    return beta * (logprob - ref_logprob)


@checked
def dpo_loss(logits: Floats, beta: float, smoothing: float = 0.0) -> Floats:
    """-(1 - smoothing) log sigmoid(beta logits) - smoothing log sigmoid(-beta logits).

    Source: DPO, arXiv:2305.18290, eq. 7; label smoothing, conservative DPO; OpenRLHF 0.11.2, ``DPOLoss``; TRL 1.16, sigmoid.

    Args:
        logits: as ``preference_logits`` gives them, float64 ``[pairs]``, nat.
        beta: strength of the reference.
        smoothing: share of pairs that are taken to be the other way round.

    Returns:
        float64 ``[pairs]``, nat.
    """
    return -(1.0 - smoothing) * log_sigmoid(beta * logits) - smoothing * log_sigmoid(-beta * logits)


@checked
def robust_dpo_loss(logits: Floats, beta: float, smoothing: float) -> Floats:
    """((smoothing - 1) log sigmoid(beta logits) + smoothing log sigmoid(-beta logits)) / (1 - 2 smoothing).

    Source: arXiv:2403.00409, eq. 12; TRL 1.16, robust.

    Args:
        logits: as ``preference_logits`` gives them, float64 ``[pairs]``, nat.
        beta: strength of the reference.
        smoothing: share of pairs that are the other way round, below 1/2.

    Returns:
        float64 ``[pairs]``, nat.
    """
    if smoothing == 0.5:
        raise refused("smoothing", "a share other than 1/2", smoothing)
    kept, flipped = log_sigmoid(beta * logits), log_sigmoid(-beta * logits)
    return (smoothing * flipped - (1.0 - smoothing) * kept) / (1.0 - 2.0 * smoothing)


@checked
def ipo_loss(logits: Floats, beta: float) -> Floats:
    """(logits - 1 / (2 beta))^2.

    Source: IPO, arXiv:2310.12036, eq. 17; OpenRLHF 0.11.2 of summed logprobs, TRL 1.16 of means over the tokens of each response.

    Args:
        logits: as ``preference_logits`` gives them, float64 ``[pairs]``, nat.
        beta: strength of the reference.

    Returns:
        float64 ``[pairs]``.
    """
    positive(beta=beta)
    return (logits - 0.5 / beta) ** 2


@checked
def hinge_loss(logits: Floats, beta: float) -> Floats:
    """max(1 - beta logits, 0). Source: SLiC, arXiv:2305.10425; TRL 1.16, hinge.

    Args:
        logits: as ``preference_logits`` gives them, float64 ``[pairs]``, nat.
        beta: strength of the reference.

    Returns:
        float64 ``[pairs]``.
    """
    return np.maximum(1.0 - beta * logits, 0.0)


@checked
def prefers_chosen(chosen_reward: Floats, rejected_reward: Floats) -> Bools:
    """Where the chosen response has the higher reward; their share is the accuracy.

    Source: TRL 1.16, ``rewards/accuracies``; OpenRLHF 0.11.2, ``acc``.

    Args:
        chosen_reward: float64 ``[pairs]``.
        rejected_reward: float64 ``[pairs]``.

    Returns:
        bool ``[pairs]``.
    """
    return chosen_reward > rejected_reward
