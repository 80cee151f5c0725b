"""verl: how a loss per token becomes one number per mini-batch (``agg_loss``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, derived, flags_in, known, per_sequence_counts, real_rows
from rl_doctor.analyzer.recompute.registry import TOLERANCE, Entries, Hypothesis, Logged
from rl_doctor.analyzer.recompute.stages import MICROBATCH_OF_RANK, MINIBATCH, Shares, Terms, average, certain, sums_by
from rl_doctor.analyzer.recompute.variations.hypotheses import parted
from rl_doctor.analyzer.recompute.variations.measures import Part
from rl_doctor.analyzer.states import Keyed, Sums
from rl_doctor.store.batch import Batch

Rows = Callable[[Batch], tuple[Floats, Floats, Floats | None]]
"""Batch -> loss summed per sequence, size of its summands, and what may flip at a threshold, each ``[n_sequences]``."""

AGGREGATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "token-mean": (),
    "token-sum": (),
    "seq-mean-token-sum": ("global_batch_size",),
    "seq-mean-token-mean": ("global_batch_size",),
    "seq-mean-token-sum-norm": ("global_batch_size", "loss_scale_factor|padded_width"),
}
"""What each aggregation needs to be recorded of the mini-batch."""
READ: Final = ("batch_num_tokens", "loss_mask", "is_padding")
"""Columns that are read where the run has them: the normaliser of token-mean, or the mask that it counts."""


def aggregated(batch: Batch, rows: Rows, mode: str, factor: float = 1.0) -> Shares:
    """What each sequence adds to the aggregated loss of its mini-batch, over all ranks.

    Each rank multiplies its part by the number of ranks and the parts are averaged over the ranks, so that number cancels.
    """
    value, size, slack = rows(batch)
    counts = per_sequence_counts(batch)
    weights: NDArray[np.int64] = np.zeros(batch.n_sequences, np.int64)
    scale: Floats = np.full(batch.n_sequences, factor)
    if mode == "token-mean":
        normaliser = _context(batch, "batch_num_tokens")
        if normaliser is None:
            weights = _normalised(batch)
        else:
            scale = scale / normaliser
    elif mode != "token-sum":
        scale = scale / _required(batch, "global_batch_size")
    if mode == "seq-mean-token-mean":
        scale = scale / np.maximum(counts, 1)
    elif mode == "seq-mean-token-sum-norm":
        scale = scale / _horizon(batch)
    scale = np.where(counts > 0, scale, 0.0)
    return Shares(value * scale, size * np.abs(scale), weights, None if slack is None else slack * np.abs(scale))


def _normalised(batch: Batch) -> NDArray[np.int64]:
    """Tokens that the normaliser counts: those of the mask from before any was left out."""
    wider, mask = batch.get("loss_mask"), batch.get("response_mask")
    counts = per_sequence_counts(batch)
    if wider is None or mask is None:
        return counts
    both = flags_in(batch.splits, wider.astype(np.bool_) | mask.astype(np.bool_))
    return np.where(real_rows(batch), both, 0)


def _context(batch: Batch, name: str) -> Floats | None:
    """A column of the mini-batch as float64, NaN for null; None where the run lacks it."""
    column = batch.get(name)
    return None if column is None else np.where(known(column), column.astype(np.float64), np.nan)


def _required(batch: Batch, name: str) -> Floats:
    found = _context(batch, name)
    return np.full(batch.n_sequences, np.nan) if found is None else found


def _horizon(batch: Batch) -> Floats:
    """The configured constant; where it is not configured the padded width of the micro-batch."""
    factor, width = _context(batch, "loss_scale_factor"), _required(batch, "padded_width")
    return width if factor is None else np.where(np.isnan(factor), width, factor)


def each(state: Keyed, terms: Terms = ()) -> Entries:
    """One entry per key: its average."""
    return sum((certain(*average(sums, terms)) for sums in state.groups.values()), Entries())


def sums_of_means(state: Keyed, terms: Terms = ()) -> Entries:
    """One entry per mini-batch: the sum over micro-batches of each rank's plain average, averaged over the ranks.

    Keys are those of ``MICROBATCH_OF_RANK``.
    """
    found: dict[tuple[int, ...], list[tuple[int, float, float]]] = {}
    for key, sums in state.groups.items():
        found.setdefault(key[1:-1], []).append((key[0], *average(sums, terms)))
    total = Entries()
    for parts in found.values():
        ranks = len({rank for rank, _, _ in parts})
        total += certain(sum(value for _, value, _ in parts) / ranks, sum(slack for _, _, slack in parts) / ranks)
    return total


def _first_rank(state: Keyed) -> Entries:
    """One entry per mini-batch: the first rank's numerators, times the number of ranks, over the denominators of all."""
    ranks = {key[0] for key in state.groups}
    found: dict[tuple[int, ...], list[tuple[int, Sums]]] = {}
    for key, sums in state.groups.items():
        found.setdefault(key[1:-1], []).append((key[0], sums))
    total = Entries()
    for parts in found.values():
        weight = max(sum(sums.parts[0].count for _, sums in parts), 1)
        kept = [sums.parts for rank, sums in parts if rank == min(ranks)]
        value, slack = sum(part[0].value for part in kept), sum(TOLERANCE * part[1].value + part[2].value for part in kept)
        total += certain(len(ranks) * value / weight, len(ranks) * slack / weight)
    return total


def mini(
    name: str, metric: str | None, rows: Rows, mode: str, needs: tuple[str, ...], unit: str = "1",
    others: Callable[[], tuple[Part, ...]] = tuple, factor: float = 1.0,
) -> Logged:  # fmt: skip
    """A key with one entry per mini-batch: a loss, aggregated."""
    needs = (*needs, *AGGREGATIONS[mode])
    share = derived(lambda batch: aggregated(batch, rows, mode, factor))
    reduction = sums_by(MINIBATCH, share, needs=needs, optional=READ)

    def hypotheses() -> tuple[Hypothesis, ...]:
        elsewise = (*_other_aggregations(rows, mode, factor), *others())
        return (
            *parted(MINIBATCH, lambda terms: partial(each, terms=terms), needs, elsewise, READ),
            Hypothesis(
                "part of the first rank",
                "is the first rank's part of the sum alone, times the number of ranks, divided by what all ranks have",
                sums_by(MICROBATCH_OF_RANK, share, needs=needs, optional=READ),
                _first_rank,
            ),
        )

    return Logged(name, metric, unit, reduction, each, "step", hypotheses)


WORDS: Final = {
    "token-mean": "is a mean over the tokens of the mini-batch (token-mean)",
    "seq-mean-token-sum": "is a mean over sequences of the sum over each (seq-mean-token-sum)",
    "seq-mean-token-mean": "is a mean over sequences of the mean over each (seq-mean-token-mean)",
}


def _other_aggregations(rows: Rows, mode: str, factor: float) -> tuple[Part, ...]:
    def part(other: str) -> Part:
        return Part(other, WORDS[other], lambda batch: aggregated(batch, rows, other, factor), AGGREGATIONS[other])

    return tuple(part(other) for other in WORDS if other != mode)
