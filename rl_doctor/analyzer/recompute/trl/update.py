"""What TRL logs of each micro-batch of an update: entropies, KL, clip fractions, losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, selected
from rl_doctor.analyzer.recompute.extremes import largest, ranges_by, smallest
from rl_doctor.analyzer.recompute.registry import Hypothesis, Logged
from rl_doctor.analyzer.recompute.stages import (
    MICROBATCH,
    MICROBATCH_OF_RANK,
    Flags,
    Shares,
    extremes_of_ranks,
    means,
    means_of_ranks,
    sums_by,
    sums_over_ranks,
    token_shares,
)
from rl_doctor.analyzer.recompute.trl.settings import Settings
from rl_doctor.analyzer.recompute.trl.tokens import WINDOWED, Terms, terms
from rl_doctor.analyzer.recompute.variations.hypotheses import parted
from rl_doctor.analyzer.recompute.variations.measures import Part
from rl_doctor.analyzer.recompute.variations.ranges import WORDS
from rl_doctor.analyzer.recompute.variations.values import Clip, Differences, as_tokens, clamps, clipped_shares, estimates, parts
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.store.batch import Batch

_RATIO: Final = ("logprob", "old_logprob")
_CLIPPED: Final = frozenset({"grpo", "bnpo", "dr_grpo", "dapo", "luspo"})
_MASKED: Final = (*_RATIO, "advantage")

Marks = Callable[[Terms], tuple[Flags, Flags, Flags]]
"""Terms -> flags of (low, high, too close to tell), per token or per sequence."""


def grpo_keys(settings: Settings, *, extra_loss: bool) -> Iterator[Logged]:
    """Keys of ``GRPOTrainer._compute_loss``.

    Args:
        settings: the configuration.
        extra_loss: whether the loss has a term that is not recorded.
    """
    yield from entropy(settings)
    kl_needs = ("logprob", "ref_logprob", *(("old_logprob",) if settings.bias_corrected_kl else ())) if settings.beta else ()
    known_kl = not settings.beta or settings.bias_corrected_kl is not None
    if settings.beta and known_kl:
        yield from _reference_kl(settings, kl_needs)
    if settings.loss_type in _CLIPPED:
        yield from clip_keys(settings, lambda t: t.clipped, Terms.flag_shares, Terms.fractions)
        if settings.version.single_clip_key:
            yield from _mean(settings, "clip_ratio", None, "1", lambda t: _flagged(t, t.unclipped, 0, 1), _MASKED)
    if settings.loss_type == "cispo":
        shares: Callable[[Terms], Shares] = lambda t: _flagged(t, t.capped, 1)  # noqa: E731
        yield from _mean(settings, "cispo_clip_ratio", "policy.clip_frac_high", "1", shares, _MASKED)
    if settings.loss_type == "vespo":
        needs = (*_MASKED, *(("is_weight",) if settings.corrects_sampling else ()))
        mean = sums_by(MICROBATCH, _of(settings, lambda t: t.vespo_shares), needs=needs)
        yield Logged("vespo/phi_seq_mean", None, "1", mean, means(settings.microbatch_rows))
    if known_kl and settings.plain_loss and _known_window(settings):
        yield from _losses(settings, kl_needs, extra=extra_loss)


def _known_window(settings: Settings) -> bool:
    """Whether it is known what the loss is divided by, and which log-probabilities an off-policy mask uses."""
    version = settings.version
    if settings.off_policy_limit is not None and settings.uses_engine and version.sampling_mask is None:
        return False
    if settings.loss_type not in WINDOWED:
        return True
    scaled = version.scaled_window is not None or settings.steps_per_generation == settings.accumulation
    return scaled and (version.mean_bonus is not None or not settings.entropy_coef)


def entropy(settings: Settings) -> Iterator[Logged]:
    """The entropy of the current policy."""
    shares: Callable[[Terms], Shares] = lambda t: token_shares(t.batch, selected(t.batch, "entropy"))  # noqa: E731
    yield from _mean(settings, "entropy", "policy.entropy", "nat", shares, ("entropy",))


def _of(settings: Settings, shares: Callable[[Terms], Shares]) -> Callable[[Batch], Shares]:
    return lambda batch: shares(terms(batch, settings))


def _flagged(t: Terms, flags: tuple[Flags, Flags, Flags], *which: int) -> Shares:
    return t.flag_shares(np.logical_or.reduce([flags[side] for side in which]), flags[2])


def _mean(
    settings: Settings, name: str, metric: str | None, unit: str, shares: Callable[[Terms], Shares], needs: tuple[str, ...],
    others: Callable[[], tuple[Part, ...]] = tuple,
) -> Iterator[Logged]:  # fmt: skip
    """A mean over the tokens or rows of a micro-batch: of all ranks, or of the ranks' means; none where that is not known."""
    version = settings.version
    by_rank = settings.ranks > 1 and not version.token_weighted
    if by_rank and version.token_weighted is None:
        return
    share = derived(_of(settings, shares))
    staged = partial(means, settings.microbatch_rows)
    if by_rank:
        staged = partial(means_of_ranks, settings.microbatch_rows, empty=version.empty_ranks)
    by = MICROBATCH_OF_RANK if by_rank else MICROBATCH
    reduction = sums_by(by, share, needs=needs)

    def hypotheses() -> tuple[Hypothesis, ...]:
        return parted(by, staged, needs, others())

    yield Logged(name, metric, unit, reduction, staged(), hypotheses=hypotheses)


