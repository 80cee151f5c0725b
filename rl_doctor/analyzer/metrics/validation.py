"""Scores on held-out prompts; only the trainer's log has them."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.registry import Reduction, metric, reduction
from rl_doctor.analyzer.states import Sum, mean
from rl_doctor.store.batch import Batch

_SOURCE: Final = "verl, metric_utils.process_validation_metrics; TRL, evaluate"


def _score(column: str) -> Reduction:
    @reduction(zero=Sum(), needs=(column,), level="logged")
    def total(batch: Batch) -> Sum:
        return Sum.of(batch.columns[column])

    return total


metric(
    "val.mean_at_n", _score("val.mean_at_n"), mean, unit="reward", source=_SOURCE,
    doc="Mean validation score as logged, over data sources.",
)  # fmt: skip
metric(
    "val.best_at_n", _score("val.best_at_n"), mean, unit="reward", source=_SOURCE,
    doc="Mean over prompts of the best of n validation scores as logged, over data sources.",
)  # fmt: skip
