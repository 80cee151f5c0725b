"""Series from what the trainer logged, where they cannot be recomputed, under each trainer's own name for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog

LOGGED: Final = "logged"
"""Column that marks a batch as made from a log: there NaN is a value, not a null."""

COLUMN_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "grad_norm": (
            "optim.grad_norm", "grad_norm", "actor_grad_norm", "policy_grad_norm", "actor_train_grad_norm", "optim_grad_norm",
            "update_grad_norm", "ppo_actor_update_grad_norm", "grpo_actor_update_grad_norm", "policy_raw_grad_norm",
            "gradient_norm",
        ),
        "learning_rate": (
            "optim.learning_rate", "learning_rate", "actor_lr", "lr", "policy_policy_lr", "policy_lr", "optim_lr",
            "actor_train_lr", "lr-pg_0", "update_lr", "ppo_actor_update_lr", "grpo_actor_update_lr",
        ),
    }
)  # fmt: skip
"""For each sequence column that a log can stand in for: the names it is logged under (``plain``); the first is taken."""

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
    }
)
"""Metrics that trainers log with the meaning that they have here, by ``plain`` name."""

_NEVER_ZERO: Final = frozenset({"policy.entropy", "policy.kl_old_k1", "ref.kl"})
"""A metric that is 0 in every row of a log was not measured."""
_COMPONENT: Final = re.compile(r"rewards/(.+)/(mean|std)")


def plain(name: str) -> str:
    """A native name without the prefix of the split and with one separator: tables cannot have a slash in a column."""
    return name.removeprefix("train/").replace("/", "_")


def logged_columns(log: MetricLog) -> Mapping[str, tuple[str, ...]]:
    """Which columns the log can stand in for: column -> the native names whose mean is taken."""
    present = _present(log)
    found = {column: (native,) for column, names in COLUMN_NAMES.items() if (native := _first(names, present)) is not None}
    names = sorted(set(log.names.tolist()))
    scores = {column: tuple(name for name in names if pattern.fullmatch(name)) for column, pattern in VALIDATION.items()}
    return found | {column: matching for column, matching in scores.items() if matching}


def logged_batches(log: MetricLog, columns: Collection[str], info: RunInfo) -> Iterator[Batch]:
    """One batch per logged step, with one row without tokens that holds ``columns`` (NaN where not logged)."""
    native = logged_columns(log)
    values: dict[int, dict[str, dict[str, float]]] = {}
    for column in columns:
        for name in native[column]:
            for split in ("train", "eval"):
                steps, logged = log.series(name, split)
                for step, value in zip(steps.tolist(), logged.tolist(), strict=True):
                    values.setdefault(step, {}).setdefault(column, {})[name] = value
    for step in sorted(values):
        row: dict[str, NDArray[Any]] = {}
        for column in columns:
            scores = list(values[step].get(column, {"": np.nan}).values())
            row[column] = np.array([sum(scores) / len(scores)])
        row[LOGGED] = np.ones(1, np.bool_)
        yield Batch(step, row, np.zeros(2, np.int64), info)


def logged_series(log: MetricLog, name: str, unit: str) -> Series | None:
    """The series of a canonical metric that the log holds, each value counted once; None if it holds none.

    It is looked for under the canonical name, then under the native ones.
    """
    native = _first((name, *METRIC_NAMES.get(name, ())), _present(log) | _components(log))
    if native is None:
        return None
    steps, values = log.series(native)
    latest = dict(zip(steps.tolist(), values.tolist(), strict=True))
    ordered = sorted(latest)
    found = np.array([latest[step] for step in ordered], np.float64)
    if native != name and name in _NEVER_ZERO and not found.any():
        return None
    return Series(name, unit, np.array(ordered, np.int64), found, np.ones(len(ordered), np.int64))


def logged_components(log: MetricLog) -> tuple[str, ...]:
    """Names of the reward component metrics that the log holds."""
    return tuple(sorted(_components(log)))


def _present(log: MetricLog) -> dict[str, str]:
    """Plain name -> native name of what was logged in training; a name that is plain already wins."""
    names = sorted(set(log.names[log.splits == "train"].tolist()), key=lambda name: (plain(name) == name, name))
    return {plain(name): name for name in names}


def _components(log: MetricLog) -> dict[str, str]:
    """Reward component metric -> native name, where the trainer logs ``rewards/<component>/mean`` and ``.../std``."""
    found = {name: _COMPONENT.fullmatch(name.removeprefix("train/")) for name in _present(log).values()}
    return {f"reward.component.{match[1]}.{match[2]}": name for name, match in found.items() if match}


def _first(names: Collection[str], present: Mapping[str, str]) -> str | None:
    return next((present[name] for name in names if name in present), None)
