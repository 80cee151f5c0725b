"""What OpenRLHF logs of the rollout as a whole: its rewards, groups and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import (
    Floats,
    known,
    per_sequence_counts,
    per_sequence_sums,
    positions,
    selected,
    selected_splits,
    selection,
)
from rl_doctor.analyzer.formulas.advantage import group_deviation
from rl_doctor.analyzer.formulas.segments import segment_extremes
from rl_doctor.analyzer.recompute.openrlhf.settings import Settings
from rl_doctor.analyzer.recompute.openrlhf.tokens import estimate
from rl_doctor.analyzer.recompute.other_rollouts import Other, Values, column, complement, exchanged, first_of_each, other_values
from rl_doctor.analyzer.recompute.registry import TOLERANCE, UNKNOWN, Entries, Hypothesis, Logged, entry
from rl_doctor.analyzer.registry import PER_SEQUENCE_PREFIX, Reduction, sequence_value
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

_KL = PER_SEQUENCE_PREFIX + "openrlhf_kl"
_KL_SIZE = PER_SEQUENCE_PREFIX + "openrlhf_kl_size"
_LENGTH = PER_SEQUENCE_PREFIX + "openrlhf_acting_length"
_SELECTED = PER_SEQUENCE_PREFIX + "openrlhf_selected"
_EPSILON = 1e-9
_NEEDS = ("old_logprob", "ref_logprob", "response_mask")


def _kl_terms(batch: Batch) -> tuple[Floats, Floats]:
    difference = selected(batch, "old_logprob") - selected(batch, "ref_logprob")
    return estimate(str(batch.info.config.kl_estimator or "k1"), difference)


@sequence_value("openrlhf_kl", needs=_NEEDS)
def _kl(batch: Batch) -> Floats:
    return per_sequence_sums(batch, _kl_terms(batch)[0])


@sequence_value("openrlhf_kl_size", needs=_NEEDS)
def _kl_size(batch: Batch) -> Floats:
    return per_sequence_sums(batch, _kl_terms(batch)[1])


@sequence_value("openrlhf_selected", needs=("response_mask",))
def _selected(batch: Batch) -> Floats:
    return per_sequence_counts(batch).astype(np.float64)


@sequence_value("openrlhf_acting_length", needs=("response_mask",))
def acting_length(batch: Batch) -> Floats:
    """Tokens from the first to the last that the policy sampled: what an environment wrote in between counts."""
    places = positions(batch)[selection(batch)].astype(np.float64)
    first, last = segment_extremes(places, selected_splits(batch))
    return np.where(per_sequence_counts(batch) > 0, last - first + 1.0, 0.0)


def keys(settings: Settings) -> Iterator[Logged]:
    """Statistics of the rollout, and what is one number per sequence but depends on its group."""
    level, spread = (partial(_other_rewards, statistic) for statistic in ("mean", "std"))
    yield _once(settings, "rollout/reward_mean", "reward.mean", "reward", _mean, "reward", others=level)
    yield _once(settings, "rollout/reward_std", "reward.std", "reward", _deviation, "reward", others=spread)
    share, metric = partial(complement, _truncated), "length.truncated_frac"
    yield _once(settings, "rollout/truncated_rate", metric, "1", _truncated, "finish_reason", others=share)
    yield _once(settings, "rollout/response_length_mean", None, "tokens", _length, _LENGTH, others=_other_lengths)
    yield _once(settings, "rollout/num_samples", None, "sequences", lambda batch: entry(float(batch.n_sequences)), "reward")
    if settings.samples > 1:
        yield _once(
            settings, "group_reward_std", "group.std_mean", "reward", _group_deviation, "reward", "group", trained=True
        )  # fmt: skip
    in_reward = not settings.kl_in_loss and bool(settings.kl_coefficient)
    if settings.kl_coefficient is not None:
        needs = ("reward", *(("group",) if settings.samples > 1 else ()), *((_KL, _KL_SIZE) if in_reward else ()))
        yield _once(settings, "return", "return.mean", "reward", partial(_returns, settings=settings), *needs, trained=True)


def _once(
    settings: Settings, name: str, metric: str | None, unit: str, function: Callable[[Batch], Entries], *needs: str,
    trained: bool = False, others: Callable[[], Iterable[Other]] = tuple,
) -> Logged:  # fmt: skip
    """A key with one entry per rollout, unknown where rows are missing.

    Args:
        settings: the arguments.
        name: native name.
        metric: canonical metric.
        unit: unit.
        function: what the whole rollout gives.
        needs: columns.
        trained: whether the mean is over what was trained on: some sequences less often where micro-batches do not come out even.
        others: what it may be instead.
    """

    def reduction(of_batch: Callable[[Batch], Entries], *more: str) -> Reduction:
        def partial_(batch: Batch) -> Entries:
            if batch.n_sequences != settings.rollouts or (trained and not _even(settings, batch)):
                return UNKNOWN
            return of_batch(batch)

        return Reduction(partial_, Entries(), (*needs, *more), ("rank",), "rollout")

    def hypotheses() -> tuple[Hypothesis, ...]:
        return tuple(Hypothesis(one.name, one.sentence, reduction(one.function, *one.needs), _itself) for one in others())

    return Logged(name, metric, unit, reduction(function), _itself, "step", hypotheses)


def _itself(state: Entries) -> Entries:
    return state


def _other_rewards(statistic: str) -> tuple[Other, ...]:
    """Other statistics of the reward, and of the score in its place."""
    score = {"score for reward": ("uses score where reward belongs", column("score"), ("score",))}
    return first_of_each(exchanged(statistic, score), other_values(_rewards, statistic))


def _other_lengths() -> tuple[Other, ...]:
    """Other means of the length."""
    acting, prompt, whole = column(_LENGTH), column("prompt_length"), column("response_length")
    counted: dict[str, tuple[str, Values, tuple[str, ...]]] = {
        "tokens of the mask": ("counts the tokens of the mask alone", column(_SELECTED), (_SELECTED,)),
        "all tokens of the response": ("counts all tokens of the response", whole, ("response_length",)),
        "with the prompt": ("counts the prompt's tokens too", lambda batch: acting(batch) + prompt(batch), ("prompt_length",)),
    }
    return first_of_each(exchanged("mean", counted), other_values(acting, "mean"))


def _even(settings: Settings, batch: Batch) -> bool:
    rank = batch.get("rank")
    sizes = np.array([batch.n_sequences]) if rank is None else np.bincount(codes(rank))
    return settings.microbatch is None or not (sizes % settings.microbatch).any()


def _rewards(batch: Batch) -> Floats:
    column = batch.columns["reward"]
    return np.where(known(column), column, np.nan)


def _found(value: float, size: float) -> Entries:
    return UNKNOWN if np.isnan(value) else entry(value, TOLERANCE * size)


def _mean(batch: Batch) -> Entries:
    rewards = _rewards(batch)
    return _found(float(rewards.mean()), float(np.abs(rewards).mean()))


def _length(batch: Batch) -> Entries:
    lengths = batch.columns[_LENGTH].astype(np.float64)
    return _found(float(lengths.mean()), float(lengths.mean()))


def _deviation(batch: Batch) -> Entries:
    rewards = _rewards(batch)
    return _found(float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0, float(np.abs(rewards).mean()))


def _truncated(batch: Batch) -> Entries:
    reasons = batch.columns["finish_reason"]
    return entry(float(np.mean(reasons == "length")), TOLERANCE) if known(reasons).all() else UNKNOWN


def _groups(batch: Batch) -> tuple[NDArray[np.int64], Floats, Floats]:
    """The number of each row's group, and its mean and deviation (ddof 1) at each row."""
    rewards, group = _rewards(batch), codes(batch.columns["group"])
    sizes = np.bincount(group)
    mean = np.bincount(group, rewards) / np.maximum(sizes, 1)
    squares: Floats = np.bincount(group, (rewards - mean[group]) ** 2).astype(np.float64)
    return sizes[group], mean[group], group_deviation(squares, sizes, 1)[group]