def _reference_kl(settings: Settings, needs: tuple[str, ...]) -> Iterator[Logged]:
    """The mean of k3; TRL multiplies it by the ratio if so configured."""

    def others() -> tuple[Part, ...]:
        told = "is k3 without the ratio" if settings.bias_corrected_kl else "is k3 times the ratio"
        twin = Part(
            told.removeprefix("is "), told, _of(settings, lambda t: token_shares(t.batch, *t.other_kl)), ("old_logprob",)
        )  # fmt: skip
        x: Differences = lambda batch: terms(batch, settings).reference_difference  # noqa: E731
        return (twin, *parts(as_tokens, [*estimates(x, "k3"), *(() if settings.bias_corrected_kl else clamps(x, "k3", None))]))

    shares: Callable[[Terms], Shares] = lambda t: token_shares(t.batch, *t.kl)  # noqa: E731
    yield from _mean(settings, "kl", "ref.kl_k3", "nat", shares, needs, others)


def clip_keys(
    settings: Settings,
    clipped: Marks,
    shares: Callable[[Terms, Flags, Flags], Shares],
    fractions: Callable[[Terms, Flags, Flags], tuple[Floats, Floats]],
) -> Iterator[Logged]:
    """The five ``clip_ratio`` keys.

    Args:
        settings: the configuration.
        clipped: the flags.
        shares: (terms, flags, too close to tell) -> the share of tokens or rows with a flag.
        fractions: (terms, flags, too close to tell) -> of each sequence the share of its tokens, and what may flip.
    """

    def pick(t: Terms, sides: tuple[int, ...]) -> tuple[Flags, Flags]:
        flags = clipped(t)
        return np.logical_or.reduce([flags[side] for side in sides]), flags[2]

    def share_of(*sides: int) -> Callable[[Terms], Shares]:
        return lambda t: shares(t, *pick(t, sides))

    def others(own: str, *sides: int) -> Callable[[], tuple[Part, ...]]:
        clip = Clip(lambda batch: terms(batch, settings).ratio, settings.low, settings.high, settings.delta)
        ends = tuple(
            Part(name, told, _of(other, share_of(*sides)))
            for name, told, other in _other_ends(settings)
            if any((other.low, other.high)[side] != (settings.low, settings.high)[side] for side in sides)
        )
        return lambda: (*parts(as_tokens, clipped_shares(clip, own)), *ends)

    def range_of(side: int) -> Reduction:
        return ranges_by(lambda batch: fractions(terms(batch, settings), *pick(terms(batch, settings), (side,))), needs=_MASKED)

    rows = settings.microbatch_rows
    yield from _mean(settings, "clip_ratio/low_mean", "policy.clip_frac_low", "1", share_of(0), _MASKED, others("lower side", 0))
    yield from _mean(
        settings, "clip_ratio/high_mean", "policy.clip_frac_high", "1", share_of(1), _MASKED, others("upper side", 1)
    )
    yield from _mean(
        settings, "clip_ratio/region_mean", "policy.clip_frac", "1", share_of(0, 1), _MASKED, others("both sides", 0, 1)
    )
    if settings.version.token_weighted:
        yield Logged("clip_ratio/low_min", None, "1", range_of(0), smallest(rows))
        yield Logged("clip_ratio/high_max", None, "1", range_of(1), largest(rows))
    elif settings.version.token_weighted is False:
        for side, (name, end) in enumerate((("clip_ratio/low_min", min), ("clip_ratio/high_max", max))):
            reduction = sums_by(MICROBATCH_OF_RANK, _of(settings, share_of(side)), needs=_MASKED)
            found = extremes_of_ranks(rows, end, empty=settings.version.empty_ranks)
            yield Logged(name, None, "1", reduction, found)


