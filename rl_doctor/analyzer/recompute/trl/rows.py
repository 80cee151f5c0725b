"""Numbers per sequence from which TRL's numbers of a generation batch are made."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import (
    Floats,
    per_sequence_counts,
    per_sequence_sums,
    positions,
    selected,
    selected_splits,
    selection,
)
from rl_doctor.analyzer.formulas.segments import segment_extremes, segment_sums
from rl_doctor.analyzer.registry import PER_SEQUENCE_PREFIX, sequence_value
from rl_doctor.schema import ROLES
from rl_doctor.store.batch import Batch

_ASSISTANT: Final = ROLES.index("assistant")


@sequence_value("trl_tokens", needs=("response_mask",))
def _tokens(batch: Batch) -> NDArray[np.int64]:
    return per_sequence_counts(batch)


@sequence_value("trl_between", needs=("response_mask",))
def _between(batch: Batch) -> Floats:
    """Tokens that the mask leaves out between others that it has: what tools and environments wrote."""
    counts = per_sequence_counts(batch)
    first, last = segment_extremes(positions(batch)[selection(batch)].astype(np.float64), selected_splits(batch))
    return np.where(counts > 0, last - first + 1.0 - counts, 0.0)


@sequence_value("trl_generated", needs=("response_length", "role"))
def _generated(batch: Batch) -> Floats:
    inside = positions(batch) < np.repeat(batch.columns["response_length"], batch.lengths)
    return segment_sums((inside & (batch.columns["role"] == _ASSISTANT)).astype(np.float64), batch.splits)


@sequence_value("trl_reference_k1", needs=("old_logprob", "ref_logprob", "response_mask"))
def _reference_k1(batch: Batch) -> Floats:
    return per_sequence_sums(batch, selected(batch, "old_logprob") - selected(batch, "ref_logprob"))


@sequence_value("trl_reference_k1_size", needs=("old_logprob", "ref_logprob", "response_mask"))
def _reference_k1_size(batch: Batch) -> Floats:
    return per_sequence_sums(batch, np.abs(selected(batch, "old_logprob") - selected(batch, "ref_logprob")))


def _sampling_difference(batch: Batch) -> tuple[Floats, NDArray[np.bool_]]:
    difference = np.abs(selected(batch, "old_logprob") - selected(batch, "rollout_logprob"))
    return difference, ~np.isnan(difference)


@sequence_value("trl_sampling_sum", needs=("old_logprob", "rollout_logprob", "response_mask"))
def _sampling_sum(batch: Batch) -> Floats:
    difference, scored = _sampling_difference(batch)
    return per_sequence_sums(batch, np.where(scored, difference, 0.0))


@sequence_value("trl_sampling_tokens", needs=("old_logprob", "rollout_logprob", "response_mask"))
def _sampling_tokens(batch: Batch) -> Floats:
    return per_sequence_sums(batch, _sampling_difference(batch)[1].astype(np.float64))


@sequence_value("trl_sampling_max", needs=("old_logprob", "rollout_logprob", "response_mask"))
def _sampling_max(batch: Batch) -> Floats:
    difference, scored = _sampling_difference(batch)
    _, highest = segment_extremes(np.where(scored, difference, 0.0), selected_splits(batch))
    return np.where(np.isnan(highest), 0.0, highest)


@sequence_value("trl_weight_sum", needs=("is_weight", "response_mask"))
def _weight_sum(batch: Batch) -> Floats:
    return per_sequence_sums(batch, selected(batch, "is_weight"))


@sequence_value("trl_weight_min", needs=("is_weight", "response_mask"))
def _weight_min(batch: Batch) -> Floats:
    return segment_extremes(selected(batch, "is_weight"), selected_splits(batch))[0]


@sequence_value("trl_weight_max", needs=("is_weight", "response_mask"))
def _weight_max(batch: Batch) -> Floats:
    return segment_extremes(selected(batch, "is_weight"), selected_splits(batch))[1]


@sequence_value("trl_weight_first", needs=("is_weight", "response_mask"))
def first_weight(batch: Batch) -> Floats:
    """The weight at the first token, 1 without one: that of the sequence where it has but one."""
    covered = per_sequence_counts(batch) > 0
    found = np.ones(batch.n_sequences)
    found[covered] = selected(batch, "is_weight")[selected_splits(batch)[:-1][covered]]
    return found


def value(name: str) -> str:
    """The engine's name of one of the values above."""
    return f"{PER_SEQUENCE_PREFIX}trl_{name}"
