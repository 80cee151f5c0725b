"""Entropy of the policy from logits in one pass over the vocabulary, and estimates of it from sampled tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.arguments import checked, positive, refused
from rl_doctor.analyzer.formulas.segments import Bools, Floats

_ROWS: Final = 16
_COLUMNS: Final = 4096


class LogitSums(NamedTuple):
    """What of a part of the vocabulary its entropy follows from, each float64 ``[n]``.

    With z = logit - top: the largest logit, the sum of exp(z), and that of exp(z) z.
    """

    top: Floats
    mass: Floats
    moment: Floats


def _weighed(logits: NDArray[Any], temperature: float) -> LogitSums:
    wide = logits.astype(np.float64) / temperature
    top = wide.max(axis=1)
    with np.errstate(invalid="ignore"):
        wide -= np.where(np.isneginf(top), 0.0, top)[:, None]
        mass = np.exp(wide)
        moment = np.where(mass > 0.0, mass * wide, np.where(np.isnan(mass), np.nan, 0.0))
    return LogitSums(top, mass.sum(axis=1), moment.sum(axis=1))


@checked
def logit_sums(logits: NDArray[Any], temperature: float = 1.0) -> LogitSums:
    """Top, sum of exp(z) and sum of exp(z) z over the vocabulary, z = logit / temperature - top.

    In float64, block by block, so that no copy of the logits is made. Source: online softmax, arXiv:1805.02867.

    Args:
        logits: ``[n, vocabulary]`` or a shard of it, of any type of float; -inf for a token that cannot be sampled.
        temperature: what the logits are divided by.

    Returns:
        Three float64 ``[n]``.
    """
    positive(temperature=temperature)
    count = len(logits)
    found = LogitSums(np.full(count, -np.inf), np.zeros(count), np.zeros(count))
    for rows in _slices(count, _ROWS):
        part = LogitSums(*(values[rows] for values in found))
        for columns in _slices(logits.shape[1], _COLUMNS):
            part = merged(part, _weighed(logits[rows, columns], temperature))
        for whole, values in zip(found, part, strict=True):
            whole[rows] = values
    return found


def _slices(size: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, size, step))


@checked
def merged(left: LogitSums, right: LogitSums) -> LogitSums:
    """What holds for two parts of the vocabulary together: both sums moved to the larger top, and added.

    exp(z) z moves by d = top - larger top to exp(d) (exp(z) z + d exp(z)). Source: online softmax, arXiv:1805.02867.

    Args:
        left: of one part.
        right: of another.

    Returns:
        Three float64 ``[n]``.
    """
    top = np.maximum(left.top, right.top)
    mass, moment = np.zeros((2, len(top)))
    for part in (left, right):
        with np.errstate(invalid="ignore"):
            move = np.where(part.top == top, 0.0, part.top - top)
        scale = np.exp(move)
        mass += scale * part.mass
        moment += np.where(scale == 0.0, 0.0, scale * (part.moment + np.where(scale == 0.0, 0.0, move) * part.mass))
    return LogitSums(top, mass, moment)


@checked
def entropy_of(sums: LogitSums) -> Floats:
    """Log of the mass - moment / mass: the entropy. Source: Shannon; verl 0.9.1, ``entropy_from_logits``, with the sums merged.

    Args:
        sums: of the whole vocabulary.

    Returns:
        float64 ``[n]``, nat; NaN where no token can be sampled.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(sums.mass) - sums.moment / sums.mass


@checked
def log_normaliser(sums: LogitSums) -> Floats:
    """Logarithm of the sum of exp(logit), top + log mass: the logit of a token minus this is its logprob. Source: arithmetic.

    Args:
        sums: of the whole vocabulary.

    Returns:
        float64 ``[n]``, nat.
    """
    with np.errstate(divide="ignore"):
        return sums.top + np.log(sums.mass)


@checked
def entropy(logits: NDArray[Any], temperature: float = 1.0) -> Floats:
    """logsumexp(l) - sum of softmax(l) l, l = logits / temperature.

    Of one shard of the vocabulary alone it is what a trainer logs that forgets to merge. Source: Shannon; verl 0.9.1,
    ``entropy_from_logits``; TRL 1.16, ``entropy_from_logits``.

    Args:
        logits: ``[n, vocabulary]``, of any type of float.
        temperature: what the logits are divided by.

    Returns:
        float64 ``[n]``, nat.
    """
    return entropy_of(logit_sums(logits, temperature))


@checked
def sampled_entropy(logprob: Floats, log_weight: Floats) -> Floats:
    """-exp(log_weight) logprob: its mean over samples of the engine estimates the entropy of the policy.

    Source: NeMo-RL, ``approx_entropy``, with log_weight = logprob - logprob of the engine.

    Args:
        logprob: of the sampled tokens, float64 ``[n]``, nat.
        log_weight: log of the importance weight, float64 ``[n]``, nat.

    Returns:
        float64 ``[n]``, nat.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return -np.exp(log_weight) * logprob


@checked
def high_entropy(entropies: Floats, quantile: float) -> Bools:
    """Where the entropy is at least that quantile of all, linearly interpolated; the others are left out of the loss.

    Source: arXiv:2506.01939; TRL 1.16, ``get_high_entropy_mask`` with quantile 1 - ``top_entropy_quantile``.

    Args:
        entropies: of the selected tokens, float64 ``[n]``, nat.
        quantile: in [0, 1].

    Returns:
        bool ``[n]``.
    """
    if not 0.0 <= quantile <= 1.0:
        raise refused("quantile", "a number from 0 to 1", quantile)
    return entropies >= np.quantile(entropies, quantile) if len(entropies) else np.zeros(0, np.bool_)
