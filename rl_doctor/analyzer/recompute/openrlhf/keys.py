"""OpenRLHF's PPO trainer: what each logged key means, from version 0.11.0 on.

A step logs itself. Each micro-batch gives one number per key and rank; these are averaged over ranks, micro-batches and epochs,
weighted by the tokens that the loss covers, or by sequences where the number is one per sequence. The critic's are averaged
without weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.derive import (
    Floats,
    derived,
    known,
    per_sequence_counts,
    per_sequence_sums,
    selected,
)
from rl_doctor.analyzer.formulas.value import clipped_value_errors
from rl_doctor.analyzer.recompute.openrlhf.rollouts import acting_length
from rl_doctor.analyzer.recompute.openrlhf.rollouts import keys as rollout_keys
from rl_doctor.analyzer.recompute.openrlhf.settings import Settings, doubts
from rl_doctor.analyzer.recompute.openrlhf.tokens import Terms, clipped_with, estimate, losses_with, other_ends, terms
from rl_doctor.analyzer.recompute.registry import TOLERANCE, Entries, Hypothesis, Logged, at_least, dialect
from rl_doctor.analyzer.recompute.stages import (
    MICROBATCH_OF_RANK,
    Share,
    Shares,
    average,
    certain,
    means_of_means,
    sums_by,
    token_shares,
)
from rl_doctor.analyzer.recompute.stages import Terms as Chosen
from rl_doctor.analyzer.recompute.variations.hypotheses import parted
from rl_doctor.analyzer.recompute.variations.measures import Part
from rl_doctor.analyzer.recompute.variations.values import Clip, Value, as_tokens, clipped_shares, estimates, losses, parts
from rl_doctor.analyzer.registry import Metric, Reduction
from rl_doctor.analyzer.states import Keyed, Sum, Sums
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch

_FIRST: Final = (0, 11, 0)
_STEP: Final = ("step",)
_WINDOW: Final = ("rollout_step", "epoch", "window")
_RATIO: Final = ("logprob", "old_logprob")
_NORMALISED: Final = ("grad_accumulation",)
_VALUE: Final = ("value", "old_value", "return")


def _applies(info: RunInfo) -> bool:
    return (info.trainer or "").lower() == "openrlhf" and at_least(info.trainer_version, *_FIRST)


def _missing_rows() -> Metric:
    """How many sequences with a token the windows of a step lack."""

    def partial_(batch: Batch) -> Keyed:
        zeros = np.zeros(batch.n_sequences, np.int64)
        columns = [batch.columns[name].astype(np.int64) if name in batch.columns else zeros for name in _WINDOW]
        unique, index = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        index, filled = index.reshape(-1), per_sequence_counts(batch) > 0
        size = batch.columns["global_batch_size"].astype(np.float64)
        return Keyed(
            {
                tuple(key): Sums((Sum.of(size[(index == at) & filled]), Sum(0, int((index == at).sum()))))
                for at, key in enumerate(unique.tolist())
            }
        )

    def final(state: Keyed) -> float:
        return float(sum(abs(sums[0].mean - sums[0].count) for sums in state.groups.values() if sums[0].total > 0))

    reduction = Reduction(partial_, Keyed({}), ("window", "global_batch_size", "response_mask"), _WINDOW, "token")
    return Metric("reconcile.missing_rows", "sequences", reduction, final, "", "")


@dialect(
    "OpenRLHF", _applies, missing_rows=_missing_rows(), doubts=doubts,
    source="openrlhf 0.11, models/loss.py, models/utils.py, trainer/ray/ppo_actor.py, ppo_critic.py, experience_maker.py",
)  # fmt: skip
def openrlhf(info: RunInfo, _columns: Collection[str], names: Collection[str]) -> tuple[Logged, ...]:
    """What the policy's and the critic's trainers and the controller log."""
    settings = Settings.of(info)
    if settings is None or info.partial:
        return ()
    found = [
        *_token_keys(settings),
        *_loss_keys(settings),
        *_row_keys(settings),
        *_critic_keys(settings),
        *rollout_keys(settings),
    ]
    return tuple(item for item in found if item.name in names)


def _of(settings: Settings, shares: Callable[[Terms], Shares]) -> Share:
    return derived(lambda batch: shares(terms(batch, settings)))


def _pooled(
    name: str, metric: str | None, unit: str, share: Share, needs: tuple[str, ...], others: Callable[[], Iterable[Part]] = tuple
) -> Logged:
    """A key that is weighted by what its average is taken over: the mean over the whole step."""

    def hypotheses() -> tuple[Hypothesis, ...]:
        return parted(_STEP, lambda chosen: partial(means_of_means, terms=chosen), needs, others(), ())

    return Logged(name, metric, unit, sums_by(_STEP, share, needs=needs, optional=()), means_of_means, "step", hypotheses)


def _token_keys(settings: Settings) -> Iterator[Logged]:
    """Masked means per micro-batch, weighted by the tokens that they are taken over."""
    distance, clipped = _of(settings, lambda t: t.distance), _of(settings, lambda t: t.clipped)
    difference: Callable[[Batch], Floats] = lambda batch: terms(batch, settings).difference  # noqa: E731
    yield _pooled(
        "ppo_kl", "policy.kl_old_k1", "nat", distance, _RATIO, partial(_parts, estimates, difference, "k1", "k1 reversed")
    )  # fmt: skip
    engine = ("rollout_logprob",) if settings.loss == "gspo" and settings.correction != "off" else ()
    needs = (*_RATIO, "advantage", *engine)

    def others() -> Iterator[Part]:
        yield from _parts(clipped_shares, _clip(settings), "both sides")
        for name, told, other in other_ends(settings):
            yield Part(name, told, derived(partial(clipped_with, settings=other)))

    yield _pooled("ppo_clip_ratio", "policy.clip_frac", "1", clipped, needs, others)
    if settings.correction != "off" and settings.loss == "ppo":
        needs = ("old_logprob", "rollout_logprob")
        away = _of(settings, lambda t: t.engine_distance)
        yield _pooled("vllm_kl", "mismatch.k1", "nat", away, needs)
        if settings.correction == "token":
            yield _pooled("is_filter_ratio", None, "1", _of(settings, lambda t: t.filtered), needs)
        else:
            rows = sums_by(MICROBATCH_OF_RANK, _of(settings, lambda t: t.filtered_rows), needs=needs, optional=())
            yield Logged("is_filter_ratio", None, "1", rows, _weighted_rows, "step")
    if settings.kl_in_loss and settings.kl_coefficient != 0.0:
        log_ratio = derived(lambda batch: token_shares(batch, _reference_difference(batch)))
        yield _pooled("logprobs_diff", "ref.kl_k1", "nat", log_ratio, ("logprob", "ref_logprob"))


def _weighted(state: Keyed, terms: Chosen = ()) -> Entries:
    """One entry per step: each micro-batch's sum on its rank, times the number of ranks, averaged with its tokens as weights."""
    if not state.groups:
        return Entries()
    ranks = len({key[0] for key in state.groups})
    value = tolerance = 0.0
    tokens = 0
    for sums in state.groups.values():
        index, factor = terms[0] if terms else (0, 1.0)
        numerator, magnitude, slack = sums.parts[3 * index : 3 * index + 3]
        weight = numerator.count
        value += factor * numerator.value * ranks * weight
        tolerance += abs(factor) * (TOLERANCE * magnitude.value + slack.value) * ranks * weight
        tokens += weight
    return certain(value / tokens, tolerance / tokens) if tokens else Entries()


