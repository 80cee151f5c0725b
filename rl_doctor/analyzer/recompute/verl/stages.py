"""verl: what becomes of a number per micro-batch: in the engine workers, and in the workers before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, derived, known, per_sequence_counts
from rl_doctor.analyzer.recompute.registry import Entries, Hypothesis, Logged
from rl_doctor.analyzer.recompute.stages import (
    MICROBATCH_OF_RANK,
    Share,
    Shares,
    Terms,
    average,
    certain,
    means_of_means,
    sums_by,
)
from rl_doctor.analyzer.recompute.variations.hypotheses import parted
from rl_doctor.analyzer.recompute.variations.measures import Part
from rl_doctor.analyzer.recompute.verl.aggregation import AGGREGATIONS, WORDS, Rows, aggregated, mini, sums_of_means
from rl_doctor.analyzer.recompute.verl.versions import Era, Losses
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.analyzer.states import Keyed
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

Others = Callable[[], tuple[Part, ...]]
_PADDING = ("is_padding",)


class Stages(Protocol):
    """How one kind of workers arrives at what is logged."""

    def micro(self, name: str, metric: str | None, unit: str, share: Share, needs: tuple[str, ...], others: Others) -> Logged:
        """A masked mean per micro-batch, not weighted by its tokens."""

    def loss(
        self, name: str, metric: str | None, rows: Rows, mode: str, needs: tuple[str, ...], unit: str = "1",
        others: Others = tuple, factor: float = 1.0,
    ) -> Logged:  # fmt: skip
        """A loss, summed per sequence and aggregated."""

    def averaged(
        self, name: str, metric: str | None, share: Share, needs: tuple[str, ...], unit: str = "1", others: Others = tuple
    ) -> Logged:
        """A loss that averages over its micro-batch by itself, whatever the aggregation."""

    def share(self, rows: Rows, mode: str, factor: float = 1.0) -> Share:
        """What each sequence adds to a loss that is aggregated as ``mode`` and multiplied by ``factor``."""


class Engine:
    """Since 0.8: shares of the mini-batch's loss are summed, all else is averaged per mini-batch."""

    def micro(self, name: str, metric: str | None, unit: str, share: Share, needs: tuple[str, ...], others: Others) -> Logged:
        """See ``Stages``."""

        def hypotheses() -> tuple[Hypothesis, ...]:
            return parted(MICROBATCH_OF_RANK, lambda terms: partial(means_of_means, terms=terms), needs, others(), _PADDING)

        reduction = sums_by(MICROBATCH_OF_RANK, share, needs=needs, optional=_PADDING)
        return Logged(name, metric, unit, reduction, means_of_means, "step", hypotheses)

    def loss(
        self, name: str, metric: str | None, rows: Rows, mode: str, needs: tuple[str, ...], unit: str = "1",
        others: Others = tuple, factor: float = 1.0,
    ) -> Logged:  # fmt: skip
        """See ``Stages``."""
        return mini(name, metric, rows, mode, needs, unit, others, factor)

    def share(self, rows: Rows, mode: str, factor: float = 1.0) -> Share:
        """See ``Stages``."""
        return derived(lambda batch: aggregated(batch, rows, mode, factor))

    def averaged(
        self, name: str, metric: str | None, share: Share, needs: tuple[str, ...], unit: str = "1", others: Others = tuple
    ) -> Logged:
        """See ``Stages``."""

        def hypotheses() -> tuple[Hypothesis, ...]:
            return parted(MICROBATCH_OF_RANK, lambda terms: partial(sums_of_means, terms=terms), needs, others(), _PADDING)

        reduction = sums_by(MICROBATCH_OF_RANK, share, needs=needs, optional=_PADDING)
        return Logged(name, metric, unit, reduction, sums_of_means, "step", hypotheses)


@frozen(eq=False)
class Added:
    """A term that is added to a loss: its name, what each sequence adds, times its coefficient, and that coefficient."""

    name: str
    share: Share
    coefficient: float


def other_factors(name: str, coefficient: float) -> Iterator[tuple[str, str, float]]:
    """Of a term of a loss the ways to get its coefficient wrong: name, sentence, and what the right term is multiplied by."""
    yield f"no {name} term", f"has no {name} term", 0.0
    yield f"{name} term with the opposite sign", f"has the {name} term with the opposite sign", -1.0
    size = abs(coefficient)
    if size not in (0.0, 1.0):
        told = f"applies the {name} coefficient twice ({size:g} * {size:g})"
        yield f"{name} coefficient twice", told, size
        yield f"{name} term without its coefficient", f"has the {name} term without its coefficient", 1.0 / size


