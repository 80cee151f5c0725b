"""Scores on held-out prompts; only the trainer's log has them."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.registry import logged_metric

_SOURCE: Final = "verl, metric_utils.process_validation_metrics; TRL, evaluate"

logged_metric(
    "val.mean_at_n", unit="reward", source=_SOURCE,
    formula="mean over prompts of mean over n of score",
    doc="Mean score on held-out prompts as logged: a reward or a share that is right, mean over the data sources that are always "
    "measured together.",
)  # fmt: skip
logged_metric(
    "val.best_at_n", unit="reward", source=_SOURCE,
    formula="mean over prompts of max over n of score",
    doc="Mean over prompts of the best of n scores on held-out prompts as logged, over data sources.",
)  # fmt: skip
logged_metric(
    "val.loss",
    unit="1",
    source="Hugging Face's Trainer, evaluate",
    formula="loss on held-out data",
    doc="Loss on held-out data as logged.",
)