def _weighted_rows(state: Keyed) -> Entries:
    """One entry per step: each micro-batch's mean over rows on its rank, averaged with its tokens as weights."""
    value = tolerance = 0.0
    tokens = 0
    for sums in state.groups.values():
        numerator, _, slack = sums.parts[:3]
        rows = max(sums.parts[-1].count, 1)
        value += numerator.value / rows * numerator.count
        tolerance += (TOLERANCE + slack.value / rows) * numerator.count
        tokens += numerator.count
    return certain(value / tokens, tolerance / tokens) if tokens else Entries()


Rows = Callable[[Batch], tuple[Floats, Floats, Floats]]
"""Batch -> loss summed per sequence, size of its summands, and what may flip at a threshold, each ``[n_sequences]``."""


def _aggregated(settings: Settings, rows: Rows, *, per_sequence: bool, factor: float = 1.0) -> Share:
    """What each sequence adds to the loss of its micro-batch on its rank (``aggregate_loss``), weighted by its tokens."""
    normaliser = "global_batch_size" if per_sequence else "batch_num_tokens"

    def share(batch: Batch) -> Shares:
        value, size, slack = rows(batch)
        counts, column = per_sequence_counts(batch), batch.columns[normaliser]
        scale = factor / np.where(known(column) & (column > 0), column, np.nan)
        accumulation = batch.get("grad_accumulation")
        if accumulation is not None and not settings.dynamic:
            scale = scale * np.maximum(accumulation, 1)  # DeepSpeed divides by it again
        if per_sequence:
            scale = scale / np.maximum(counts, 1)
        scale = np.where(counts > 0, scale, 0.0)
        return Shares(value * scale, size * scale, counts, slack * scale)

    return derived(share)


