"""Rows in which a column of logprobs is exactly 0 from end to end, against what the other columns say of the same tokens."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import FIRST_STEP, Bools, filled_rows, first_tokens, picked, selected_splits, span, tokens_of_rows
from rl_doctor.analyzer.formulas.segments import segment_sums
from rl_doctor.analyzer.metrics.mismatch import PLACEHOLDER_BELOW, bypassed, first_pass
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, mean
from rl_doctor.schema import LOGPROBS
from rl_doctor.store.batch import Batch

TRAINERS: Final = tuple(name for name in LOGPROBS if name != "rollout_logprob")
"""Columns that the trainer fills; of the engine's single tokens may be missing, which is counted with the mismatch."""
_FROZEN: Final = "ref_logprob"
"""What is unlikely to the reference a trained policy may be certain of: it tells nothing of the policy's own columns."""
_PASSES: Final = ("minibatch", "epoch", FIRST_STEP)


def _others(column: str) -> tuple[str, ...]:
    """Columns that cannot be far from 0 at a token of which this one is rightly certain."""
    return tuple(name for name in LOGPROBS if name != column and (column == _FROZEN or name != _FROZEN))


def _unfilled(column: str, batch: Batch) -> Sum:
    """Of the rows with a trained token, those that are 0 at each while another column is below ``PLACEHOLDER_BELOW`` at one."""
    splits = selected_splits(batch)
    rows = filled_rows(splits)[0]
    if span(batch, column)[1] < 0.0:  # the usual case costs nothing
        return Sum.counted(0, len(rows))
    rows_at_0 = rows[first_tokens(batch, column) == 0.0]  # most rows tell by their first token
    if not rows_at_0.size:
        return Sum.counted(0, len(rows))
    index, inner = tokens_of_rows(splits, rows_at_0)
    whole = segment_sums(picked(batch, column)[index] != 0.0, inner) == 0
    same = _same_policy(batch)[rows_at_0]
    uncertain = np.zeros(len(rows_at_0), np.bool_)
    for other in (name for name in _others(column) if name in batch.columns):
        found = segment_sums(_uncertain(picked(batch, other)[index]), inner) > 0
        uncertain |= found if column == _FROZEN or "logprob" not in {column, other} else found & same
    whole &= uncertain
    if column == "old_logprob":
        whole &= ~bypassed(batch)[rows_at_0]  # a copy of what the engine returned
    return Sum.counted(int(np.count_nonzero(whole)), len(rows))


def _same_policy(batch: Batch) -> Bools:
    """Bool ``[n_sequences]``: rows before any update, or of which that is not known.

    An update that is far too large may make a policy certain of anything, and take it away from what it was certain of.
    """
    first = first_pass(batch)
    return np.ones(batch.n_sequences, np.bool_) if first is None else first


def _uncertain(values: NDArray[Any]) -> Bools:
    found: Bools = np.isfinite(values) & (values < PLACEHOLDER_BELOW)
    return found


for _column in TRAINERS:
    metric(
        f"data.{_column}_unfilled_frac",
        reduction(
            zero=Sum(), needs=(_column, "|".join(_others(_column))),
            optional=(*_others(_column), *_PASSES),
        )(partial(_unfilled, _column)),
        mean, unit="1", source="an array that nobody wrote to is 0, which is probability 1",
        formula=f"share_i[{_column} = 0 at all t in Ti, another logprob < -1 at one]",
        doc=f"Share of rows whose {_column} is exactly 0 at every trained token, though another logprob is below -1 at one.",
    )  # fmt: skip
