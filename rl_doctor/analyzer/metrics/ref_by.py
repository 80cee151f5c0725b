"""Where the KL to the reference concentrates, and what it is at tokens that the mask leaves out."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer import slices
from rl_doctor.analyzer.derive import column_sums, per_sequence_counts, real_rows, row_sums, selected, selection, spread
from rl_doctor.analyzer.metrics.policy import SCHULMAN
from rl_doctor.analyzer.metrics.ref import kl_sums
from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Named, Sum, Sums, Top, mean
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("logprob", "ref_logprob")
_K1, _ABS = 0, 3
"""Where these estimators stand in ``kl_sums``."""
_LEAST: Final = 8
"""Trained tokens below which a row's mean is not told."""


def _of_sequences(by: str, batch: Batch) -> Named:
    return slices.of_sequences(batch, by, kl_sums(batch)[[_K1, _ABS]], per_sequence_counts(batch))


def _of_tokens(by: str, batch: Batch) -> Named:
    ahead = selected(batch, "logprob") - selected(batch, "ref_logprob")
    return slices.of_tokens(batch, by, np.stack([ahead, np.abs(ahead)]), np.isfinite(ahead))


for _by, (_columns, _) in {**slices.SEQUENCE_SLICES, **slices.TOKEN_SLICES}.items():
    _function = partial(_of_sequences if _by in slices.SEQUENCE_SLICES else _of_tokens, _by)
    _reduction = Reduction(_function, Named({}), (*_NEEDS, *_columns), (), "token")
    for _part, (_name, _formula, _what) in enumerate((("k1", "-y", "Mean k1"), ("abs", "|y|", "Mean |y|"))):
        metric(
            f"ref.{_name}_by.{_by}.", _reduction, mean, part=_part, unit="nat", source=SCHULMAN,
            formula=f"mean {_formula} of each part",
            doc=f"{_what} by {_by.replace('_', ' ')}, y = ref_logprob - logprob, trained tokens.",
        )  # fmt: skip


@reduction(zero=Top(), needs=(*_NEEDS, "sequence"), optional=("uid",))
def _rows(batch: Batch) -> Top:
    counts = per_sequence_counts(batch)
    told = np.flatnonzero(counts >= _LEAST)
    uid = batch.get("uid")
    values = kl_sums(batch)[_ABS][told] / counts[told]
    return Top.of(values, batch.columns["sequence"][told], None if uid is None else uid[told])


metric(
    "ref.worst_rows", _rows, lambda top: top.largest, unit="nat", source="arithmetic",
    formula="max_i mean_Ti |y|, 8 tokens or more",
    doc="Largest mean |y| of a row; the rows themselves are told as samples.",
)  # fmt: skip


@reduction(zero=Sums(), needs=(*_NEEDS, "response_mask"))
def _left_out(batch: Batch) -> Sums:
    """Sums of k1 and |y| over the stored tokens of real rows that the mask leaves out."""
    ahead = batch.columns["logprob"].astype(np.float64) - batch.columns["ref_logprob"]
    chosen = ~selection(batch) & np.isfinite(ahead) & spread(batch, real_rows(batch))
    count = int(np.count_nonzero(chosen))
    return Sums((Sum.of(ahead[chosen], count), Sum.of(np.abs(ahead[chosen]), count)))


for _part, (_name, _formula, _what) in enumerate((("k1", "-y", "Mean k1"), ("abs", "|y|", "Mean |y|"))):
    metric(
        f"penalty.unmasked_kl_{_name}", _left_out, mean, part=_part, unit="nat", source=SCHULMAN,
        formula=f"mean over t with m = 0 of {_formula}",
        doc=f"{_what} over stored tokens that are not trained on: observations, prompts, padding.",
    )  # fmt: skip


@reduction(zero=Sums(), needs=_NEEDS)
def _surprise(batch: Batch) -> Sums:
    return row_sums(batch, np.stack([-column_sums(batch, "logprob"), -column_sums(batch, "ref_logprob")]))


for _part, (_name, _column) in enumerate((("own", "logprob"), ("ref", "ref_logprob"))):
    metric(
        f"ref.{_name}_surprise", _surprise, mean, part=_part, unit="nat", source="arithmetic", formula=f"mean_T -{_column}",
        doc=f"Mean of -{_column} over the tokens trained on.",
    )  # fmt: skip