def _loss(
    settings: Settings, name: str, metric: str | None, unit: str, rows: Rows, needs: tuple[str, ...], *,
    per_sequence: bool = False, others: Iterable[tuple[str, str, Rows]] = (),
) -> Logged:  # fmt: skip
    """A key that is aggregated as a loss: divided by what its window has of tokens, or of sequences."""
    normaliser = "global_batch_size" if per_sequence else "batch_num_tokens"
    share = _aggregated(settings, rows, per_sequence=per_sequence)
    elsewise = [Part(label, told, _aggregated(settings, other, per_sequence=per_sequence)) for label, told, other in others]
    word = "a mean over tokens" if per_sequence else "a mean over sequences of their means"
    mode = "token-mean" if per_sequence else "seq-mean-token-mean"
    needed = "batch_num_tokens" if per_sequence else "global_batch_size"
    elsewise.append(Part(mode, f"is {word} ({mode})", _aggregated(settings, rows, per_sequence=not per_sequence), (needed,)))
    needs = (*needs, normaliser)
    hypotheses = partial(
        parted, MICROBATCH_OF_RANK, lambda chosen: partial(_weighted, terms=chosen), needs, elsewise, _NORMALISED
    )  # fmt: skip
    reduction = sums_by(MICROBATCH_OF_RANK, share, needs=needs, optional=_NORMALISED)
    return Logged(name, metric, unit, reduction, _weighted, "step", hypotheses)


def _loss_keys(settings: Settings) -> Iterator[Logged]:
    """Losses: of a micro-batch divided by the tokens or sequences of its whole window, weighted by the micro-batch's tokens."""

    def policy(batch: Batch) -> tuple[Floats, Floats, Floats]:
        value, size, slack = (per_sequence_sums(batch, part) for part in terms(batch, settings).loss)
        return value, size, slack

    needs = (*_RATIO, "advantage", *(("rollout_logprob",) if settings.correction != "off" else ()))
    yield _loss(
        settings, "policy_loss", "policy.loss_pg", "1", policy, needs, per_sequence=settings.per_sequence_loss,
        others=_other_losses(settings),
    )  # fmt: skip
    yield _loss(settings, "entropy_loss", "policy.entropy", "nat", _summed(_entropy), ("entropy",))
    if settings.kl_in_loss and settings.kl_coefficient != 0.0:
        kinds = {kind: _summed(partial(_reference_kl, kind=kind)) for kind in ("k1", "k2", "k3")}
        others = [(kind, f"is {kind}", rows) for kind, rows in kinds.items() if kind != settings.kl_estimator]
        yield _loss(
            settings, "kl", f"ref.kl_{settings.kl_estimator}", "nat", kinds[settings.kl_estimator], ("logprob", "ref_logprob"),
            others=others,
        )  # fmt: skip


