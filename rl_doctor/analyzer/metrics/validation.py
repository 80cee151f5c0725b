"""Scores on held-out prompts; only the trainer's log has them."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.registry import logged_metric

_SOURCE: Final = "verl, metric_utils.process_validation_metrics; TRL, evaluate"

logged_metric(
    "val.mean_at_n", unit="reward", source=_SOURCE,
    doc="Mean validation score as logged, over data sources.",
)  # fmt: skip
logged_metric(
    "val.best_at_n", unit="reward", source=_SOURCE,
    doc="Mean over prompts of the best of n validation scores as logged, over data sources.",
)  # fmt: skip
