"""Values that cannot be: logprobs above 0, impossible lengths."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Bools, finite, known, selected_splits, selection, span, spread
from rl_doctor.analyzer.formulas.segments import segment_sums
from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.schema import LOGPROBS
from rl_doctor.store.batch import Batch


def _trained(batch: Batch, column: str) -> Bools:
    """Bool ``[n_tokens]``: trained tokens at which the column is finite."""
    return selection(batch) & finite(batch, column)


def _largest(column: str) -> Reduction:
    @reduction(zero=Extremes(), needs=(column,))
    def largest(batch: Batch) -> Extremes:
        low, high = span(batch, column)
        if np.isfinite(low) and np.isfinite(high):
            return Extremes(low, high, int(selected_splits(batch)[-1]))
        return Extremes.of(batch.columns[column][_trained(batch, column)])

    return largest


def _positive(column: str) -> Reduction:
    @reduction(zero=Sums(), needs=(column,))
    def counted(batch: Batch) -> Sums:
        low, high = span(batch, column)
        if np.isfinite(low) and high <= 0.0:
            return Sums((Sum(count=int(selected_splits(batch)[-1])), Sum()))
        values, fine = batch.columns[column], _trained(batch, column)
        above = fine & (values > 0.0)
        count = int(np.count_nonzero(fine))
        if not above.any():
            return Sums((Sum(count=count), Sum()))
        told = fine & spread(batch, segment_sums(above, batch.splits) > 0) & (values != 0.0)
        coarse = told & ((values.astype(np.float32).view(np.uint32) & 0xFFFF) == 0)
        return Sums((Sum.counted(int(above.sum()), count), Sum.counted(int(coarse.sum()), int(told.sum()))))

    return counted


for _column in LOGPROBS:
    metric(
        f"data.{_column}_max",
        _largest(_column),
        lambda s: s.high,
        unit="nat",
        source="a probability is at most 1",
        formula=f"max_T {_column}",
        doc=f"Largest {_column} at a trained token.",
    )
    _counts = _positive(_column)
    metric(
        f"data.{_column}_positive_frac",
        _counts,
        mean,
        part=0,
        unit="1",
        source="a probability is at most 1",
        formula=f"share_T[{_column} > 0]",
        doc=f"Share of trained tokens whose {_column} is above 0.",
    )
    metric(
        f"data.{_column}_coarse_frac",
        _counts,
        mean,
        part=1,
        unit="1",
        source="bfloat16 keeps the upper 16 bits of a float32",
        formula=f"share_T[{_column} = bfloat16({_column})], {_column} != 0, rows with any above 0",
        doc=f"Share of the non-zero values of {_column} that bfloat16 can hold exactly, in rows with a value above 0.",
    )


_LENGTHS: Final = ("prompt_length", "response_length", "stored_length", "prompt_loss_tokens", "turns", "left_padding")


@reduction(zero=Sums(), optional=_LENGTHS)
def _lengths(batch: Batch) -> Sums:
    """Rows with a negative length; rows whose lengths contradict each other."""
    columns = {name: batch.columns[name] for name in _LENGTHS if name in batch.columns}
    there = np.zeros(batch.n_sequences, np.bool_)
    negative, contradicting = there.copy(), there.copy()
    for values in columns.values():
        there |= known(values)
        negative |= known(values) & (values < 0)
    if (stored := columns.get("stored_length")) is not None:
        tokens = batch.lengths
        contradicting |= known(stored) & (stored != tokens) & (tokens > 0)
    if "prompt_loss_tokens" in columns and "prompt_length" in columns:
        in_loss, prompt = columns["prompt_loss_tokens"], columns["prompt_length"]
        contradicting |= known(in_loss) & known(prompt) & (in_loss > prompt)
    count = int(there.sum())
    return Sums((Sum.counted(int(negative.sum()), count), Sum.counted(int(contradicting.sum()), count)))


metric(
    "data.negative_length_frac",
    _lengths,
    mean,
    part=0,
    unit="1",
    source="arithmetic",
    formula="share_i[length < 0]",
    doc="Share of rows with a negative length.",
)
metric(
    "data.contradicting_length_frac",
    _lengths,
    mean,
    part=1,
    unit="1",
    source="arithmetic",
    formula="share_i[stored_length != tokens stored or prompt_loss_tokens > prompt_length]",
    doc="Share of rows whose stored_length is not the number of tokens stored, or with more prompt loss tokens than prompt.",
)