def _clip(settings: Settings) -> Clip:
    return Clip(lambda batch: np.exp(terms(batch, settings).log_ratio), settings.low, settings.high, settings.dual_clip)


def _parts(make: Callable[..., Iterable[Value]], *arguments: Any) -> tuple[Part, ...]:
    return parts(as_tokens, list(make(*arguments)))


def _other_losses(settings: Settings) -> Iterable[tuple[str, str, Rows]]:
    """Losses with another clip range; with other values per token where nothing weighs them."""
    for name, told, other in other_ends(settings):
        yield name, told, partial(losses_with, settings=other)
    if settings.correction == "off":
        for one in losses(_clip(settings)):
            yield one.name, one.sentence, _summed(one.function)


def _summed(values: Callable[[Batch], tuple[Floats, Floats]]) -> Rows:
    def rows(batch: Batch) -> tuple[Floats, Floats, Floats]:
        value, size = (per_sequence_sums(batch, part) for part in values(batch))
        return value, size, np.zeros_like(value)

    return derived(rows)


def _entropy(batch: Batch) -> tuple[Floats, Floats]:
    values = selected(batch, "entropy")
    return values, np.abs(values)


@derived
def _reference_difference(batch: Batch) -> Floats:
    return selected(batch, "logprob") - selected(batch, "ref_logprob")


def _reference_kl(batch: Batch, kind: str) -> tuple[Floats, Floats]:
    return estimate(kind, _reference_difference(batch))


def _rows(values: Floats, size: Floats | None = None) -> Shares:
    """A mean over rows of ``values`` ``[n_sequences]``."""
    return Shares(values, np.abs(values) if size is None else size, np.ones(len(values), np.int64))


def _column(name: str) -> Share:
    def share(batch: Batch) -> Shares:
        column = batch.columns[name]
        return _rows(np.where(known(column), column.astype(np.float64), np.nan))

    return derived(share)


def _row_keys(settings: Settings) -> Iterator[Logged]:
    """One number per sequence, averaged over all that were trained on, once per epoch."""
    yield _pooled("reward", "reward.mean", "reward", _column("reward"), ("reward",))
    yield _pooled("score", "reward.score_mean", "reward", _column("score"), ("score",))
    yield _pooled("truncated", "length.truncated_frac", "1", derived(_truncated), ("finish_reason",))
    yield _pooled("response_length", None, "tokens", derived(lambda batch: _rows(acting_length(batch))), ("response_mask",))
    yield _pooled("total_length", None, "tokens", derived(_total_length), ("prompt_length", "response_length"))
    if settings.longest is not None:
        at_limit = derived(partial(_at_limit, longest=settings.longest))
        yield _pooled("response_clip_ratio", None, "1", at_limit, ("prompt_length", "response_length"))
    if not settings.kl_in_loss:
        needs = ("old_logprob", "ref_logprob")
        own = settings.kl_estimator
        for name, metric, kind in (("kl", f"ref.kl_{own}", own), ("logprobs_diff", None, None)):
            kinds = [other for other in ("k1", "k2", "k3") if other != kind]
            others = [Part(other, f"is {other}", derived(partial(_experience_kl, kind=other))) for other in kinds]
            tokens = derived(partial(_experience_kl, kind=kind, by_row=False))
            others.append(Part("tokens weighted", "is a mean over tokens, not over the sequences' means", tokens))
            yield _pooled(name, metric, "nat", derived(partial(_experience_kl, kind=kind)), needs, partial(tuple, others))


def _truncated(batch: Batch) -> Shares:
    reasons = batch.columns["finish_reason"]
    return _rows(np.where(known(reasons), (reasons == "length").astype(np.float64), np.nan))


@derived
def _whole_length(batch: Batch) -> Floats:
    parts = [batch.columns[name] for name in ("prompt_length", "response_length")]
    return np.where(
        np.logical_and.reduce([known(part) for part in parts]), sum(part.astype(np.float64) for part in parts), np.nan
    )


