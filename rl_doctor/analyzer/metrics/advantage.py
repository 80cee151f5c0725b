"""Advantages and returns as recorded, and how well each estimator reproduces them."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer import kernels
from rl_doctor.analyzer.derive import (
    Floats,
    columns_of,
    first_tokens,
    of_rows,
    per_sequence_counts,
    picked,
    row_sums,
    selected_splits,
    tokens,
)
from rl_doctor.analyzer.kernels import AdvantageRows
from rl_doctor.analyzer.moments import std
from rl_doctor.analyzer.registry import metric, reduction, sequence_value
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.store.batch import Batch

PER_SEQUENCE: Final = "per_sequence.advantage"
_COUNT: Final = "arithmetic over the tokens trained on"


@sequence_value("advantage", needs=("advantage",), optional=("response_mask", "is_padding"))
def first_advantage(batch: Batch) -> Floats:
    """Advantage of the first token trained on per sequence, ``[n_sequences]``; NaN for a sequence without one."""
    return np.asarray(of_rows(batch, first_tokens(batch, "advantage").astype(np.float64), np.nan))


def _rows(batch: Batch, column: str) -> AdvantageRows:
    """One pass over the column at the selected tokens; all ``[..., n_sequences]``, the ends NaN without a selected token."""
    key = ("advantages", column)
    if key not in batch.scratch:
        (values,) = columns_of(batch, column)
        found = kernels.advantages(values, tokens(batch), kernels.of(batch.run_tokens))
        low, high = (of_rows(batch, ends, np.nan) for ends in (found.low, found.high))
        batch.scratch[key] = AdvantageRows(of_rows(batch, found.sums), of_rows(batch, found.zeros), low, high)
    rows: AdvantageRows = batch.scratch[key]
    return rows


def token_sums(batch: Batch) -> Floats:
    """Sums over the selected tokens of the advantage, its square and its absolute value, float64 ``[3, n_sequences]``."""
    return _rows(batch, "advantage").sums


def _declare(prefix: str, column: str, unit: str, what: str) -> None:
    @reduction(zero=Sums(), needs=(column,))
    def sums(batch: Batch) -> Sums:
        return row_sums(batch, _rows(batch, column).sums[:2])

    @reduction(zero=Extremes(), needs=(column,))
    def ends(batch: Batch) -> Extremes:
        rows, filled = _rows(batch, column), per_sequence_counts(batch) > 0
        low, high = rows.low[filled].min(initial=np.inf), rows.high[filled].max(initial=-np.inf)
        if np.isnan(low):
            return Extremes.of(picked(batch, column))
        return Extremes(float(low), float(high), int(selected_splits(batch)[-1]))

    metric(
        f"{prefix}.mean",
        sums,
        mean,
        part=0,
        unit=unit,
        source=_COUNT,
        formula=f"mean_T {what}",
        doc=f"Mean {what} over the tokens trained on.",
    )
    metric(
        f"{prefix}.std", sums, lambda s: std(s, 1), unit=unit, source=_COUNT,
        formula=f"sqrt(sum_T ({what} - mean_T {what})^2 / (N - 1))",
        doc=f"Standard deviation of the {what} over the tokens trained on, ddof 1.",
    )  # fmt: skip
    metric(f"{prefix}.min", ends, lambda s: s.min, unit=unit, source=_COUNT, formula=f"min_T {what}", doc=f"Smallest {what}.")
    metric(f"{prefix}.max", ends, lambda s: s.max, unit=unit, source=_COUNT, formula=f"max_T {what}", doc=f"Largest {what}.")


_declare("adv", "advantage", "1", "advantage")
_declare("return", "return", "reward", "return")


@reduction(zero=Sums(), needs=("advantage",))
def _shape(batch: Batch) -> Sums:
    rows, counts = _rows(batch, "advantage"), per_sequence_counts(batch)
    filled = counts > 0
    total, _, size = rows.sums
    return Sums(
        (
            *row_sums(batch, size[np.newaxis]).parts,
            Sum.counted(int(rows.zeros.sum()), int(counts.sum())),
            Sum.of(total[filled] / counts[filled]),
            Sum.counted(int(np.count_nonzero(rows.low[filled] != rows.high[filled])), int(np.count_nonzero(filled))),
        )
    )


metric(
    "adv.abs_mean",
    _shape,
    mean,
    part=0,
    unit="1",
    source=_COUNT,
    formula="mean_T |A|",
    doc="Mean absolute advantage over the tokens trained on.",
)
metric(
    "adv.zero_frac",
    _shape,
    mean,
    part=1,
    unit="1",
    source=_COUNT,
    formula="share_T[A = 0]",
    doc="Share of tokens trained on with advantage 0.",
)
metric(
    "adv.sequence_mean", _shape, mean, part=2, unit="1", source=_COUNT,
    formula="mean_i mean_Ti A",
    doc="Mean over sequences of their mean advantage; 0 for advantages that are centred by group, whatever the lengths.",
)  # fmt: skip
metric(
    "adv.varying_frac", _shape, mean, part=3, unit="1", source=_COUNT,
    formula="share_i[max_Ti A != min_Ti A]",
    doc="Share of sequences whose advantage is not the same at all tokens trained on.",
)  # fmt: skip
