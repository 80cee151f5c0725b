"""Series from what the trainer logged, where they cannot be recomputed, under each trainer's own name for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.metric_log import MetricLog

LOGGED_FAMILIES: Final[Mapping[str, str]] = MappingProxyType({"reward.component.": "reward"})
"""Metrics that depend on what the trainer calls things: what their names start with -> unit."""

VALIDATION: Final[Mapping[str, re.Pattern[str]]] = MappingProxyType(
    {
        "val.mean_at_n": re.compile(r"val\.mean_at_n|val-core[/_].+[/_]mean@\d+|eval[/_](reward|accuracy)"),
        "val.best_at_n": re.compile(r"val\.best_at_n|val-core[/_].+[/_]best@\d+[/_]mean"),
    }
)
"""Validation scores: what their names look like; the mean is taken over the names (data sources) that match."""

METRIC_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "reward.mean": ("reward", "reward_mean", "mean_reward", "critic_rewards_mean"),
        "reward.std": ("reward_std",),
        "reward.max": ("reward_max", "critic_rewards_max"),
        "reward.min": ("reward_min", "critic_rewards_min"),
        "reward.score_mean": ("critic_score_mean",),
        "reward.score_max": ("critic_score_max",),
        "reward.score_min": ("critic_score_min",),
        "policy.entropy": ("entropy", "actor_entropy"),
        "policy.kl_old_k1": ("actor_ppo_kl",),
        "policy.clip_frac": ("clip_ratio_region_mean", "actor_pg_clipfrac"),
        "policy.clip_frac_dual": ("actor_pg_clipfrac_lower",),
        "policy.loss_total": ("loss",),
        "ref.kl": ("kl", "kl_divergence", "actor_kl_loss"),
        "adv.mean": ("critic_advantages_mean",),
        "adv.max": ("critic_advantages_max",),
        "adv.min": ("critic_advantages_min",),
        "return.mean": ("critic_returns_mean",),
        "return.max": ("critic_returns_max",),
        "return.min": ("critic_returns_min",),
        "group.zero_std_frac": ("frac_reward_zero_std",),
        "length.mean": ("completions_mean_length", "completion_length", "response_length_mean"),
        "length.max": ("completions_max_length", "response_length_max"),
        "length.min": ("completions_min_length", "response_length_min"),
        "length.limit_frac": ("response_length_clip_ratio",),
        "length.truncated_frac": ("completions_clipped_ratio",),
        "length.aborted_frac": ("response_aborted_ratio",),
        "turns.mean": ("num_turns_mean",),
        "optim.grad_norm": (
            "grad_norm",
            "actor_grad_norm",
            "policy_grad_norm",
            "actor_train_grad_norm",
            "optim_grad_norm",
            "update_grad_norm",
            "ppo_actor_update_grad_norm",
            "grpo_actor_update_grad_norm",
            "policy_raw_grad_norm",
            "gradient_norm",
        ),
        "optim.learning_rate": (
            "learning_rate",
            "actor_lr",
            "lr",
            "policy_policy_lr",
            "policy_lr",
            "optim_lr",
            "actor_train_lr",
            "lr-pg_0",
            "update_lr",
            "ppo_actor_update_lr",
            "grpo_actor_update_lr",
        ),
    }
)
"""Metrics that trainers log with the meaning that they have here, by ``plain`` name."""  # fmt: skip

_NEVER_ZERO: Final = frozenset({"policy.entropy", "policy.kl_old_k1", "ref.kl"})
"""A metric that is 0 in every row of a log was not measured."""
CLIP_EPS: Final = 1e-6
"""What ``torch.nn.utils.clip_grad_norm_`` adds to the norm."""
_COMPONENT: Final = re.compile(r"rewards/(.+)/(mean|std)")


def plain(name: str) -> str:
    """A native name without the prefix of the split and with one separator: tables cannot have a slash in a column."""
    return name.removeprefix("train/").replace("/", "_")


class Logged:
    """A run's log, read under canonical names.

    Args:
        log: what the trainer logged.
        info: the run's description.
    """

    def __init__(self, log: MetricLog, info: RunInfo) -> None:
        self._log = log
        self._info = info
        self._present = {plain(name): name for name in sorted(log.names(), key=lambda name: (plain(name) == name, name))}
        matches = {name: _COMPONENT.fullmatch(name.removeprefix("train/")) for name in self._present.values()}
        self._components = {f"reward.component.{match[1]}.{match[2]}": name for name, match in matches.items() if match}

    def series(self, name: str, unit: str) -> Series | None:
        """The series of a canonical metric that the log holds, each value counted once; None if it holds none.

        It is looked for under the canonical name, then under the native ones.
        """
        if name in VALIDATION:
            return self._validation(name, unit)
        if name in _DERIVED:
            source, formula = _DERIVED[name]
            found = self.series(source, unit)
            values = None if found is None else formula(found.values, self._info.config)
            return None if found is None or values is None else Series(name, unit, found.steps, values, found.counts)
        native = _first((name, *METRIC_NAMES.get(name, ())), self._present | self._components)
        if native is None:
            return None
        steps, values = self._log.series(native)
        if native != name and name in _NEVER_ZERO and not values.any():
            return None
        return Series(name, unit, steps, values, np.ones(len(steps), np.int64))

    def family(self, prefix: str) -> tuple[str, ...]:
        """Names of the metrics of a family that the log holds."""
        return tuple(sorted(name for name in self._components if name.startswith(prefix)))

    def _validation(self, name: str, unit: str) -> Series | None:
        pattern = VALIDATION[name]
        points = [found for (native, _), found in self._log.points.items() if pattern.fullmatch(native)]
        if not points:
            return None
        steps, at = np.unique(np.concatenate([steps for steps, _ in points]), return_inverse=True)
        totals = np.bincount(at, np.concatenate([values for _, values in points]))
        return Series(name, unit, steps, totals / np.bincount(at), np.ones(len(steps), np.int64))


def _clip_coef(grad_norm: NDArray[np.float64], config: RunConfig) -> NDArray[np.float64] | None:
    limit = config.max_grad_norm
    return None if limit is None else np.minimum(1.0, limit / (grad_norm + CLIP_EPS))


_DERIVED: Final[Mapping[str, tuple[str, Callable[[NDArray[np.float64], RunConfig], NDArray[np.float64] | None]]]] = (
    MappingProxyType(
        {
            "optim.grad_norm_max": ("optim.grad_norm", lambda grad_norm, _: grad_norm),
            "optim.clip_coef": ("optim.grad_norm", _clip_coef),
        }
    )
)
"""Metrics that follow from another one: its name, and the formula."""


def _first(names: Collection[str], present: Mapping[str, str]) -> str | None:
    return next((present[name] for name in names if name in present), None)
