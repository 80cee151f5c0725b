"""Which of several recorded policies the engine sampled from, and whether a step holds rows that no update has touched."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer import kernels
from rl_doctor.analyzer.derive import FIRST_STEP, columns_of, filled_rows, in_rows, picked, selected_splits, tokens
from rl_doctor.analyzer.formulas.segments import kept_splits
from rl_doctor.analyzer.metrics.mismatch import all_possible, bypassed, first_pass, pass_pair, possible
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.analyzer.stretches import Stretches
from rl_doctor.store.batch import Batch
from rl_doctor.store.rows import splits_of


def _distances(batch: Batch, pairs: tuple[tuple[str, str], ...], *, first: bool) -> Sums:
    """Sums of |a - b| for each pair of columns, over the trained tokens at which all columns are finite."""
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    splits, chosen = selected_splits(batch), tokens(batch)
    rows = first_pass(batch) if first else None
    if rows is not None and not rows.all():
        chosen, splits = chosen.of(rows[filled_rows(splits)[0]]), splits_of(np.where(rows, np.diff(splits), 0))
    if all(all_possible(batch, name) for name in names):
        values = dict(zip(names, columns_of(batch, *names), strict=True))
    else:
        kept = [picked(batch, name) for name in names]
        if rows is not None:
            kept = [column[in_rows(selected_splits(batch), rows)] for column in kept]
        keep = np.logical_and.reduce([possible(column) for column in kept])
        splits, values = kept_splits(splits, keep), {name: column[keep] for name, column in zip(names, kept, strict=True)}
        chosen = Stretches.whole(filled_rows(splits)[1])
    found = kernels.of(batch.run_tokens).distances(tuple((values[a], values[b]) for a, b in pairs), chosen)
    return Sums.of(found, int(splits[-1]))


_PASSES: Final = ("minibatch", "epoch", FIRST_STEP)


@reduction(zero=Sums(), needs=("rollout_logprob", "old_logprob", "logprob"), optional=_PASSES)
def _nearest(batch: Batch) -> Sums:
    pairs = (("rollout_logprob", "old_logprob"), ("rollout_logprob", "logprob"), ("old_logprob", "logprob"))
    return _distances(batch, pairs, first=True)


@reduction(zero=Sums(), needs=("rollout_logprob", "old_logprob", "ref_logprob"))
def _reference(batch: Batch) -> Sums:
    return _distances(batch, (("rollout_logprob", "ref_logprob"), ("old_logprob", "ref_logprob")), first=False)


@reduction(zero=Sums(), needs=("old_logprob", "logprob", "ref_logprob"), optional=_PASSES)
def _old_reference(batch: Batch) -> Sums:
    return _distances(batch, (("old_logprob", "ref_logprob"), ("logprob", "ref_logprob")), first=True)


for _name, _of, _index, _formula, _doc in (
    (
        "rollout_to_old",
        _nearest,
        0,
        "|rollout_logprob - old_logprob|",
        "Mean |rollout_logprob - old_logprob|, first mini-batch where known.",
    ),
    (
        "rollout_to_new",
        _nearest,
        1,
        "|rollout_logprob - logprob|",
        "Mean |rollout_logprob - logprob|, first mini-batch where known.",
    ),
    (
        "old_to_new",
        _nearest,
        2,
        "|logprob - old_logprob|",
        "Mean |logprob - old_logprob| at the same tokens, first mini-batch where known.",
    ),
    (
        "rollout_to_ref",
        _reference,
        0,
        "|rollout_logprob - ref_logprob|",
        "Mean |rollout_logprob - ref_logprob|: small if the engine samples the reference.",
    ),
    ("old_to_ref", _reference, 1, "|old_logprob - ref_logprob|", "Mean |old_logprob - ref_logprob| at the same tokens."),
    (
        "first_old_to_ref",
        _old_reference,
        0,
        "|old_logprob - ref_logprob|",
        "Mean |old_logprob - ref_logprob|, first mini-batch where known.",
    ),
    (
        "first_new_to_ref",
        _old_reference,
        1,
        "|logprob - ref_logprob|",
        "Mean |logprob - ref_logprob|, first mini-batch where known.",
    ),
):
    metric(
        f"mismatch.{_name}",
        _of,
        mean,
        part=_index,
        unit="nat",
        source="the nearest of several policies is the one that sampled",
        formula=f"mean_T {_formula}",
        doc=_doc,
    )


@reduction(zero=Extremes(), needs=("logprob", "old_logprob"), optional=("rollout_logprob", *_PASSES))
def _calmest(batch: Batch) -> Extremes:
    """Mean |logprob - old_logprob| per row of at least 8 tokens whose old_logprob is not the engine's."""
    if first_pass(batch) is not None:
        return Extremes()
    pair = pass_pair(batch)
    counts = np.diff(pair.splits)
    rows = (counts >= 8) & ~bypassed(batch)
    return Extremes.of(pair.rows.sums[0][rows] / counts[rows])


metric(
    "mismatch.calmest_row_abs",
    _calmest,
    lambda s: s.low,
    unit="nat",
    source="a step that holds a first mini-batch holds rows whose ratio is 1",
    formula="min_i mean_Ti |x|, 8 tokens or more",
    doc="Smallest mean |logprob - old_logprob| of any row with at least 8 trained tokens, where mini-batches are not known.",
)


@reduction(zero=Sum(), needs=("rollout_logprob", "old_logprob"))
def _bypass(batch: Batch) -> Sum:
    return Sum.of(bypassed(batch).astype(np.float64))


metric(
    "mismatch.bypass_frac",
    _bypass,
    mean,
    unit="1",
    source="decoupled and bypass modes of asynchronous trainers",
    formula="share_i[old_logprob = rollout_logprob at all t in Ti]",
    doc="Share of rows whose old_logprob repeats rollout_logprob bit by bit: the ratio itself then corrects for staleness.",
)
