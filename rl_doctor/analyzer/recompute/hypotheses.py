"""Ways in which a trainer's mean or deviation may be computed otherwise than its definition says, as data.

Each is one more sum in a reduction of its own, over the same micro-batches and with the same stages as the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, per_sequence_counts, per_sequence_sums, selection
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, Entries, Hypothesis
from rl_doctor.analyzer.recompute.stages import Share, Shares, Terms, sums_by
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


def parted(
    by: tuple[str, ...], staged: Staged, needs: tuple[str, ...], parts: Iterable[Part],
    optional: tuple[str, ...] = ("grad_accumulation",),
) -> tuple[Hypothesis, ...]:  # fmt: skip
    """A hypothesis for each part.

    Args:
        by: columns that tell the micro-batches apart.
        staged: the stages of the key.
        needs: columns that every part needs.
        parts: other averages of the key.
        optional: as those of the key.
    """

    def hypothesis(part: Part) -> Hypothesis:
        reduction = sums_by(by, part.share, needs=(*needs, *part.needs), optional=optional)
        return Hypothesis(part.name, part.sentence, reduction, staged(((0, 1.0),)))

    return tuple(map(hypothesis, parts))


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


def other_stages(entries: Callable[[Keyed], Entries], reduction: Reduction) -> Hypothesis:
    """All tokens of a step alike, from the key's own sums."""
    sentence = "weighs every token of the step alike, instead of averaging the means of its micro-batches"
    return Hypothesis("tokens weighted over micro-batches", sentence, reduction, entries)


def other_estimators(difference: Differences, *configured: str) -> tuple[Part, ...]:
    """Means of the other KL estimates than those ``configured``, which the definition uses or for which a twin stands.

    All follow from few sums per sequence, to the precision that telling them apart takes.
    """

    @derived
    def sums(batch: Batch) -> tuple[Floats, Floats]:
        x = difference(batch)
        return per_sequence_sums(batch, x), per_sequence_sums(batch, np.abs(x))

    def k1(batch: Batch, sign: float) -> Shares:
        signed, size = sums(batch)
        return Shares(sign * signed, size, per_sequence_counts(batch))

    def absolute(batch: Batch) -> Shares:
        _, size = sums(batch)
        return Shares(size, size, per_sequence_counts(batch))

    def k2(batch: Batch) -> Shares:
        halves = per_sequence_sums(batch, 0.5 * difference(batch) ** 2)
        return Shares(halves, halves, per_sequence_counts(batch))

    def k3(batch: Batch, sign: float) -> Shares:
        signed, size = sums(batch)
        counts = per_sequence_counts(batch)
        grown = per_sequence_sums(batch, np.exp(sign * difference(batch)))
        value = grown - counts - sign * signed
        return Shares(value, value + EPSILON32 / TOLERANCE * (grown + size + counts), counts)

    known = (
        Part("k1", "is the log-ratio itself (k1)", partial(k1, sign=-1.0)),
        Part("k1 reversed", "is the log-ratio itself (k1), taken in the other direction", partial(k1, sign=1.0)),
        Part("abs", "is the absolute log-ratio", absolute),
        Part("k2", "is half the squared log-ratio (k2)", k2),
        Part("k3", "is k3 (exp(x) - 1 - x)", partial(k3, sign=1.0)),
        Part("k3 reversed", "is k3 of the reversed log-ratio (exp(-x) - 1 + x)", partial(k3, sign=-1.0)),
    )
    return tuple(part for part in known if part.name not in configured)
