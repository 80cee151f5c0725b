"""The value function: of the run's own rows, or of the passes of its critic; else as the trainer logs it."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import derived, per_sequence_sums, row_sums, selected
from rl_doctor.analyzer.formulas.value import clipped_value_errors
from rl_doctor.analyzer.moments import variance
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_PPO: Final = "PPO, arXiv:1707.06347, section 5, with the clipping of OpenAI baselines; verl, core_algos.compute_value_loss"
_NEEDS: Final = ("value", "old_value", "return", "config.value_clip")


@derived
def _losses(batch: Batch) -> Sums:
    """Half the larger squared error, and where it is that of the clipped value; NaN where an input is."""
    value, old, returns = (selected(batch, name) for name in _NEEDS[:3])
    plain, clipped = clipped_value_errors(value, old, returns, batch.info.config.value_clip or 0.0)
    larger = np.maximum(plain, clipped)
    binds = np.where(np.isnan(larger), np.nan, clipped > plain)
    return row_sums(batch, np.stack([per_sequence_sums(batch, 0.5 * larger), per_sequence_sums(batch, binds)]))


@reduction(zero=Sums(), needs=_NEEDS)
def _clipped(batch: Batch) -> Sums:
    return _losses(batch)


@reduction(zero=Sum(), needs=("value",))
def _value(batch: Batch) -> Sum:
    return row_sums(batch, per_sequence_sums(batch, selected(batch, "value"))[np.newaxis])[0]


@reduction(zero=Sums(), needs=("old_value", "return"))
def _errors(batch: Batch) -> Sums:
    """Sums of the error of the value, of its square, of the return and of its square."""
    returns = selected(batch, "return")
    error = returns - selected(batch, "old_value")
    parts = (error, error * error, returns, returns * returns)
    return row_sums(batch, np.stack([per_sequence_sums(batch, part) for part in parts]))


def _explained(sums: Sums) -> float:
    """One minus the variance of the error over the variance of the return; NaN where the return does not vary."""
    of_returns = variance(Sums(sums.parts[2:]), 0) if sums.parts else np.nan
    return 1.0 - variance(Sums(sums.parts[:2]), 0) / of_returns if of_returns > 0 else np.nan


metric(
    "value.loss", _clipped, mean, part=0, unit="1", source=_PPO,
    formula="1/2 mean_T max((V - G)^2, (clip(V, V_old - value_clip, V_old + value_clip) - G)^2)",
    doc="Half the mean over tokens of the larger of two squared errors: of the value, and of the value kept within value_clip of "
    "the old value. Computed with value, old_value and return; else as logged, and then its scale differs by trainer.",
)  # fmt: skip
metric(
    "value.clip_frac", _clipped, mean, part=1, unit="1", source=_PPO,
    formula="share_T[the clipped squared error is the larger]",
    doc="Share of tokens at which clipping of the value binds: its squared error is the larger one.",
)  # fmt: skip
metric(
    "value.mean", _value, mean, unit="reward", source=_PPO, formula="mean_T V",
    doc="Mean value over tokens under the critic being trained.",
)  # fmt: skip
metric(
    "value.explained_var", _errors, _explained, unit="1", source="verl, metric_utils.compute_data_metrics",
    formula="1 - var_T(G - V_old) / var_T(G)",
    doc="1 - variance of return - old value / variance of the return, over tokens: 1 for perfect values, 0 or less for useless.",
)  # fmt: skip
