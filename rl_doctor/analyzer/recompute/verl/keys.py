"""verl: what each logged key means, from version 0.5 on.

Each step logs itself. Ratios, clipped shares and KL to the old policy are masked means per micro-batch, averaged without
weights over micro-batches and ranks and then over mini-batches. Losses, and with them the KL to the reference, are since 0.8
sums over whole mini-batches with a normaliser of the mini-batch; ``stages`` has what they were before. Statistics of the
batch are computed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, column_sums, derived, selected
from rl_doctor.analyzer.dialects.registry import bounds_of, matching, plain
from rl_doctor.analyzer.dialects.verl import VERL
from rl_doctor.analyzer.needs import lacking
from rl_doctor.analyzer.recompute.registry import Entries, Hypothesis, Logged, dialect
from rl_doctor.analyzer.recompute.stages import MINIBATCH, Shares, sums_by, token_shares
from rl_doctor.analyzer.recompute.verl import batch as verl_batch
from rl_doctor.analyzer.recompute.verl import correction as verl_correction
from rl_doctor.analyzer.recompute.verl.aggregation import AGGREGATIONS, READ, Rows, aggregated, each
from rl_doctor.analyzer.recompute.verl.critic import keys as critic_keys
from rl_doctor.analyzer.recompute.verl.losses import LOSSES, RATIO, Terms, row_losses, terms
from rl_doctor.analyzer.recompute.verl.other_batches import with_others
from rl_doctor.analyzer.recompute.verl.others import (
    BOUNDED,
    Beside,
    other_clips,
    other_distances,
    other_ends,
    other_losses,
    other_penalties,
    policy_rows,
    summed,
    times_coefficient,
)
from rl_doctor.analyzer.recompute.verl.settings import Settings, doubts
from rl_doctor.analyzer.recompute.verl.stages import Added, Engine, Older, Stages, other_factors
from rl_doctor.analyzer.recompute.verl.versions import FIRST, Era, eras_of
from rl_doctor.analyzer.registry import Metric, Reduction
from rl_doctor.analyzer.states import Keyed, Sum, Sums
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.batch import Batch

_DISTANT: Final = frozenset({*LOSSES, "kl_cov", "clip_cov"}) - {"gpg"}
"""Losses that log ``ppo_kl``."""
_CLIPPED: Final = frozenset(LOSSES) - {"gpg", "dro", "reinforce"}
"""Losses that log what they clip."""
_COEFFICIENT: Final = "actor_rollout_ref.actor.entropy_coeff, which is not known"
_OPEN_LOSS: Final = (
    f"whether the entropy is subtracted from it depends on {_COEFFICIENT}, and it is not equal without it at every step"
)
_OPEN_ENTROPY: Final = f"whether it is the actor's or the driver's depends on {_COEFFICIENT}, and it equals neither at every step"
_CAPPED: Final = frozenset({"vanilla", "dppo_tv", "dppo_kl"})
"""Losses that need ``clip_ratio_c``."""


def _applies(info: RunInfo) -> bool:
    return (info.trainer or "").lower() == "verl" and not bounds_of(info.trainer_version).before(FIRST)


def _missing_rows() -> Metric:
    """How many rows of its mini-batches a step lacks, where their size was recorded; padding rows count."""

    def partial_(batch: Batch) -> Keyed:
        columns = {name: batch.columns[name] for name in MINIBATCH if name in batch.columns}
        keys = np.stack([np.asarray(values, np.int64) for values in columns.values()], axis=1)
        unique, index = np.unique(keys, axis=0, return_inverse=True)
        size, index = batch.columns["global_batch_size"].astype(np.float64), index.reshape(-1)
        return Keyed({tuple(key): Sums((Sum.of(size[index == at]),)) for at, key in enumerate(unique.tolist())})

    def final(state: Keyed) -> float:
        return float(sum(abs(sums[0].mean - sums[0].count) for sums in state.groups.values() if sums[0].total > 0))

    reduction = Reduction(partial_, Keyed({}), ("minibatch", "global_batch_size"), MINIBATCH, "token")
    return Metric("reconcile.missing_rows", "sequences", reduction, final, "", "")


@dialect(
    "verl", _applies, missing_rows=_missing_rows(), doubts=doubts,
    source="verl 0.5 to 0.9.1, workers/utils/losses.py, workers/actor/dp_actor.py, trainer/ppo/core_algos.py, metric_utils.py, "
    "rollout_corr_helper.py",
)  # fmt: skip
def verl(info: RunInfo, columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
    """What the actor, the critic and the driver log."""
    eras = eras_of(info.trainer_version, info.config.native or {}, names)
    if info.partial or not eras:
        return ()
    newest = {item.name: item for item in _logged(info, eras[-1], columns) if item.name in names}
    if len(eras) == 1:
        return tuple(newest.values())
    bounds = bounds_of(info.trainer_version)
    settled = [item.native for item in VERL.names if item.definition and item.definition.proof and bounds.within(item)]
    found = {name: item for name, item in newest.items() if any(matching(native, (plain(name),)) for native in settled)}
    meanings: dict[str, list[Logged]] = {}
    for item in chain(newest.values(), *(_logged(info, era, columns) for era in reversed(eras[:-1]))):
        if item.name in names and item.name not in found and not lacking(item.reduction.needs, columns, info.config):
            meanings.setdefault(item.name, []).append(item)
    return (*found.values(), *map(_together, meanings.values()))


def _together(meanings: Sequence[Logged], why: str = "") -> Logged:
    """One key with all of its meanings: those of several versions, or for the reason that is told."""
    first, *rest = meanings
    others = [*first.instead, *(one for item in rest for one in (replace(item, instead=()), *item.instead))]
    return replace(first, instead=tuple(others), open=why) if rest or why else first


def _logged(info: RunInfo, era: Era, columns: Collection[str]) -> list[Logged]:
    settings = Settings.of(info, era)
    stages: Stages = Engine() if era.engine else Older(era, settings.response_limit)
    found = [with_others(item, settings, columns) for item in verl_batch.keys(settings)]
    if settings.substeps == 1:
        found += [with_others(item, settings, columns) for item in verl_batch.old_pass_keys(settings)]
        found += verl_correction.keys(settings)
        found += [*_policy_keys(settings, stages), *_loss_keys(settings, info.config, stages, columns), *critic_keys(settings)]
    entropies = [item for item in found if item.name == "actor/entropy"]
    if settings.overwrites_entropy is None and entropies:
        known = [item for item in entropies if not lacking(item.reduction.needs, columns, info.config)]
        found = [*(item for item in found if item not in entropies), _together(known or entropies[:1], _OPEN_ENTROPY)]
    return found


def _policy_keys(settings: Settings, stages: Stages) -> Iterator[Logged]:
    """Masked means per micro-batch."""
    mode = settings.loss_mode
    if mode in _DISTANT:
        distance = derived(lambda batch: _distance(terms(batch, settings)))
        metric = None if mode == "kl_cov" else "policy.kl_old_k1"
        yield stages.micro("actor/ppo_kl", metric, "nat", distance, RATIO, other_distances(settings))
    if mode not in _CLIPPED or not _bounds_are_known(settings):
        return
    if mode == "vanilla" or _cap_is_known(settings):
        clipped = derived(lambda batch: _flagged(terms(batch, settings), 0))
        others = other_clips(settings, "both sides")
        yield stages.micro("actor/pg_clipfrac", "policy.clip_frac", "1", clipped, LOSSES[mode], others)
    if _cap_is_known(settings):
        lower = derived(lambda batch: _flagged(terms(batch, settings), 1))
        metric = "policy.clip_frac_dual" if mode == "vanilla" else None
        yield stages.micro("actor/pg_clipfrac_lower", metric, "1", lower, LOSSES[mode], other_clips(settings, "dual clip alone"))


def _distance(t: Terms) -> Shares:
    return token_shares(t.batch, np.abs(t.difference) if t.settings.loss_mode == "kl_cov" else -t.difference)


def _flagged(t: Terms, which: int) -> Shares:
    flags = t.clipped
    values = flags[which].astype(np.float64)
    return token_shares(t.batch, values, values, flags[2])


def _loss_keys(settings: Settings, config: RunConfig, stages: Stages, columns: Collection[str]) -> Iterator[Logged]:
    """What is aggregated as the loss is: the policy loss, the entropy, and the KL to the reference."""
    mode = settings.loss_mode
    aggregation = settings.loss_agg if settings.loss_agg in AGGREGATIONS else None
    weighted = ("is_weight",) if "is_weight" in columns and not settings.bypasses else ()
    # The aggregation of the terms beside the policy loss is the configured one, also where the policy loss has its own.
    beside = settings.configured_agg if settings.configured_agg in AGGREGATIONS else None
    entropy = derived(lambda batch: (column_sums(batch, "entropy"), np.abs(column_sums(batch, "entropy")), None))
    of_policy = stages
    may_subtract = isinstance(stages, Older) and settings.era.subtracts_entropy
    why = _OPEN_LOSS if may_subtract and settings.entropy_coef is None else ""
    subtracted: tuple[str, ...] = ()
    if isinstance(stages, Older) and settings.era.subtracts_entropy and settings.entropy_coef:
        if beside is None:
            return
        share = stages.share(entropy, beside, -settings.entropy_coef)
        of_policy = replace(stages, beside=Added("entropy", share, settings.entropy_coef))
        subtracted = ("entropy",)
    if mode == "geo_mean" and _bounds_are_known(settings):
        share = derived(lambda batch: _row_mean(terms(batch, settings)))
        averaged = of_policy.averaged("actor/pg_loss", None, share, (*LOSSES[mode], *weighted, *subtracted))
        yield replace(averaged, open=why)
    penalty: Rows | None = None
    if settings.kl_type is not None:
        kind = settings.kl_type
        penalty = derived(lambda batch: summed(batch, *verl_batch.estimate(kind, _to_reference(batch)), None))
    policy: Rows | None = None
    if aggregation is not None and mode in LOSSES and mode != "geo_mean" and _loss_is_known(settings):
        policy = derived(partial(policy_rows, settings=settings))
        needs = (*LOSSES[mode], *weighted)
        metric = None if subtracted else "policy.loss_pg"
        terms_beside = _terms_beside(settings, entropy, penalty) if beside == aggregation and not subtracted else ()
        others = other_losses(settings, partial(of_policy.share, mode=aggregation), policy, terms_beside)
        key = of_policy.loss("actor/pg_loss", metric, policy, aggregation, (*needs, *subtracted), others=others)
        yield replace(key, open=why)
    if beside is None:
        return
    yield from _beside_keys(settings, config, stages, (entropy, beside), None if penalty is None else (penalty, beside))
    if policy is not None and aggregation is not None and settings.era.engine:
        yield from _whole_loss(
            settings, needs, (policy, aggregation), (entropy, beside), None if penalty is None else (penalty, beside)
        )


def _beside_keys(
    settings: Settings, config: RunConfig, stages: Stages, entropy: tuple[Rows, str], penalty: tuple[Rows, str] | None
) -> Iterator[Logged]:
    """The terms beside the policy loss, each a loss per sequence and how it is aggregated."""
    if settings.era.engine:
        coefficient = None if config.entropy_coef is not None else settings.entropy_coef
        multiplied = partial(times_coefficient, "entropy", coefficient, partial(stages.share, *entropy))
        yield stages.loss("actor/entropy_loss", "policy.entropy", *entropy, ("entropy",), "nat", multiplied)
    elif settings.overwrites_entropy is not False:
        means = Older(settings.era, settings.response_limit, losses="mean")
        yield means.loss("actor/entropy", "policy.entropy", *entropy, ("entropy",), "nat")
    if penalty is not None and settings.kl_type is not None:
        coefficient = None if config.kl_coef is not None else settings.kl_coef
        multiplied = partial(times_coefficient, "KL", coefficient, partial(stages.share, *penalty))
        estimated = other_penalties(settings.kl_type, partial(stages.share, mode=penalty[1]))
        metric = f"ref.kl_{settings.kl_type}"
        yield stages.loss(
            "actor/kl_loss", metric, *penalty, ("logprob", "ref_logprob"), "nat", lambda: (*multiplied(), *estimated())
        )


def _terms_beside(settings: Settings, entropy: Rows, penalty: Rows | None) -> Iterator[Beside]:
    """The terms that the loss has beside the policy loss."""
    if settings.entropy_coef:
        yield Beside("entropy", entropy, -settings.entropy_coef, ("entropy",))
    if settings.kl_coef and penalty is not None:
        yield Beside("KL", penalty, settings.kl_coef, ("logprob", "ref_logprob"))


def _whole_loss(
    settings: Settings,
    needs: tuple[str, ...],
    policy: tuple[Rows, str],
    entropy: tuple[Rows, str],
    penalty: tuple[Rows, str] | None,
) -> Iterator[Logged]:
    """The policy loss with the terms beside it, each a loss per sequence and how it is aggregated."""
    beside: dict[str, tuple[float, tuple[Rows, str], tuple[str, ...]]] = {}
    if settings.entropy_coef is None or settings.kl_coef is None or (settings.kl_coef and penalty is None):
        return
    if settings.entropy_coef:
        beside["entropy"] = (-settings.entropy_coef, entropy, ("entropy",))
    if settings.kl_coef and penalty is not None:
        beside["KL"] = (settings.kl_coef, penalty, ("logprob", "ref_logprob"))
    parts = (policy, *(part for _, part, _ in beside.values()))
    needs = tuple(dict.fromkeys([*needs, *(name for _, _, own in beside.values() for name in own)]))
    needs += tuple(dict.fromkeys(name for _, how in parts for name in AGGREGATIONS[how]))
    shares = [derived(partial(aggregated, rows=rows, mode=how)) for rows, how in parts]
    reduction = sums_by(MINIBATCH, *shares, needs=needs, optional=READ)

    def entries(**factors: float) -> Callable[[Keyed], Entries]:
        of = [1.0, *(factor * factors.get(name, 1.0) for name, (factor, _, _) in beside.items())]
        return partial(each, terms=tuple((at, factor) for at, factor in enumerate(of) if factor))

    others = [
        Hypothesis(label, told, reduction, entries(**{name: by}))
        for name, (factor, _, _) in beside.items() for label, told, by in other_factors(name, factor)
    ]  # fmt: skip
    for label, told, other in other_ends(settings):
        changed = derived(partial(aggregated, rows=derived(partial(policy_rows, settings=other)), mode=policy[1]))
        summed_up = sums_by(MINIBATCH, changed, *shares[1:], needs=needs, optional=READ)
        others.append(Hypothesis(label, told, summed_up, entries()))
    yield Logged("actor/loss", "policy.loss_total", "1", reduction, entries(), "step", lambda: tuple(others))


def _loss_is_known(settings: Settings) -> bool:
    """Whether the constants of the policy loss are."""
    if settings.loss_mode == "sapo":
        return settings.tau_positive is not None and settings.tau_negative is not None
    if settings.loss_mode == "dro":
        return settings.dro_beta is not None
    return _bounds_are_known(settings) and _cap_is_known(settings)


def _bounds_are_known(settings: Settings) -> bool:
    return settings.loss_mode not in BOUNDED or (settings.low is not None and settings.high is not None)


def _cap_is_known(settings: Settings) -> bool:
    return settings.loss_mode not in _CAPPED or settings.dual_clip is not None


@derived
def _to_reference(batch: Batch) -> Floats:
    return selected(batch, "logprob") - selected(batch, "ref_logprob")


def _row_mean(t: Terms) -> Shares:
    """A plain mean over the rows of the micro-batch, those without a token too."""
    loss, size = row_losses(t)
    return Shares(loss, size, np.ones(t.batch.n_sequences, np.int64))
