"""TRL's ``GRPOTrainer`` and ``RLOOTrainer`` since 0.16: what each logged key means.

Keys of the update have one entry per micro-batch, reduced over the ranks; keys of the generation one per generation batch. When a
row is logged, each key is the unweighted mean of its entries since the last row, NaN left out. What a key means by version stands
in ``trl_settings.Switches``; one whose meaning the known version leaves open is not recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.dialects.registry import bounds_of
from rl_doctor.analyzer.recompute.other_rollouts import Other, column, complement, other_values
from rl_doctor.analyzer.recompute.registry import Entries, Hypothesis, Logged, dialect
from rl_doctor.analyzer.recompute.stages import Flags
from rl_doctor.analyzer.recompute.trl import rollouts
from rl_doctor.analyzer.recompute.trl.rows import value
from rl_doctor.analyzer.recompute.trl.settings import Settings, doubts
from rl_doctor.analyzer.recompute.trl.tokens import Terms
from rl_doctor.analyzer.recompute.trl.update import clip_keys, entropy, grpo_keys, rloo_loss
from rl_doctor.schema import REWARD_COMPONENT_PREFIX, RunInfo
from rl_doctor.store.batch import Batch

_FIRST: Final = (0, 16)
_OF_GRPO: Final = frozenset({
    "grpo", "dr_grpo", "dapo", "gspo", "bnpo", "cispo", "sapo", "vespo", "luspo", "gdpo",
})  # fmt: skip
"""Algorithms that ``GRPOTrainer`` trains by, each a choice of its settings."""
_FIRST_RLOO: Final = (0, 22)
_WITHOUT_SETTINGS: Final = "entropy"
"""The one key of the update that depends on none."""
_STATISTICS: Final[tuple[tuple[str, Callable[[Floats], float]], ...]] = (("mean", np.mean), ("min", np.min), ("max", np.max))


def _applies(info: RunInfo, algorithm: str, first: tuple[int, ...]) -> bool:
    asked = (info.algorithm or "").lower()
    known = (info.trainer or "").lower() == "trl" and (asked in _OF_GRPO if algorithm == "grpo" else asked == algorithm)
    return known and not bounds_of(info.trainer_version).before(first)


@dialect(
    "TRL GRPO", partial(_applies, algorithm="grpo", first=_FIRST), source="trl 0.16 to 1.16, trainer/grpo_trainer.py",
    settings=Settings.of, doubts=doubts,
)  # fmt: skip
def grpo(info: RunInfo, columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
    """What ``GRPOTrainer`` logs."""
    settings = Settings.of(info)
    if settings is None or info.partial:
        return ()
    fused = settings.fused or ("clip_ratio" in names and settings.version.single_clip_key is False)
    found = [] if fused else [*grpo_keys(settings, extra_loss="aux_loss" in names)]
    found = found if settings.known_update else [item for item in found if item.name == _WITHOUT_SETTINGS]
    if settings.aggregation == "sum_then_normalize":
        found += _zero_deviation(settings)
    return (*found, *_generation(settings, columns, names), *_sampling(settings))


@dialect(
    "TRL RLOO", partial(_applies, algorithm="rloo", first=_FIRST_RLOO), source="trl 0.22 to 1.16, trainer/rloo_trainer.py",
    settings=Settings.of, doubts=doubts,
)  # fmt: skip
def rloo(info: RunInfo, columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
    """What ``RLOOTrainer`` logs."""
    settings = Settings.of(info)
    if settings is None or info.partial:
        return ()
    found = [*entropy(settings)]
    if settings.known_update:
        found += _rloo_update(settings, names)
    found += _zero_deviation(settings)
    return (*found, *_generation(settings, columns, names))


def _rloo_update(settings: Settings, names: Collection[str]) -> list[Logged]:
    found = [*clip_keys(settings, lambda t: t.summed_clipped, Terms.row_shares, _as_numbers)]
    by_rank = settings.ranks > 1 and not settings.version.token_weighted
    if settings.beta and not (by_rank and settings.version.token_weighted is None):
        needs = tuple(value(name) for name in ("tokens", "reference_k1", "reference_k1_size"))
        mean = partial(rollouts.reference_k1, by_rank=by_rank)
        found.append(_once(settings, "kl", "ref.kl_k1", "nat", mean, *needs, optional=("rank",)))
    if "aux_loss" not in names:
        found.append(rloo_loss(settings))
    return found


def _as_numbers(_terms: Terms, flags: Flags, near: Flags) -> tuple[Floats, Floats]:
    return flags.astype(np.float64), near.astype(np.float64)


def _once(
    settings: Settings, name: str, metric: str | None, unit: str, function: Callable[[Batch], Entries], *needs: str,
    optional: tuple[str, ...] = (), others: Callable[[], Iterable[Other]] = tuple,
) -> Logged:  # fmt: skip
    def hypotheses() -> tuple[Hypothesis, ...]:
        return tuple(
            Hypothesis(
                other.name,
                other.sentence,
                rollouts.once(settings, other.function, *needs, *other.needs, optional=optional),
                _itself,
            )
            for other in others()
        )

    reduction = rollouts.once(settings, function, *needs, optional=optional)
    return Logged(name, metric, unit, reduction, _itself, hypotheses=hypotheses)


def _itself(state: Entries) -> Entries:
    return state


def _by_group(settings: Settings) -> bool | None:
    """Whether rewards are divided by their group's deviation, or would be; None where the version leaves it open."""
    if settings.rloo or settings.scale_rewards == "none":
        return True
    if settings.version.swapped_scaling is None:
        return None
    return (settings.scale_rewards != "batch") is not settings.version.swapped_scaling


