"""Scores of several responses to the same held-out prompt: their mean, the best of them, the majority, pass@k.

The best, the worst and the majority of k are bootstrapped as verl does it: 1,000 draws of k with replacement from numpy's
legacy stream, seeded anew for each prompt and each k, so that they come out in the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.arguments import checked, positive, refused
from rl_doctor.analyzer.formulas.segments import Floats

Counts = NDArray[np.int64]


@checked
def mean_at_n(scores: Floats) -> float:
    """Mean score of the n responses to a prompt.

    Source: verl 0.9.1, ``val-core/<source>/<variable>/mean@n``: the mean of it over prompts.

    Args:
        scores: float64 ``[n]``.
    """
    return float(np.mean(scores)) if len(scores) else float("nan")


@checked
def std_at_n(scores: Floats) -> float:
    """Standard deviation with ddof 0 of the n responses to a prompt. Source: verl 0.9.1, ``std@n``.

    Args:
        scores: float64 ``[n]``.
    """
    return float(np.std(scores)) if len(scores) else float("nan")


@checked
def draws(n: int, k: int, number: int = 1000, seed: int = 42) -> Counts:
    """Indices of the bootstrap: ``number`` times k of n with replacement.

    Source: verl 0.9.1, ``bootstrap_metric``.

    Args:
        n: responses to the prompt.
        k: size of a subset.
        number: of subsets.
        seed: of numpy's legacy generator.

    Returns:
        int64 ``[number, k]``.
    """
    positive(n=n, k=k, number=number)
    return np.random.RandomState(seed).choice(n, size=(number, k), replace=True).astype(np.int64)


@checked
def best_of_k(scores: Floats, k: int, number: int = 1000, seed: int = 42) -> tuple[float, float]:
    """Mean and standard deviation (ddof 0), over the draws, of the largest score of k.

    The draws are with replacement, so that it is below the largest score even for k = n. Source: verl 0.9.1, ``best@k/mean``,
    ``/std``.

    Args:
        scores: float64 ``[n]``.
        k: size of a subset.
        number: of subsets.
        seed: of numpy's legacy generator.
    """
    best = scores[draws(len(scores), k, number, seed)].max(axis=1)
    return float(np.mean(best)), float(np.std(best))


@checked
def worst_of_k(scores: Floats, k: int, number: int = 1000, seed: int = 42) -> tuple[float, float]:
    """Mean and standard deviation (ddof 0), over the draws, of the smallest score of k.

    Source: verl 0.9.1, ``worst@k/mean``, ``/std``.

    Args:
        scores: float64 ``[n]``.
        k: size of a subset.
        number: of subsets.
        seed: of numpy's legacy generator.
    """
    worst = scores[draws(len(scores), k, number, seed)].min(axis=1)
    return float(np.mean(worst)), float(np.std(worst))


@checked
def majority_of_k(scores: Floats, answers: NDArray[Any], k: int, number: int = 1000, seed: int = 42) -> tuple[float, float]:
    """Mean and standard deviation (ddof 0), over the draws, of the score of the most frequent answer of k.

    Of equally frequent answers the one that comes first in the draw, with the score of its first response there.
    Source: verl 0.9.1, ``maj@k/mean``, ``/std``.

    Args:
        scores: float64 ``[n]``.
        answers: ``[n]``, of any type that can be sorted.
        k: size of a subset.
        number: of subsets.
        seed: of numpy's legacy generator.
    """
    names, codes = np.unique(answers, return_inverse=True)
    drawn = draws(len(scores), k, number, seed)
    votes = codes[drawn]
    cells = votes + np.arange(number)[:, None] * len(names)
    frequency = np.bincount(cells.ravel(), minlength=number * len(names))[cells]
    first = frequency.argmax(axis=1)
    values = scores[drawn[np.arange(number), first]]
    return float(np.mean(values)), float(np.std(values))


@checked
def sizes_of_subsets(n: int) -> list[int]:
    """The k of best@k: the powers of two from 2 below n, and n; none for n <= 1.

    Source: verl 0.9.1, ``process_validation_metrics``.

    Args:
        n: responses to the prompt.
    """
    return [*(2**power for power in range(1, max(n - 1, 1).bit_length())), n] if n > 1 else []


@checked
def pass_at_k(responses: Counts, correct: Counts, k: int) -> Floats:
    """1 - C(n - c, k) / C(n, k): chance that at least one of k drawn without replacement is correct, without bias.

    Source: Codex, arXiv:2107.03374, eq. 1; prime-rl, ``compute_pass_metrics``; slime, ``passrate/pass@k``.

    Args:
        responses: n, int64 ``[prompts]``, each at least k.
        correct: c, int64 ``[prompts]``.
        k: number of tries.

    Returns:
        float64 ``[prompts]``.
    """
    _counted(responses, correct, k)
    return 1.0 - pass_hat_k(responses, responses - correct, k)


@checked
def pass_hat_k(responses: Counts, correct: Counts, k: int) -> Floats:
    """C(c, k) / C(n, k): chance that all of k drawn without replacement are correct, without bias.

    Source: tau-bench, arXiv:2406.12045, eq. 1; prime-rl, ``compute_pass_metrics``.

    Args:
        responses: n, int64 ``[prompts]``, each at least k.
        correct: c, int64 ``[prompts]``.
        k: number of tries.

    Returns:
        float64 ``[prompts]``.
    """
    _counted(responses, correct, k)
    tried = np.arange(k)
    left = np.maximum(correct[:, None] - tried, 0)
    found: Floats = np.prod(left / (responses[:, None] - tried), axis=1)
    return found


def _counted(responses: Counts, correct: Counts, k: int) -> None:
    positive(k=k)
    if bool((responses < k).any()):
        raise refused("responses", f"at least k = {k} of each prompt", responses)
    if bool(((correct < 0) | (correct > responses)).any()):
        raise refused("correct", "0 to the number of responses of each prompt", correct)