def _total_length(batch: Batch) -> Shares:
    return _rows(_whole_length(batch))


def _at_limit(batch: Batch, longest: int) -> Shares:
    whole = _whole_length(batch)
    return _rows(np.where(np.isnan(whole), np.nan, (whole >= longest).astype(np.float64)))


def _experience_kl(batch: Batch, kind: str | None, *, by_row: bool = True) -> Shares:
    """KL of the old policy to the reference: the mean over each sequence, or all tokens alike; None is the plain log-ratio."""
    difference = selected(batch, "old_logprob") - selected(batch, "ref_logprob")
    values, sizes = (difference, np.abs(difference)) if kind is None else estimate(kind, difference)
    counts = per_sequence_counts(batch)
    value, size = per_sequence_sums(batch, values), per_sequence_sums(batch, sizes)
    if not by_row:
        return Shares(value, size, counts)
    over = np.where(counts > 0, counts, np.nan)
    return _rows(value / over, size / over)


def _critic_keys(settings: Settings) -> Iterator[Logged]:
    """Per micro-batch and rank, averaged without weights."""
    mean = sums_by(MICROBATCH_OF_RANK, derived(_values), needs=("value",), optional=())
    yield Logged("values", "value.mean", "reward", mean, _plain_mean, "step")
    rows = derived(partial(_value_errors, clip=settings.value_clip))
    loss = _aggregated(settings, rows, per_sequence=False, factor=0.5)
    needs = (*_VALUE, "batch_num_tokens")
    unclipped = _aggregated(settings, derived(partial(_value_errors, clip=None)), per_sequence=False, factor=0.5)
    doubled = _aggregated(settings, rows, per_sequence=False)
    parts = [Part("without one half", "lacks the factor one half", doubled)]
    if settings.value_clip is not None:
        parts.append(Part("without the clip range", "is the loss without the clip range of the value", unclipped))
    hypotheses = partial(parted, MICROBATCH_OF_RANK, lambda chosen: partial(_plain_sums, terms=chosen), needs, parts, _NORMALISED)
    reduction = sums_by(MICROBATCH_OF_RANK, loss, needs=needs, optional=_NORMALISED)
    yield Logged("critic_loss", "value.loss", "1", reduction, _plain_sums, "step", hypotheses)


def _values(batch: Batch) -> Shares:
    return token_shares(batch, selected(batch, "value"))


def _value_errors(batch: Batch, clip: float | None) -> tuple[Floats, Floats, Floats]:
    value, old, returns = (selected(batch, name) for name in _VALUE)
    plain, clipped = clipped_value_errors(value, old, returns, math.inf if clip is None else clip)
    error = np.maximum(plain, clipped)
    scale = np.abs(value) + np.abs(old) + np.abs(returns)
    rounded = error + TOLERANCE * scale * np.sqrt(error)
    summed = per_sequence_sums(batch, error)
    return summed, per_sequence_sums(batch, rounded), np.zeros_like(summed)


def _plain_mean(state: Keyed, terms: Chosen = ()) -> Entries:
    """One entry per step: the averages of all micro-batches and ranks, averaged without weights."""
    found = [average(sums, terms) for sums in state.groups.values()]
    if not found:
        return Entries()
    return certain(math.fsum(value for value, _ in found) / len(found), math.fsum(slack for _, slack in found) / len(found))


def _plain_sums(state: Keyed, terms: Chosen = ()) -> Entries:
    """One entry per step: the sums of all micro-batches, times the number of ranks, averaged without weights."""
    ranks = len({key[0] for key in state.groups})
    index, factor = terms[0] if terms else (0, 1.0)
    whole = {key: Sums(sums.parts[3 * index : 3 * index + 3]) for key, sums in state.groups.items()}
    number = len(whole)
    value = math.fsum(sums[0].value for sums in whole.values()) * factor * ranks
    slack = math.fsum(TOLERANCE * sums[1].value + sums[2].value for sums in whole.values()) * abs(factor) * ranks
    return certain(value / number, slack / number) if number else Entries()