def _group_deviation(batch: Batch) -> Entries:
    _, _, deviation = _groups(batch)
    return _found(float(deviation.mean()), float(np.abs(_rewards(batch)).mean()))


def _returns(batch: Batch, settings: Settings) -> Entries:
    """The shaped reward of each sequence, minus the KL penalty of all its tokens."""
    rewards = _rewards(batch)
    shaped, size = rewards, np.abs(rewards)
    if settings.estimator in {"rloo", "reinforce_baseline", "dr_grpo", "group_norm"}:
        if settings.samples < 2:
            return UNKNOWN
        sizes, mean, deviation = _groups(batch)
        shaped, size = rewards - mean, np.abs(rewards) + np.abs(mean)
        if settings.estimator == "rloo":
            shaped, size = shaped * sizes / (sizes - 1), size * sizes / (sizes - 1)
        elif settings.estimator == "group_norm":
            # A group without spread divides by nearly nothing what rounding has left.
            scale = deviation + _EPSILON
            if (deviation <= TOLERANCE * size).any():
                flat = deviation <= TOLERANCE * size
                exact = np.abs(rewards - mean)[flat] == 0
                if not exact.all():
                    return UNKNOWN
            shaped, size = shaped / scale, size / np.where(scale > _EPSILON, scale, 1.0)
    elif settings.estimator == "flash_reinforce":
        shaped, size = rewards - rewards.mean(), np.abs(rewards) + abs(float(rewards.mean()))
    if settings.reward_clip is not None:
        shaped = np.clip(shaped, *settings.reward_clip)
    if not settings.kl_in_loss and settings.kl_coefficient:
        shaped = shaped - settings.kl_coefficient * batch.columns[_KL]
        size = size + settings.kl_coefficient * batch.columns[_KL_SIZE]
    return _found(float(shaped.mean()), float(size.mean()))