def _zero_deviation(settings: Settings) -> Iterator[Logged]:
    by_group, unscored = _by_group(settings), settings.version.skips_unscored
    if by_group is not None:
        function = rollouts.zero_deviation(by_group=by_group, skips_unscored=unscored)
        others = partial(complement, function)
        yield _once(settings, "frac_reward_zero_std", "group.zero_std_frac", "1", function, "reward", "group", others=others)


def _generation(settings: Settings, columns: Collection[str], names: Collection[str]) -> Iterator[Logged]:
    """Rewards and lengths."""
    yield from _rewards(settings, columns)
    for component in (name for name in columns if name.startswith(REWARD_COMPONENT_PREFIX)):
        name = component.removeprefix(REWARD_COMPONENT_PREFIX)
        prefix, same = f"rewards/{name}", f"reward.component.{name}"
        level = partial(rollouts.other_means_of, settings, component)
        spread = partial(other_values, column(component), "std")
        mean, deviation = rollouts.mean(component), rollouts.deviation(component)
        if settings.version.single_clip_key:
            yield _once(settings, prefix, f"{same}.mean", "reward", mean, component, others=level)
        else:
            yield _once(settings, f"{prefix}/mean", f"{same}.mean", "reward", mean, component, others=level)
            yield _once(settings, f"{prefix}/std", f"{same}.std", "reward", deviation, component, others=spread)
    yield from _lengths(settings, columns, names)


def _rewards(settings: Settings, columns: Collection[str]) -> Iterator[Logged]:
    version = settings.version
    weighs = any(weight != 1.0 for weight in settings.weights.values())
    if (settings.rloo and version.raw_reward is None) or (weighs and version.weighted_reward is None):
        return
    components = tuple(name for name in columns if name.startswith(REWARD_COMPONENT_PREFIX))
    penalised = settings.rloo and not version.raw_reward
    whole = ("score",) if "score" in columns and not penalised else ("reward",)
    level = partial(rollouts.other_reward_means, settings)
    mean = rollouts.reward_mean(settings)
    yield _once(settings, "reward", "reward.mean", "reward", mean, *whole, optional=components, others=level)
    by_group = False if version.batch_deviation else None if version.batch_deviation is None else _by_group(settings)
    if by_group is None:
        return
    spread = partial(rollouts.other_reward_deviations, settings, grouped=by_group)
    deviation = rollouts.mean_group_deviation(settings) if by_group else rollouts.reward_deviation(settings)
    metric = "group.std_mean" if by_group else "reward.std"
    needs = (*whole, *(("group",) if by_group else ()))
    yield _once(settings, "reward_std", metric, "reward", deviation, *needs, optional=components, others=spread)


