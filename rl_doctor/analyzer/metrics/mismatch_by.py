"""Where the difference between engine and trainer concentrates."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer import slices
from rl_doctor.analyzer.derive import FIRST_STEP, selected, selection
from rl_doctor.analyzer.metrics.mismatch import possible, rollout_pair, rollout_rows, trainer_side
from rl_doctor.analyzer.registry import Reduction, metric
from rl_doctor.analyzer.states import Named, Top, mean
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("rollout_logprob", "old_logprob|logprob")
_OPTIONAL: Final = ("old_logprob", "logprob", "minibatch", "epoch", FIRST_STEP, "response_length")
_LEAST: Final = 8
"""Pairs below which a row's mean is not told."""


def _of_sequences(by: str, batch: Batch) -> Named:
    pair, rows = rollout_pair(batch), rollout_rows(batch)
    if pair is None or rows is None:
        return Named({})
    return slices.of_sequences(batch, by, rows.sums, np.diff(pair.splits))


def _of_tokens(by: str, batch: Batch) -> Named:
    trainer = trainer_side(batch)
    if trainer is None:
        return Named({})
    rollout, own = selected(batch, "rollout_logprob"), trainer[selection(batch)].astype(np.float64)
    fine = possible(rollout) & possible(own)
    return slices.of_tokens(batch, by, np.abs(own - rollout)[None], fine)


def _rows(batch: Batch) -> Top:
    pair, rows = rollout_pair(batch), rollout_rows(batch)
    if pair is None or rows is None:
        return Top()
    counts = np.diff(pair.splits)
    told = np.flatnonzero(counts >= _LEAST)
    uid = batch.get("uid")
    return Top.of(rows.sums[0][told] / counts[told], batch.columns["sequence"][told], None if uid is None else uid[told])


for _by, (_columns, _) in {**slices.SEQUENCE_SLICES, **slices.TOKEN_SLICES}.items():
    _function = partial(_of_sequences if _by in slices.SEQUENCE_SLICES else _of_tokens, _by)
    metric(
        f"mismatch.abs_by.{_by}.", Reduction(_function, Named({}), (*_NEEDS, *_columns), _OPTIONAL, "token"), mean, part=0,
        unit="nat", source="where a difference concentrates tells its cause", formula="mean |d| of each part",
        doc=f"Mean |d| by {_by.replace('_', ' ')}, d = trainer's logprob - rollout_logprob, trained tokens.",
    )  # fmt: skip

metric(
    "mismatch.worst_rows", Reduction(_rows, Top(), (*_NEEDS, "sequence"), (*_OPTIONAL, "uid"), "token"), lambda top: top.largest,
    unit="nat", source="arithmetic", formula="max_i mean_Ti |d|, 8 tokens or more",
    doc="Largest mean |d| of a row; the rows themselves are told as samples.",
)  # fmt: skip
