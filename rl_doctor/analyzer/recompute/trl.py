"""TRL's ``GRPOTrainer`` and ``RLOOTrainer``: what each logged key means.

Keys of the update have one entry per micro-batch, reduced over the ranks by token counts; keys of the generation one per
generation batch. When a row is logged, each key is the unweighted mean of its entries since the last row, NaN left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, selected
from rl_doctor.analyzer.recompute import trl_rollouts as rollouts
from rl_doctor.analyzer.recompute.hypotheses import Part, other_estimators, other_means, other_stages, parted
from rl_doctor.analyzer.recompute.registry import Entries, Hypothesis, Logged, at_least, dialect
from rl_doctor.analyzer.recompute.stages import (
    MICROBATCH,
    MICROBATCH_OF_RANK,
    Flags,
    Shares,
    largest,
    means,
    pooled,
    ranges_by,
    rounded_sum,
    smallest,
    sums_by,
    sums_over_ranks,
    token_shares,
)
from rl_doctor.analyzer.recompute.trl_settings import Settings
from rl_doctor.analyzer.recompute.trl_tokens import Terms, terms
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


@dialect("TRL GRPO", partial(_applies, algorithm="grpo"), source="trl 1.16, trainer/grpo_trainer.py", settings=Settings.of)
def grpo(info: RunInfo, columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
    """What ``GRPOTrainer`` logs."""
    settings = Settings.of(info)
    if settings is None or info.partial:
        return ()
    found = [_mean(settings, "entropy", "policy.entropy", "nat", _entropy, ("entropy",))]
    kl_needs = ("logprob", "ref_logprob", *(("old_logprob",) if settings.bias_corrected_kl else ()))
    if settings.beta:
        found.append(_reference_kl(settings, kl_needs))
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


@dialect("TRL RLOO", partial(_applies, algorithm="rloo"), source="trl 1.16, trainer/rloo_trainer.py", settings=Settings.of)
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
    settings: Settings, name: str, metric: str, unit: str, shares: Callable[[Terms], Shares], needs: tuple[str, ...],
    others: tuple[Part, ...] = (),
) -> Logged:  # fmt: skip
    share = derived(_of(settings, shares))
    staged = partial(means, settings.microbatch_rows)
    reduction = sums_by(MICROBATCH, share, needs=needs)

    def hypotheses() -> tuple[Hypothesis, ...]:
        parts = (*other_means(share, additive=not settings.per_sequence_ratio or name == "entropy"), *others)
        return (*parted(MICROBATCH, staged, needs, parts), other_stages(pooled(settings.microbatch_rows), reduction))

    return Logged(name, metric, unit, reduction, staged(), hypotheses=hypotheses)


def _reference_kl(settings: Settings, needs: tuple[str, ...]) -> Logged:
    """The mean of k3; TRL multiplies it by the ratio if so configured."""
    told = "is k3 without the ratio" if settings.bias_corrected_kl else "is k3 times the ratio"
    twin = Part(
        told.removeprefix("is "), told, _of(settings, lambda t: token_shares(t.batch, *t.other_kl)), ("old_logprob",)
    )  # fmt: skip
    others = other_estimators(lambda batch: terms(batch, settings).reference_difference, "k3")
    shares = lambda t: token_shares(t.batch, *t.kl)  # noqa: E731
    return _mean(settings, "kl", "ref.kl_k3", "nat", shares, needs, (twin, *others))


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


def _loss(settings: Settings, reduction: Reduction, hypotheses: Callable[[], tuple[Hypothesis, ...]] = tuple) -> Logged:
    entries = sums_over_ranks(settings.microbatch_rows, settings.ranks)
    return Logged("loss", "policy.loss_total", "1", reduction, entries, "per_step", hypotheses)


def _grpo_loss(settings: Settings, kl_needs: tuple[str, ...]) -> Logged:
    needs = [*_RATIO, "advantage", *kl_needs]
    if settings.corrects_sampling:
        needs.append("is_weight")
    if settings.entropy_coef:
        needs.append("entropy")
    if settings.loss_type in {"dapo", "cispo"}:
        needs.append("num_items_in_batch")
    needs = list(dict.fromkeys(needs))
    parts = (lambda t: t.loss_shares, *((lambda t: t.entropy_bonus,) if settings.entropy_coef else ()))
    reduction = sums_by(MICROBATCH_OF_RANK, *(_of(settings, part) for part in parts), needs=tuple(needs))
    return _loss(settings, reduction, partial(_loss_hypotheses, settings, tuple(needs)))


def _loss_hypotheses(settings: Settings, needs: tuple[str, ...]) -> tuple[Hypothesis, ...]:
    """The loss with another factor for one of its terms."""
    beta = settings.beta
    terms_of_loss: dict[str, Callable[[Terms], Shares]] = {"policy": lambda t: t.policy_shares}
    if beta:
        terms_of_loss |= {"KL": lambda t: t.penalty_shares, "other KL": lambda t: t.other_penalty_shares}
    if settings.entropy_coef:
        terms_of_loss["entropy"] = lambda t: t.entropy_bonus
    names = list(terms_of_loss)
    shares = (_of(settings, share) for share in terms_of_loss.values())
    reduction = sums_by(MICROBATCH_OF_RANK, *shares, needs=needs, total=rounded_sum)
    plain = dict.fromkeys(names, 1.0) | ({"other KL": 0.0} if beta else {})

    def hypothesis(name: str, sentence: str, **factors: float) -> Hypothesis:
        chosen = {**plain, **{key.replace("_", " "): factor for key, factor in factors.items()}}
        kept = tuple((names.index(key), factor) for key, factor in chosen.items() if factor)
        return Hypothesis(name, sentence, reduction, sums_over_ranks(settings.microbatch_rows, settings.ranks, kept))

    found = []
    if beta:
        other = "without the ratio" if settings.bias_corrected_kl else "times the ratio"
        found += [
            hypothesis("KL term with the opposite sign", "has the KL term with the opposite sign", KL=-1.0),
            hypothesis("no KL term", "has no KL term", KL=0.0),
            hypothesis("KL coefficient twice", f"applies the KL coefficient twice ({beta:g} * {beta:g})", KL=beta),
            hypothesis("KL term without its coefficient", "has the KL term without its coefficient", KL=1.0 / beta),
            hypothesis(f"KL term {other}", f"has the KL term {other}", KL=0.0, other_KL=1.0),
        ]
    if settings.entropy_coef:
        found += [
            hypothesis("entropy term with the opposite sign", "has the entropy term with the opposite sign", entropy=-1.0),
            hypothesis("no entropy term", "has no entropy term", entropy=0.0),
        ]
    return tuple(found)


def _once(
    settings: Settings, name: str, metric: str | None, unit: str, function: Callable[[Batch], Entries], *needs: str,
    optional: tuple[str, ...] = (), others: Iterable[rollouts.Other] = (),
) -> Logged:  # fmt: skip
    def hypotheses() -> tuple[Hypothesis, ...]:
        return tuple(
            Hypothesis(
                other.name, other.sentence, rollouts.once(settings, other.function, *needs, *other.needs, optional=optional), _itself
            )
            for other in others
        )

    reduction = rollouts.once(settings, function, *needs, optional=optional)
    return Logged(name, metric, unit, reduction, _itself, hypotheses=hypotheses)


def _itself(state: Entries) -> Entries:
    return state


def _zero_deviation(settings: Settings, *, by_group: bool) -> Logged:
    function = rollouts.zero_deviation(by_group=by_group)
    return _once(settings, "frac_reward_zero_std", "group.zero_std_frac", "1", function, "reward", "group")


def _generation(settings: Settings, columns: Collection[str], names: Collection[str]) -> list[Logged]:
    """Rewards and lengths."""
    components = tuple(name for name in columns if name.startswith(REWARD_COMPONENT_PREFIX))
    whole = ("score",) if "score" in columns else ("reward",)
    mean, deviation = rollouts.reward_mean(settings), rollouts.reward_deviation(settings)
    spread, level = rollouts.other_reward_deviations(settings), rollouts.other_reward_means(settings)
    found = [
        _once(settings, "reward", "reward.mean", "reward", mean, *whole, optional=components, others=level),
        _once(settings, "reward_std", "reward.std", "reward", deviation, *whole, optional=components, others=spread),
    ]
    for component in components:
        name = component.removeprefix(REWARD_COMPONENT_PREFIX)
        prefix, same = f"rewards/{name}", f"reward.component.{name}"
        level, spread = rollouts.other_means_of(settings, component), rollouts.other_deviations(rollouts.column(component))
        found.append(
            _once(settings, f"{prefix}/mean", f"{same}.mean", "reward", rollouts.mean(component), component, others=level)
        )
        found.append(
            _once(settings, f"{prefix}/std", f"{same}.std", "reward", rollouts.deviation(component), component, others=spread)
        )
    length = "response_length"
    if "role" in columns:  # lengths leave out what tools and environments wrote
        length = rollouts.value("generated")
    elif "tools/call_frequency" in names:
        return found
    for statistic, function in _STATISTICS:
        name = f"completions/{statistic}_length"
        canonical = f"length.{statistic}" if length == "response_length" else None
        found.append(_once(settings, name, canonical, "tokens", rollouts.lengths(length, function), length))
        ended = rollouts.lengths(length, function, terminated=True)
        name = f"completions/{statistic}_terminated_length"
        found.append(_once(settings, name, None, "tokens", ended, length, "finish_reason"))
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