def _other_ends(settings: Settings) -> tuple[tuple[str, str, Settings], ...]:
    """The canonical clip range, and the own one with one of its ends on both sides: name, sentence, and the settings."""
    low, high, other = 1.0 - settings.low, settings.high - 1.0, settings.canonical_range
    found = () if other is None else ((*WORDS, replace(settings, low=1.0 - other[0], high=1.0 + other[1])),)
    if math.isclose(low, high):
        return found
    told = "on both sides of the clip range"
    return (
        *found,
        ("lower bound on both sides", f"has the lower bound's {low:g} {told}", replace(settings, high=1.0 + low)),
        ("upper bound on both sides", f"has the upper bound's {high:g} {told}", replace(settings, low=1.0 - high)),
    )


def rloo_loss(settings: Settings) -> Logged:
    """The loss of RLOO."""
    return _loss(settings, sums_by(MICROBATCH_OF_RANK, _of(settings, lambda t: t.summed_loss), needs=_MASKED))


def _loss(settings: Settings, reduction: Reduction, hypotheses: Callable[[], tuple[Hypothesis, ...]] = tuple) -> Logged:
    entries = sums_over_ranks(settings.microbatch_rows, settings.ranks)
    return Logged("loss", "policy.loss_total", "1", reduction, entries, "per_step", hypotheses)


def _losses(settings: Settings, kl_needs: tuple[str, ...], *, extra: bool) -> Iterator[Logged]:
    needs = [*_MASKED, *kl_needs]
    if settings.corrects_sampling:
        needs.append("is_weight")
    if settings.off_policy_limit is not None and settings.uses_engine and settings.version.sampling_mask:
        needs.append("rollout_logprob")
    if settings.loss_type in WINDOWED:
        needs.append("num_items_in_batch")
    if settings.entropy_coef:
        policy = sums_by(MICROBATCH_OF_RANK, _of(settings, lambda t: t.unaccumulated_loss), needs=tuple(dict.fromkeys(needs)))
        yield Logged(
            "policy_loss", "policy.loss_pg", "1", policy, means_of_ranks(settings.microbatch_rows),
            hypotheses=partial(_policy_hypotheses, settings, tuple(dict.fromkeys(needs))),
        )  # fmt: skip
        needs.append("entropy")
    if extra:
        return
    unique = tuple(dict.fromkeys(needs))
    parts = (lambda t: t.loss_shares, *((lambda t: t.entropy_bonus,) if settings.entropy_coef else ()))
    reduction = sums_by(MICROBATCH_OF_RANK, *(_of(settings, part) for part in parts), needs=unique)
    yield _loss(settings, reduction, partial(_loss_hypotheses, settings, unique))


