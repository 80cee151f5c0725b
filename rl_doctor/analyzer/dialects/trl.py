"""TRL's ``GRPOTrainer`` and ``RLOOTrainer``: what each logged key means.

Keys of the update have one entry per micro-batch, reduced over the ranks by token counts; keys of the generation one per
generation batch. When a row is logged, each key is the unweighted mean of its entries since the last row, NaN left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, selected
from rl_doctor.analyzer.dialects import trl_rollouts as rollouts
from rl_doctor.analyzer.dialects.registry import Entries, Logged, at_least, dialect
from rl_doctor.analyzer.dialects.stages import (
    MICROBATCH,
    MICROBATCH_OF_RANK,
    Flags,
    Shares,
    largest,
    means,
    ranges_by,
    smallest,
    sums_by,
    sums_over_ranks,
    token_shares,
)
from rl_doctor.analyzer.dialects.trl_settings import Settings
from rl_doctor.analyzer.dialects.trl_tokens import Terms, terms
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.schema import REWARD_COMPONENT_PREFIX, RunInfo
from rl_doctor.store.batch import Batch

_RATIO: Final = ("logprob", "old_logprob")
_CLIPPED: Final = frozenset({"grpo", "bnpo", "dr_grpo", "dapo", "luspo"})
_FIRST: Final = (1, 16)
_STATISTICS: Final[tuple[tuple[str, Callable[[Floats], float]], ...]] = (("mean", np.mean), ("min", np.min), ("max", np.max))


def _applies(info: RunInfo, algorithm: str) -> bool:
    known = (info.trainer or "").lower() == "trl" and (info.algorithm or "").lower() == algorithm
    return known and at_least(info.trainer_version, *_FIRST)


@dialect("TRL GRPO", partial(_applies, algorithm="grpo"), source="trl 1.16, trainer/grpo_trainer.py")
def grpo(info: RunInfo, columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
    """What ``GRPOTrainer`` logs."""
    settings = Settings.of(info)
    if settings is None or info.partial:
        return ()
    found = [_mean(settings, "entropy", "policy.entropy", "nat", _entropy, ("entropy",))]
    kl_needs = ("logprob", "ref_logprob", *(("old_logprob",) if settings.bias_corrected_kl else ()))
    if settings.beta:
        found.append(_mean(settings, "kl", "ref.kl_k3", "nat", lambda t: token_shares(t.batch, *t.kl), kl_needs))
    if settings.loss_type in _CLIPPED:
        found += _clip_keys(settings, lambda t: t.clipped, Terms.flag_shares, Terms.fractions)
    if settings.loss_type == "cispo":
        needs = (*_RATIO, "advantage")
        found.append(_mean(settings, "cispo_clip_ratio", "policy.clip_frac_high", "1", lambda t: _flagged(t, 1), needs))
    if settings.plain_loss and "aux_loss" not in names:
        found.append(_grpo_loss(settings, kl_needs if settings.beta else ()))
    if settings.aggregation == "sum_then_normalize":
        found.append(_zero_deviation(settings, by_group=settings.scale_rewards != "batch"))
    return (*found, *_generation(settings, columns, names), *_sampling(settings))


@dialect("TRL RLOO", partial(_applies, algorithm="rloo"), source="trl 1.16, trainer/rloo_trainer.py")
def rloo(info: RunInfo, columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
    """What ``RLOOTrainer`` logs."""
    settings = Settings.of(info)
    if settings is None or info.partial:
        return ()
    found = [_mean(settings, "entropy", "policy.entropy", "nat", _entropy, ("entropy",))]
    found += _clip_keys(settings, lambda t: t.summed_clipped, Terms.row_shares, _as_numbers)
    if settings.beta:
        needs = tuple(rollouts.value(name) for name in ("tokens", "reference_k1", "reference_k1_size"))
        found.append(_once(settings, "kl", "ref.kl_k1", "nat", rollouts.reference_k1, *needs))
    if "aux_loss" not in names:
        loss = sums_by(MICROBATCH_OF_RANK, _of(settings, lambda t: t.summed_loss), needs=(*_RATIO, "advantage"))
        found.append(_loss(settings, loss))
    found.append(_zero_deviation(settings, by_group=True))
    return (*found, *_generation(settings, columns, names))


def _of(settings: Settings, shares: Callable[[Terms], Shares]) -> Callable[[Batch], Shares]:
    return lambda batch: shares(terms(batch, settings))


def _entropy(t: Terms) -> Shares:
    return token_shares(t.batch, selected(t.batch, "entropy"))


def _flagged(t: Terms, which: int) -> Shares:
    flags = t.clipped
    return t.flag_shares(flags[which], flags[2])


def _as_numbers(_terms: Terms, flags: Flags, near: Flags) -> tuple[Floats, Floats]:
    return flags.astype(np.float64), near.astype(np.float64)


def _mean(
    settings: Settings, name: str, metric: str, unit: str, shares: Callable[[Terms], Shares], needs: tuple[str, ...]
) -> Logged:
    return Logged(name, metric, unit, sums_by(MICROBATCH, _of(settings, shares), needs=needs), means(settings.microbatch_rows))


def _clip_keys(
    settings: Settings,
    clipped: Callable[[Terms], tuple[Flags, Flags, Flags]],
    shares: Callable[[Terms, Flags, Flags], Shares],
    fractions: Callable[[Terms, Flags, Flags], tuple[Floats, Floats]],
) -> list[Logged]:
    """The five ``clip_ratio`` keys."""
    needs = (*_RATIO, "advantage")

    def pick(t: Terms, sides: tuple[int, ...]) -> tuple[Flags, Flags]:
        flags = clipped(t)
        return np.logical_or.reduce([flags[side] for side in sides]), flags[2]

    def share_of(*sides: int) -> Callable[[Terms], Shares]:
        return lambda t: shares(t, *pick(t, sides))

    def range_of(side: int) -> Reduction:
        return ranges_by(lambda batch: fractions(terms(batch, settings), *pick(terms(batch, settings), (side,))), needs=needs)

    rows = settings.microbatch_rows
    return [
        _mean(settings, "clip_ratio/low_mean", "policy.clip_frac_low", "1", share_of(0), needs),
        _mean(settings, "clip_ratio/high_mean", "policy.clip_frac_high", "1", share_of(1), needs),
        _mean(settings, "clip_ratio/region_mean", "policy.clip_frac", "1", share_of(0, 1), needs),
        Logged("clip_ratio/low_min", None, "1", range_of(0), smallest(rows)),
        Logged("clip_ratio/high_max", None, "1", range_of(1), largest(rows)),
    ]


def _loss(settings: Settings, reduction: Reduction) -> Logged:
    entries = sums_over_ranks(settings.microbatch_rows, settings.ranks)
    return Logged("loss", "policy.loss_total", "1", reduction, entries, "per_step")


def _grpo_loss(settings: Settings, kl_needs: tuple[str, ...]) -> Logged:
    needs = [*_RATIO, "advantage", *kl_needs]
    if settings.corrects_sampling:
        needs.append("is_weight")
    if settings.entropy_coef:
        needs.append("entropy")
    if settings.loss_type in {"dapo", "cispo"}:
        needs.append("num_items_in_batch")
    parts = (lambda t: t.loss_shares, *((lambda t: t.entropy_bonus,) if settings.entropy_coef else ()))
    reduction = sums_by(MICROBATCH_OF_RANK, *(_of(settings, part) for part in parts), needs=tuple(dict.fromkeys(needs)))
    return _loss(settings, reduction)


def _once(
    settings: Settings, name: str, metric: str | None, unit: str, function: Callable[[Batch], Entries], *needs: str,
    optional: tuple[str, ...] = (),
) -> Logged:  # fmt: skip
    return Logged(name, metric, unit, rollouts.once(settings, function, *needs, optional=optional), lambda state: state)


def _zero_deviation(settings: Settings, *, by_group: bool) -> Logged:
    function = rollouts.zero_deviation(by_group=by_group)
    return _once(settings, "frac_reward_zero_std", "group.zero_std_frac", "1", function, "reward", "group")


def _generation(settings: Settings, columns: Collection[str], names: Collection[str]) -> list[Logged]:
    """Rewards and lengths."""
    components = tuple(name for name in columns if name.startswith(REWARD_COMPONENT_PREFIX))
    whole = ("score",) if "score" in columns else ("reward",)
    found = [
        _once(settings, "reward", "reward.mean", "reward", rollouts.reward_mean(settings), *whole, optional=components),
        _once(settings, "reward_std", "reward.std", "reward", rollouts.reward_deviation(settings), *whole, optional=components),
    ]
    for component in components:
        name = component.removeprefix(REWARD_COMPONENT_PREFIX)
        for statistic, entries in (("mean", rollouts.mean(component)), ("std", rollouts.deviation(component))):
            same = f"reward.component.{name}.{statistic}"
            found.append(_once(settings, f"rewards/{name}/{statistic}", same, "reward", entries, component))
    if "tools/call_frequency" in names:  # lengths then leave out what the tools wrote
        return found
    for statistic, function in _STATISTICS:
        name = f"completions/{statistic}_length"
        found.append(_once(settings, name, f"length.{statistic}", "tokens", rollouts.lengths(function), "response_length"))
        ended = rollouts.lengths(function, terminated=True)
        name = f"completions/{statistic}_terminated_length"
        found.append(_once(settings, name, None, "tokens", ended, "response_length", "finish_reason"))
    found.append(_once(settings, "completions/clipped_ratio", "length.limit_frac", "1", rollouts.truncated, "finish_reason"))
    return found


def _sampling(settings: Settings) -> list[Logged]:
    """Distance from the engine that sampled; importance weights only where they are per token."""
    if not settings.corrects_sampling:
        return []
    prefix = "sampling/sampling_logp_difference"
    difference = tuple(rollouts.value(name) for name in ("sampling_sum", "sampling_tokens"))
    found = [
        _once(settings, f"{prefix}/mean", "mismatch.abs", "nat", rollouts.sampling_mean, *difference, optional=("rank",)),
        _once(settings, f"{prefix}/max", None, "nat", rollouts.sampling_max, rollouts.value("sampling_max")),
    ]
    if settings.sampling_mode.startswith("token"):
        name = "sampling/importance_sampling_ratio/mean"
        weights = tuple(rollouts.value(name) for name in ("weight_sum", "tokens"))
        found.append(_once(settings, name, None, "1", rollouts.weight_mean, *weights, optional=("rank",)))
    return found
