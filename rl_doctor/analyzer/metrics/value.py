"""The value function, as the trainer logs it."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.registry import logged_metric

_SOURCE: Final = "PPO, arXiv:1707.06347, section 5; verl, core_algos.compute_value_loss; TRL, PPOTrainer"

logged_metric("value.loss", unit="1", source=_SOURCE, doc="Loss of the value function as logged; its scale differs by trainer.")
logged_metric("value.clip_frac", unit="1", source=_SOURCE, doc="Share of tokens at which clipping of the value binds, as logged.")
logged_metric("value.mean", unit="reward", source=_SOURCE, doc="Mean predicted value over tokens, as logged.")
logged_metric(
    "value.explained_var", unit="1", source=_SOURCE,
    doc="1 - variance of the value's error / variance of the return, as logged: 1 for perfect values, 0 or less for useless.",
)  # fmt: skip