def _policy_hypotheses(settings: Settings, needs: tuple[str, ...]) -> tuple[Hypothesis, ...]:
    """What ``policy_loss`` may be: with other settings, without the KL term, or with the entropy bonus."""
    staged, unaccumulated = means_of_ranks(settings.microbatch_rows), _of(settings, lambda t: t.unaccumulated_loss)

    def hypothesis(name: str, sentence: str, *shares: Callable[[Batch], Shares], more: tuple[str, ...] = ()) -> Hypothesis:
        return Hypothesis(name, sentence, sums_by(MICROBATCH_OF_RANK, *shares, needs=(*needs, *more)), staged)

    found = [
        hypothesis(name, told, _of(other, lambda t: t.unaccumulated_loss), more=more)
        for name, told, other, more in _other_settings(settings)
    ]
    if settings.beta:
        found.append(hypothesis("no KL term", "has no KL term", _of(settings, lambda t: t.unaccumulated(t.policy_shares))))
    bonus = _of(settings, lambda t: t.unaccumulated(t.entropy_bonus))
    found.append(hypothesis("entropy term included", "has the entropy term in it", unaccumulated, bonus, more=("entropy",)))
    return tuple(found)


def _other_losses(settings: Settings, needs: tuple[str, ...]) -> Iterator[Hypothesis]:
    """The loss as it is with other settings; what is added to it stays."""
    bonus = [_of(settings, lambda t: t.entropy_bonus)] if settings.entropy_coef else []
    for name, sentence, other, more in _other_settings(settings):
        reduction = sums_by(MICROBATCH_OF_RANK, _of(other, lambda t: t.loss_shares), *bonus, needs=(*needs, *more))
        yield Hypothesis(name, sentence, reduction, sums_over_ranks(settings.microbatch_rows, settings.ranks))


def _other_settings(settings: Settings) -> Iterator[tuple[str, str, Settings, tuple[str, ...]]]:
    """Other settings of the policy loss: name, sentence, the settings, and columns that they need beside."""
    changed: dict[str, tuple[str, Settings]] = {
        kind: (f"is aggregated as {kind}'s", replace(settings, loss_type=kind))
        for kind in ("grpo", "bnpo", "dr_grpo", "dapo")
        if kind != settings.loss_type and {kind, settings.loss_type} < {*_CLIPPED}
    }
    if settings.max_completion_length is None:
        changed.pop("dr_grpo", None)
    if settings.loss_type in _CLIPPED:
        changed["without the clip range"] = "is the loss without the clip range", replace(settings, low=0.0, high=np.inf)
        changed["upper bound alone"] = "clips at the upper bound alone", replace(settings, low=0.0)
        changed["lower bound alone"] = "clips at the lower bound alone", replace(settings, high=np.inf)
        changed |= {name: (told, other) for name, told, other in _other_ends(settings)}
        if settings.delta is not None:
            changed["without delta"] = "is the loss without the upper bound delta", replace(settings, delta=None)
    for name, (sentence, other) in changed.items():
        yield name, sentence, other, ("num_items_in_batch",) if other.loss_type in WINDOWED else ()


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
    reduction = sums_by(MICROBATCH_OF_RANK, *shares, needs=needs, exact=False)
    plain = dict.fromkeys(names, 1.0) | ({"other KL": 0.0} if beta else {})

    def hypothesis(name: str, sentence: str, **factors: float) -> Hypothesis:
        chosen = {**plain, **{key.replace("_", " "): factor for key, factor in factors.items()}}
        kept = tuple((names.index(key), factor) for key, factor in chosen.items() if factor)
        return Hypothesis(name, sentence, reduction, sums_over_ranks(settings.microbatch_rows, settings.ranks, kept))

    found = [*_other_losses(settings, needs)]
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
        size = abs(settings.entropy_coef)
        found += [
            hypothesis("entropy term with the opposite sign", "has the entropy term with the opposite sign", entropy=-1.0),
            hypothesis("no entropy term", "has no entropy term", entropy=0.0),
            hypothesis("entropy coefficient twice", f"applies the entropy coefficient twice ({size:g} * {size:g})", entropy=size),
            hypothesis(
                "entropy term without its coefficient", "has the entropy term without its coefficient", entropy=1.0 / size
            ),
        ]
    return tuple(found)
