"""Gradient norm and learning rate, from the rows of a run file or from the trainer's log."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, real_rows
from rl_doctor.analyzer.logged import CLIP_EPS
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, mean
from rl_doctor.store.batch import Batch


def _values(batch: Batch, column: str) -> Floats:
    """Values of a scalar column; NaN is a null in a row of a run file."""
    values: Floats = batch.columns[column]
    return values[real_rows(batch) & ~np.isnan(values)]


@reduction(zero=Sum(), needs=("grad_norm",), level="logged")
def _grad_norm(batch: Batch) -> Sum:
    return Sum.of(_values(batch, "grad_norm"))


@reduction(zero=Extremes(), needs=("grad_norm",), level="logged")
def _grad_norm_ends(batch: Batch) -> Extremes:
    return Extremes.of(_values(batch, "grad_norm"))


@reduction(zero=Sum(), needs=("grad_norm", "config.max_grad_norm"), level="logged")
def _clip_coef(batch: Batch) -> Sum:
    limit = batch.info.config.max_grad_norm or 0.0
    return Sum.of(np.minimum(1.0, limit / (_values(batch, "grad_norm") + CLIP_EPS)))


@reduction(zero=Sum(), needs=("learning_rate",), level="logged")
def _learning_rate(batch: Batch) -> Sum:
    return Sum.of(_values(batch, "learning_rate"))


_SOURCE: Final = "the trainer's own value"

metric(
    "optim.grad_norm", _grad_norm, mean, unit="1", source=_SOURCE,
    formula="|gradient| before clipping",
    doc="Gradient norm before clipping, mean over the rows of the step, or as logged.",
)  # fmt: skip
metric(
    "optim.grad_norm_max", _grad_norm_ends, lambda s: s.max, unit="1", source=_SOURCE,
    formula="max over rows of grad_norm",
    doc="Largest gradient norm before clipping among the rows of the step, or as logged.",
)  # fmt: skip
metric(
    "optim.clip_coef", _clip_coef, mean, unit="1", source="torch.nn.utils.clip_grad_norm_, PyTorch 2.13",
    formula="min(1, max_grad_norm / (grad_norm + 1e-6))",
    doc="min(1, max_grad_norm / (grad_norm + 1e-6)), by which clipping scales the gradient; mean over the rows of the step.",
)  # fmt: skip
metric(
    "optim.learning_rate", _learning_rate, mean, unit="1", source=_SOURCE,
    formula="learning_rate",
    doc="Learning rate, mean over the rows of the step, or as logged.",
)  # fmt: skip