@frozen
class Older:
    """Before: every micro-batch normalises its loss by itself. Also the critic of the engine's first versions.

    Attributes:
        era: what the losses become, whose ranks are logged, and what is taken as the old policy.
        width: tokens that responses are padded to, for runs that do not record it.
        losses: what losses become, where that is not what the era says.
        beside: a term whose average is added to a loss: its name, what each sequence adds, and its coefficient.
    """

    era: Era
    width: int | None
    losses: Losses | None = None
    beside: Added | None = None

    def micro(self, name: str, metric: str | None, unit: str, share: Share, needs: tuple[str, ...], others: Others) -> Logged:
        """See ``Stages``."""
        return replace(self, losses="mean", beside=None).averaged(name, metric, share, needs, unit, others)

    def loss(
        self, name: str, metric: str | None, rows: Rows, mode: str, needs: tuple[str, ...], unit: str = "1",
        others: Others = tuple, factor: float = 1.0,
    ) -> Logged:  # fmt: skip
        """See ``Stages``."""

        def share(other: str) -> Share:
            return self.share(rows, other, factor)

        def elsewise() -> Iterator[Part]:
            for other, words in WORDS.items():
                if other != mode:
                    yield Part(other, words.replace("mini-batch", "micro-batch"), share(other))
            yield from others()

        if mode == "seq-mean-token-sum-norm" and self.width is None:
            needs = (*needs, "padded_width")
        return self.averaged(name, metric, share(mode), needs, unit, lambda: tuple(elsewise()))

    def share(self, rows: Rows, mode: str, factor: float = 1.0) -> Share:
        """What each sequence adds to its micro-batch's own aggregation."""
        return derived(lambda batch: self._average(batch, rows, mode, factor))

    def averaged(
        self, name: str, metric: str | None, share: Share, needs: tuple[str, ...], unit: str = "1", others: Others = tuple
    ) -> Logged:
        """See ``Stages``."""
        anchors = self.era.anchors_to_itself and "old_logprob" in needs
        shares = [share, derived(lambda batch: share(_anchored(batch)))] if anchors else [share]
        added, alone = [] if self.beside is None else [self.beside.share], len(shares)
        optional, losses = (*_PADDING, "padded_width"), self.losses or self.era.losses

        def entries(state: Keyed, terms: Terms = (), factor: float = 1.0) -> Entries:
            of_beside = tuple((alone + at, factor) for at in range(len(added)) if factor)
            return self._entries(state, losses, terms or ((int(anchors and _single(state)), 1.0), *of_beside))

        def reads(*summed: Share, more: tuple[str, ...] = ()) -> Reduction:
            return sums_by(MICROBATCH_OF_RANK, *summed, needs=(*needs, *more), optional=optional)

        def hypotheses() -> tuple[Hypothesis, ...]:
            every = tuple((at, 1.0) for at in range(1 + len(added)))
            values = (
                Hypothesis(part.name, part.sentence, reads(part.share, *added, more=part.needs), partial(entries, terms=every))
                for part in others()
            )
            changed = () if self.beside is None else other_factors(self.beside.name, self.beside.coefficient)
            terms = (Hypothesis(name, told, reads(*shares, *added), partial(entries, factor=by)) for name, told, by in changed)
            return (*terms, *values)

        return Logged(name, metric, unit, reads(*shares, *added), entries, "step", hypotheses)

    def _entries(self, state: Keyed, losses: Losses, terms: Terms) -> Entries:
        """One entry per micro-batch and rank; of a sum one for the step, averaged over the ranks."""
        groups = state.groups
        if self.era.first_rank_only:
            first = min((key[0] for key in groups), default=0)
            groups = {key: sums for key, sums in groups.items() if key[0] == first}
        rows: dict[tuple[int, ...], int] = {}
        for key, sums in groups.items():
            rows[key[:-1]] = rows.get(key[:-1], 0) + sums.parts[-1].count
        found = Entries()
        for key, sums in groups.items():
            value, slack = average(sums, terms)
            factor = 1.0 if losses == "mean" else sums.parts[-1].count / rows[key[:-1]]
            found += certain(value * factor, slack * factor)
        if losses != "scaled sum" or not groups:
            return found
        ranks = len({key[0] for key in groups})
        return certain(found.total / ranks, found.tolerance / ranks)

    def _average(self, batch: Batch, rows: Rows, mode: str, factor: float) -> Shares:
        """What each sequence adds to its micro-batch's own aggregation."""
        value, size, slack = rows(batch)
        counts = per_sequence_counts(batch)
        weights: NDArray[np.int64] = np.ones_like(counts) if self.era.counts_empty else (counts > 0) * 1
        scale: Floats = np.full(batch.n_sequences, factor)
        if mode == "token-mean":
            weights = counts
        elif mode == "seq-mean-token-mean":  # where sequences without a token count, their mean is 0 / 0
            scale = scale / np.where(counts > 0, counts, np.nan if self.era.counts_empty else 1.0)
        elif mode == "seq-mean-token-sum-norm":
            scale = scale / _padded(batch, self.width)
            weights = np.zeros_like(counts) if self.era.sums_constant else weights
        return Shares(value * scale, size * np.abs(scale), weights, None if slack is None else slack * np.abs(scale))


def modes_of(era: Era) -> frozenset[str]:
    """The aggregations that a version has."""
    return frozenset(AGGREGATIONS) - (frozenset() if era.minor >= (0, 9) else frozenset({"token-sum"}))


@derived
def _anchored(batch: Batch) -> Batch:
    """The same batch with the policy being trained as the old one."""
    return replace(batch, columns={**batch.columns, "old_logprob": batch.columns["logprob"]}, scratch={})


def _single(state: Keyed) -> bool:
    """Whether a step has one mini-batch, gone through once."""
    return len({key[1:-1] for key in state.groups}) == 1


def _padded(batch: Batch, width: int | None) -> Floats:
    """Width of the micro-batch's tensors, NaN where it is not known."""
    column, otherwise = batch.get("padded_width"), np.nan if width is None else float(width)
    return np.full(batch.n_sequences, otherwise) if column is None else np.where(known(column), column, otherwise)
