"""The optimal token baseline: what is subtracted from returns at each position, weighted by how much the token could vary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.returns import discounted_sums
from rl_doctor.analyzer.formulas.segments import Floats, Splits, segment_sums, spread


@checked
def token_energy(old: Floats, sum_pi_squared: Floats, splits: Splits, weight: Floats | None = None) -> Floats:
    """Sum up to each token of 1 - 2 pi + sum of pi^2 over the vocabulary, times the squared importance weight.

    Source: verl 0.9.1, ``compute_optimal_token_baseline_advantage``.

    Args:
        old: logprob of the sampled tokens, float64 ``[n]``, nat.
        sum_pi_squared: sum of squared probabilities over the vocabulary, float64 ``[n]``.
        splits: int64 ``[sequences + 1]``.
        weight: importance weight, float64 ``[n]``.

    Returns:
        float64 ``[n]``.
    """
    energy = 1.0 - 2.0 * np.exp(old) + sum_pi_squared
    if weight is not None:
        energy = energy * weight * weight
    backwards = splits[-1] - splits[::-1]
    found: Floats = discounted_sums(energy[::-1], backwards, 1.0)[::-1]
    return found


@checked
def optimal_token_baseline(
    returns: Floats,
    energy: Floats,
    splits: Splits,
    labels: NDArray[Any],
    eps: float = 1e-8,
    place: NDArray[np.int64] | None = None,
) -> Floats:
    """Return minus the baseline of its group at its position: sum of return times energy over (sum of energy + eps).

    0 is the baseline of a group of one, and behind the end of the second longest response for the longest one. Source: verl
    0.9.1, optimal_token_baseline, where a position counts the tokens of the environment, and tir_optimal_token_baseline, where
    it does not.

    Args:
        returns: undiscounted, float64 ``[n]``, of the tokens of the policy.
        energy: as ``token_energy`` gives it, float64 ``[n]``.
        splits: int64 ``[sequences + 1]``.
        labels: the group of each sequence, ``[sequences]``, of any type that can be sorted.
        eps: what is added to the sum of energies.
        place: position of each token in its response, int64 ``[n]``; by default among the tokens given.

    Returns:
        float64 ``[n]``, of the unit of the returns.
    """
    lengths = np.diff(splits)
    if place is None:
        place = np.arange(splits[-1]) - np.repeat(splits[:-1], lengths)
    names, index = np.unique(labels, return_inverse=True)
    width = int(place.max(initial=0)) + 1
    cell, inverse = np.unique(spread(index, splits) * width + place, return_inverse=True)
    order = np.lexsort((energy, inverse))
    edges = np.append(0, np.cumsum(np.bincount(inverse, minlength=len(cell)))).astype(np.int64)
    above, below = (segment_sums(part[order], edges) for part in (returns * energy, energy))
    sizes = np.bincount(index, minlength=len(names))[index]
    ordered = np.lexsort((lengths, index))
    last = np.append(index[ordered][1:] != index[ordered][:-1], np.ones(min(len(index), 1), np.bool_))
    second = np.zeros(len(lengths), np.int64)
    second[1:] = lengths[ordered][:-1]
    end = np.full(len(lengths), np.iinfo(np.int64).max)
    longest = last & (lengths[ordered] > second)
    end[ordered[longest]] = second[longest]
    past = (place >= spread(end, splits)) | (spread(sizes, splits) == 1)
    return returns - np.where(past, 0.0, (above / (below + eps))[inverse])