def _lengths(settings: Settings, columns: Collection[str], names: Collection[str]) -> Iterator[Logged]:
    """Lengths, which leave out what tools and environments wrote: a role tells it, or what the mask leaves out."""
    version = settings.version
    told = "tools/call_frequency" in names
    needs: tuple[str, ...] = ("response_length",)
    if "role" in columns:
        needs, values = (value("generated"),), column(value("generated"))
    elif "response_mask" in columns and not settings.rloo:
        needs = (*needs, value("tokens"), value("between"))
        values = rollouts.completion_lengths(settings, masked=True)
    elif told:
        return
    else:
        values = rollouts.completion_lengths(settings, masked=False)
    if settings.masks_truncated and version.counts_before_mask is not True:
        return
    whole = "role" not in columns and not told
    if version.single_clip_key:
        length = rollouts.lengths(values, np.mean)
        yield _once(
            settings,
            "completion_length",
            "length.mean",
            "tokens",
            length,
            *needs,
            others=partial(rollouts.other_lengths, values, "mean"),
        )
        return
    for statistic, function in _STATISTICS:
        name = f"completions/{statistic}_length"
        canonical = f"length.{statistic}" if whole else None
        yield _once(settings, name, canonical, "tokens", rollouts.lengths(values, function), *needs,
                    others=partial(rollouts.other_lengths, values, statistic))  # fmt: skip
        ended = rollouts.lengths(values, function, terminated=True)
        name = f"completions/{statistic}_terminated_length"
        yield _once(settings, name, None, "tokens", ended, *needs, "finish_reason",
                    others=partial(rollouts.other_lengths, values, statistic, terminated=True))  # fmt: skip
    if settings.clipped_ratio_of_rank is not None:
        ranks = settings.ranks if settings.clipped_ratio_of_rank else 1
        share = partial(rollouts.truncated, ranks=ranks)
        metric = None if settings.clipped_ratio_of_rank else "length.limit_frac"
        yield _once(settings, "completions/clipped_ratio", metric, "1", share, "finish_reason",
                    others=partial(rollouts.other_shares, share, settings.max_completion_length))  # fmt: skip


def _sampling(settings: Settings) -> Iterator[Logged]:
    """Distance from the engine that sampled, and the importance weights against it."""
    if not settings.corrects_sampling:
        return
    prefix = "sampling/sampling_logp_difference"
    difference = tuple(value(name) for name in ("sampling_sum", "sampling_tokens"))
    yield _once(settings, f"{prefix}/mean", "mismatch.abs", "nat", rollouts.sampling_mean, *difference, optional=("rank",))
    yield _once(settings, f"{prefix}/max", None, "nat", rollouts.sampling_max, value("sampling_max"))
    prefix = "sampling/importance_sampling_ratio"
    if not settings.sampling_mode.startswith("token"):
        for statistic, function in _STATISTICS:
            metric = "mismatch.is_weight_mean" if statistic == "mean" else None
            yield _once(settings, f"{prefix}/{statistic}", metric, "1", rollouts.row_weights(function), value("weight_first"))
        return
    weights = tuple(value(name) for name in ("weight_sum", "tokens"))
    mean = rollouts.weight_mean
    yield _once(settings, f"{prefix}/mean", "mismatch.is_weight_mean", "1", mean, *weights, optional=("rank",))
    for statistic in ("min", "max"):
        end = partial(rollouts.weight_end, largest=statistic == "max")
        yield _once(settings, f"{prefix}/{statistic}", None, "1", end, value(f"weight_{statistic}"), optional=("rank",))
