"""How often the data of a step and of a generation batch were used."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import FIRST_STEP, real_rows
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.rollouts import PASSES
from rl_doctor.analyzer.states import Extremes, Keyed, Sum, Sums, mean
from rl_doctor.store.batch import Batch


def _distinct(batch: Batch, names: tuple[str, ...]) -> Keyed:
    """One key per distinct combination of the integer columns ``names`` that the batch has, with its number of rows."""
    real = real_rows(batch)
    present = [batch.columns[name][real].astype(np.int64) for name in names if name in batch.columns]
    keys, counts = np.unique(np.stack(present, axis=1), axis=0, return_counts=True)
    return Keyed({tuple(key): Sums((Sum.counted(n, n),)) for key, n in zip(keys.tolist(), counts.tolist(), strict=True)})


@reduction(zero=Keyed({}), needs=("epoch",))
def _epochs(batch: Batch) -> Keyed:
    return _distinct(batch, ("epoch",))


@reduction(zero=Keyed({}), needs=("epoch", "minibatch"), optional=(FIRST_STEP,))
def _minibatches(batch: Batch) -> Keyed:
    return _distinct(batch, ("epoch", "minibatch", FIRST_STEP))


@reduction(zero=Sum(), needs=(PASSES,), level="rollout")
def _passes(batch: Batch) -> Sum:
    return Sum.of(batch.columns[PASSES].astype(np.float64))


@reduction(zero=Extremes(), needs=(PASSES,), level="rollout")
def _pass_ends(batch: Batch) -> Extremes:
    return Extremes.of(batch.columns[PASSES].astype(np.float64))


_COUNT: Final = "counting over the rows of the step"
_BY_UID: Final = "counting rows by uid over the generation batch"

metric(
    "update.epochs",
    _epochs,
    lambda s: float(len(s.groups)),
    unit="epochs",
    source=_COUNT,
    formula="number of epochs",
    doc="Distinct epochs in the step.",
)
metric(
    "update.minibatches", _minibatches, lambda s: float(len(s.groups)), unit="minibatches", source=_COUNT,
    formula="number of (rollout_step, epoch, minibatch)",
    doc="Distinct pairs of epoch and mini-batch in the step, for each generation batch apart.",
)  # fmt: skip
metric(
    "update.passes_mean", _passes, mean, unit="passes", source=_BY_UID,
    formula="mean_i passes",
    doc="Mean number of update passes over a sequence of the generation batch.",
)  # fmt: skip
metric(
    "update.passes_min",
    _pass_ends,
    lambda s: s.min,
    unit="passes",
    source=_BY_UID,
    formula="min_i passes",
    doc="Fewest passes over a sequence.",
)
metric(
    "update.passes_max",
    _pass_ends,
    lambda s: s.max,
    unit="passes",
    source=_BY_UID,
    formula="max_i passes",
    doc="Most passes over a sequence.",
)
