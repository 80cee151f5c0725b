"""From losses per token to one number: the factor that each sequence's summed loss enters with, and the total.

Every aggregation is a sum over sequences of factor times summed loss, so that parts of a batch add up to the whole. Ranks
multiply by their number and are averaged, which cancels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.arguments import checked, positive
from rl_doctor.analyzer.formulas.segments import Floats
from rl_doctor.analyzer.states import Sum

Counts = NDArray[np.int64]


@checked
def aggregated(sums: Floats, factors: Floats) -> float:
    """The aggregated loss: sum over sequences of factor times summed loss, correctly rounded in any order.

    Source: verl 0.9.1, ``agg_loss``; TRL 1.16, ``GRPOTrainer._compute_loss``.

    Args:
        sums: loss summed over the tokens of each sequence, float64 ``[sequences]``.
        factors: as one of the other functions gives them, float64 ``[sequences]``. A sequence with factor 0 is left out.
    """
    kept = factors != 0
    return Sum.of(sums[kept] * factors[kept]).value


@checked
def token_mean(counts: Counts, tokens: float | None = None) -> Floats:
    """Mean over tokens: 1 / tokens.

    Source: DAPO, arXiv:2503.14476, eq. 8; verl 0.9.1, token-mean; OpenRLHF 0.11.2, ``token_level_loss``; TRL 1.16, bnpo.

    Args:
        counts: tokens per sequence, int64 ``[sequences]``.
        tokens: the normaliser, by default their sum, at least 1. verl counts those of the mini-batch before any is rejected.

    Returns:
        float64 ``[sequences]``.
    """
    return np.full(len(counts), 1.0 / max(int(counts.sum()), 1) if tokens is None else 1.0 / tokens)


@checked
def token_sum(counts: Counts) -> Floats:
    """Sum over tokens: 1. Source: verl 0.9.1, token-sum.

    Args:
        counts: tokens per sequence, int64 ``[sequences]``.

    Returns:
        float64 ``[sequences]``.
    """
    return np.ones(len(counts))


@checked
def sequence_mean_token_sum(counts: Counts, sequences: float | None = None) -> Floats:
    """Mean over sequences of the sum over tokens: 1 / sequences, 0 for an empty sequence.

    Source: verl 0.9.1, seq-mean-token-sum; TRL 1.16, luspo (with sequences = their number, empty ones too).

    Args:
        counts: tokens per sequence, int64 ``[sequences]``.
        sequences: the normaliser, by default the number of sequences with a token, at least 1.

    Returns:
        float64 ``[sequences]``.
    """
    filled = counts > 0
    return np.where(filled, 1.0 / (max(int(filled.sum()), 1) if sequences is None else sequences), 0.0)


@checked
def sequence_mean_token_sum_norm(counts: Counts, horizon: float, sequences: float | None = None) -> Floats:
    """Mean over sequences of the sum over tokens, over a constant length: 1 / (sequences horizon).

    Source: Dr. GRPO, arXiv:2503.20783; verl 0.9.1, seq-mean-token-sum-norm, where the horizon is ``loss_scale_factor`` or the
    padded width; TRL 1.16, dr_grpo, where it is ``max_completion_length`` and sequences counts empty ones.

    Args:
        counts: tokens per sequence, int64 ``[sequences]``.
        horizon: the constant length, tokens.
        sequences: the normaliser, by default the number of sequences with a token, at least 1.

    Returns:
        float64 ``[sequences]``.
    """
    positive(horizon=horizon)
    return sequence_mean_token_sum(counts, sequences) / horizon


@checked
def sequence_mean_token_mean(counts: Counts, sequences: float | None = None, eps: float = 0.0) -> Floats:
    """Mean over sequences of the mean over tokens: 1 / (sequences (tokens + eps)), 0 for an empty sequence.

    Source: GRPO, arXiv:2402.03300, eq. 3; verl 0.9.1, seq-mean-token-mean (eps = 1e-8); OpenRLHF 0.11.2 (eps = 1e-8); TRL 1.16,
    grpo and sapo (eps = 0, sequences counts empty ones); slime.

    Args:
        counts: tokens per sequence, int64 ``[sequences]``.
        sequences: the normaliser, by default the number of sequences with a token, at least 1.
        eps: what is added to the number of tokens.

    Returns:
        float64 ``[sequences]``.
    """
    return sequence_mean_token_sum(counts, sequences) / (np.maximum(counts, 1) + eps)


@checked
def prompt_mean(counts: Counts, group: NDArray[Any]) -> Floats:
    """Mean over prompts of the mean over the tokens of all its responses: 1 / (prompts tokens of the prompt).

    Source: SkyRL, ``loss_reduction="prompt_mean"``; DAPO's mean within a prompt.

    Args:
        counts: tokens per sequence, int64 ``[sequences]``.
        group: the prompt of each sequence, ``[sequences]``, of any type that can be sorted.

    Returns:
        float64 ``[sequences]``.
    """
    names, index = np.unique(group, return_inverse=True)
    tokens = np.zeros(len(names), np.int64)
    np.add.at(tokens, index, counts)
    return 1.0 / (len(names) * np.maximum(tokens, 1)[index])


@checked
def window_token_mean(counts: Counts, items: float, ranks: int = 1, share: float = 1.0) -> Floats:
    """Mean over the tokens of an accumulation window, estimated from those of the whole generation batch: ranks / (items share).

    Source: TRL 1.16, dapo, cispo and vespo: items is ``num_items_in_batch``, share ``gradient_accumulation_steps`` over
    ``steps_per_generation``.

    Args:
        counts: tokens per sequence, int64 ``[sequences]``.
        items: tokens of the generation batch over all ranks, at least 1.
        ranks: number of processes.
        share: part of the generation batch in one window.

    Returns:
        float64 ``[sequences]``.
    """
    return np.full(len(counts), ranks / (max(items, 1.0) * share))
