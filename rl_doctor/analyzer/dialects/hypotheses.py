"""Ways in which a trainer's mean or deviation may be computed otherwise than its definition says, as data.

Each is one more sum in a reduction of its own, over the same micro-batches and with the same stages as the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, selection
from rl_doctor.analyzer.dialects.registry import EPSILON32, TOLERANCE, Entries, Hypothesis
from rl_doctor.analyzer.dialects.stages import Share, Shares, Terms, rounded_sum, sums_by, token_shares
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.analyzer.states import Keyed
from rl_doctor.store.batch import Batch

Staged = Callable[[Terms], Callable[[Keyed], Entries]]
"""Which averages to add up -> how those of the micro-batches become entries."""
Differences = Callable[[Batch], Floats]
"""Batch -> the log-ratio x at the selected tokens, float64 ``[n_selected]``, of which a KL estimate is a function."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Another average of the same key: the name and the sentence of a ``Hypothesis``, what is summed, and columns needed."""

    name: str
    sentence: str
    share: Share
    needs: tuple[str, ...] = ()


def parted(by: tuple[str, ...], staged: Staged, needs: tuple[str, ...], parts: Iterable[Part]) -> tuple[Hypothesis, ...]:
    """A hypothesis for each part; those that need the same columns share one reduction.

    Args:
        by: columns that tell the micro-batches apart.
        staged: the stages of the key.
        needs: columns that every part needs.
        parts: other averages of the key.
    """
    parts = tuple(parts)
    shared: dict[tuple[str, ...], list[Part]] = {}
    for part in parts:
        shared.setdefault(part.needs, []).append(part)
    made = {}
    for extra, together in shared.items():
        reduction = sums_by(by, *(part.share for part in together), needs=(*needs, *extra), total=rounded_sum)
        for at, part in enumerate(together):
            made[part] = Hypothesis(part.name, part.sentence, reduction, staged(((at, 1.0),)))
    return tuple(made[part] for part in parts)


def other_means(share: Share, *, additive: bool = True) -> tuple[Part, ...]:
    """Other means of the same values than the mean over the tokens that the loss covers.

    Args:
        share: the mean over selected tokens.
        additive: whether a token's value does not depend on which other tokens are selected.
    """

    def padded(batch: Batch) -> Shares:
        found, width = share(batch), batch.columns["padded_width"]
        known = width > 0
        return Shares(np.where(known, found.numerators, np.nan), found.magnitudes, np.where(known, width, 0).astype(np.int64))

    def unmasked(batch: Batch) -> Shares:
        found, rest = share(batch), _left_out(batch)
        if rest is None:
            return found
        more = share(rest)
        return Shares(
            found.numerators + more.numerators, found.magnitudes + more.magnitudes, found.weights + more.weights,
            None if found.slack is None or more.slack is None else found.slack + more.slack,
        )  # fmt: skip

    def by_sequence(batch: Batch) -> Shares:
        found = share(batch)
        counts = np.maximum(found.weights, 1)  # a sequence without tokens counts as 0
        slack = None if found.slack is None else found.slack / counts
        return Shares(found.numerators / counts, found.magnitudes / counts, np.ones(batch.n_sequences, np.int64), slack)

    return (
        Part(
            "over the padded width",
            "is a mean over the padded width (the sum over the tokens, divided by rows times width)", padded, ("padded_width",),
        ),
        *([Part("without the mask", "is a mean over all stored tokens, masked ones too", unmasked)]
          if additive else []),
        Part("mean of the sequences' means", "is the mean of the sequences' own means, not a mean over tokens", by_sequence),
    )  # fmt: skip


@derived
def _left_out(batch: Batch) -> Batch | None:
    """The same batch with only those tokens selected that are not; None where there are none."""
    mask = batch.get("response_mask")
    if mask is None or selection(batch).all():
        return None
    return replace(batch, columns={**batch.columns, "response_mask": ~mask.astype(np.bool_)}, scratch={})


def _k3(x: Floats) -> tuple[Floats, Floats]:
    """K3 to the precision that telling it from others takes, and the size of its summands."""
    grown = np.exp(x)
    value = grown - 1.0 - x
    return value, value + EPSILON32 / TOLERANCE * (grown + np.abs(x) + 1.0)


_ESTIMATORS: Final[tuple[tuple[str, str, Callable[[Floats], tuple[Floats, Floats]]], ...]] = (
    ("k1", "is the log-ratio itself (k1)", lambda x: (-x, np.abs(x))),
    ("k1 reversed", "is the log-ratio itself (k1), taken in the other direction", lambda x: (x, np.abs(x))),
    ("abs", "is the absolute log-ratio", lambda x: (np.abs(x), np.abs(x))),
    ("k2", "is half the squared log-ratio (k2)", lambda x: (half := 0.5 * x * x, half)),
    ("k3", "is k3 (exp(x) - 1 - x)", _k3),
    ("k3 reversed", "is k3 of the reversed log-ratio (exp(-x) - 1 + x)", lambda x: _k3(-x)),
)


def other_stages(entries: Callable[[Keyed], Entries], reduction: Reduction) -> Hypothesis:
    """All tokens of a step alike, from the key's own sums."""
    sentence = "weighs every token of the step alike, instead of averaging the means of its micro-batches"
    return Hypothesis("tokens weighted over micro-batches", sentence, reduction, entries)


def other_estimators(difference: Differences, *configured: str) -> tuple[Part, ...]:
    """Means of the other KL estimates than those ``configured``, which the definition uses or for which a twin stands."""

    def share(estimate: Callable[[Floats], tuple[Floats, Floats]]) -> Share:
        return lambda batch: token_shares(batch, *estimate(difference(batch)))

    return tuple(Part(name, sentence, share(estimate)) for name, sentence, estimate in _ESTIMATORS if name not in configured)
