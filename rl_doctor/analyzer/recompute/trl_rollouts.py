"""What TRL logs once per generation batch: rewards, lengths, and the distance from the sampling engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import (
    Floats,
    known,
    per_sequence_counts,
    per_sequence_sums,
    positions,
    segment_extremes,
    segment_sums,
    selected,
    selected_splits,
)
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, UNKNOWN, Entries, entry
from rl_doctor.analyzer.registry import PER_SEQUENCE_PREFIX, Reduction, sequence_value
from rl_doctor.schema import REWARD_COMPONENT_PREFIX, ROLES
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

if TYPE_CHECKING:
    from rl_doctor.analyzer.recompute.trl_settings import Settings

_ASSISTANT: Final = ROLES.index("assistant")
ZERO_STD: Final = 1e-8
"""``torch.isclose`` to zero: its absolute tolerance."""


@sequence_value("trl_tokens", needs=("response_mask",))
def _tokens(batch: Batch) -> NDArray[np.int64]:
    return per_sequence_counts(batch)


@sequence_value("trl_generated", needs=("response_length", "role"))
def _generated(batch: Batch) -> Floats:
    inside = positions(batch) < np.repeat(batch.columns["response_length"], np.diff(batch.splits))
    return segment_sums((inside & (batch.columns["role"] == _ASSISTANT)).astype(np.float64), batch.splits)


@sequence_value("trl_reference_k1", needs=("old_logprob", "ref_logprob", "response_mask"))
def _reference_k1(batch: Batch) -> Floats:
    return per_sequence_sums(batch, selected(batch, "old_logprob") - selected(batch, "ref_logprob"))


@sequence_value("trl_reference_k1_size", needs=("old_logprob", "ref_logprob", "response_mask"))
def _reference_k1_size(batch: Batch) -> Floats:
    return per_sequence_sums(batch, np.abs(selected(batch, "old_logprob") - selected(batch, "ref_logprob")))


def _sampling_difference(batch: Batch) -> tuple[Floats, NDArray[np.bool_]]:
    difference = np.abs(selected(batch, "old_logprob") - selected(batch, "rollout_logprob"))
    return difference, ~np.isnan(difference)


@sequence_value("trl_sampling_sum", needs=("old_logprob", "rollout_logprob", "response_mask"))
def _sampling_sum(batch: Batch) -> Floats:
    difference, scored = _sampling_difference(batch)
    return per_sequence_sums(batch, np.where(scored, difference, 0.0))


@sequence_value("trl_sampling_tokens", needs=("old_logprob", "rollout_logprob", "response_mask"))
def _sampling_tokens(batch: Batch) -> Floats:
    return per_sequence_sums(batch, _sampling_difference(batch)[1].astype(np.float64))


@sequence_value("trl_sampling_max", needs=("old_logprob", "rollout_logprob", "response_mask"))
def _sampling_max(batch: Batch) -> Floats:
    difference, scored = _sampling_difference(batch)
    _, highest = segment_extremes(np.where(scored, difference, 0.0), selected_splits(batch))
    return np.where(np.isnan(highest), 0.0, highest)


@sequence_value("trl_weight_sum", needs=("is_weight", "response_mask"))
def _weight_sum(batch: Batch) -> Floats:
    return per_sequence_sums(batch, selected(batch, "is_weight"))


def value(name: str) -> str:
    """The engine's name of one of the per-sequence values above."""
    return f"{PER_SEQUENCE_PREFIX}trl_{name}"


def once(settings: Settings, function: Callable[[Batch], Entries], *needs: str, optional: tuple[str, ...] = ()) -> Reduction:
    """A rollout reduction that gives one entry per generation batch, unknown where rows are missing."""

    def partial(batch: Batch) -> Entries:
        if settings.generation_rows is not None and batch.n_sequences != settings.generation_rows:
            return UNKNOWN
        return function(batch)

    return Reduction(partial, Entries(), needs, optional, "rollout")


def mean(column: str) -> Callable[[Batch], Entries]:
    """Mean of a column, NaN left out."""

    def entries(batch: Batch) -> Entries:
        return _mean(batch.columns[column].astype(np.float64))

    return entries


def deviation(column: str) -> Callable[[Batch], Entries]:
    """Standard deviation (ddof 1) of a column, NaN left out."""

    def entries(batch: Batch) -> Entries:
        return _deviation(batch.columns[column].astype(np.float64))

    return entries


def _mean(values: Floats) -> Entries:
    kept = values[~np.isnan(values)]
    return entry(float(kept.mean()), TOLERANCE * float(np.abs(kept).mean())) if kept.size else Entries()


def _deviation(values: Floats, ddof: int = 1) -> Entries:
    kept = values[~np.isnan(values)]
    return entry(float(kept.std(ddof=ddof)), TOLERANCE * float(np.abs(kept).mean())) if kept.size > ddof else Entries()


def weighted_reward(settings: Settings, batch: Batch) -> Floats:
    """Weighted sum of the reward components per sequence, NaN where none could score it; the score without components."""
    weights = settings.reward_weights or {}
    names = [name for name in weights if REWARD_COMPONENT_PREFIX + name in batch.columns]
    if not names or len(names) != len(weights):
        score = batch.get("score")
        return (batch.columns["reward"] if score is None else score).astype(np.float64)
    parts = np.stack([batch.columns[REWARD_COMPONENT_PREFIX + name] * weights[name] for name in names])
    total: Floats = np.where(np.isnan(parts).all(axis=0), np.nan, np.nansum(parts, axis=0))
    return total


def reward_mean(settings: Settings) -> Callable[[Batch], Entries]:
    """Mean of the weighted reward."""
    return lambda batch: _mean(weighted_reward(settings, batch))


def reward_deviation(settings: Settings) -> Callable[[Batch], Entries]:
    """Standard deviation of the weighted reward over the whole generation batch."""
    return lambda batch: _deviation(weighted_reward(settings, batch))


@dataclass(frozen=True, slots=True, eq=False)
class Other:
    """Another way to a number per generation batch: name and sentence of a ``Hypothesis``, and columns that it needs beside."""

    name: str
    sentence: str
    function: Callable[[Batch], Entries]
    needs: tuple[str, ...] = ()


Values = Callable[[Batch], Floats]


def column(name: str) -> Values:
    """A column as float64."""
    return lambda batch: batch.columns[name].astype(np.float64)


def other_deviations(values: Values) -> tuple[Other, ...]:
    """Other standard deviations than that over all rows with ddof 1."""
    by_group = "is the mean of the groups' standard deviations"
    return (
        Other("ddof 0", "is a standard deviation that divides by n, not by n - 1", lambda batch: _deviation(values(batch), 0)),
        Other("mean of the groups' deviations", f"{by_group} (ddof 1)", lambda batch: _by_group(values, batch, 1), ("group",)),
        Other(
            "mean of the groups' deviations, ddof 0", f"{by_group}, with ddof 0", lambda batch: _by_group(values, batch, 0),
            ("group",),
        ),
    )  # fmt: skip


def _by_group(values: Values, batch: Batch, ddof: int) -> Entries:
    """Plain mean over groups of the standard deviation within each."""
    numbers, group = values(batch), codes(batch.columns["group"])
    kept = ~np.isnan(numbers)
    numbers, group = numbers[kept], group[kept]
    if not numbers.size:
        return Entries()
    sizes = np.bincount(group)
    centre = np.bincount(group, numbers) / np.maximum(sizes, 1)
    squares = np.bincount(group, (numbers - centre[group]) ** 2)
    present = sizes > ddof
    found = float(np.sqrt(squares[present] / (sizes[present] - ddof)).mean()) if present.any() else np.nan
    return entry(found, TOLERANCE * float(np.abs(numbers).mean()))


def other_reward_means(settings: Settings) -> tuple[Other, ...]:
    """Other means of the reward: another column, or other weights."""
    return (
        *_unweighted(settings, _mean),
        Other(
            "the reward that the advantage uses", "is the mean of the reward that the advantage is computed from (the column "
            "reward), not of the score", mean("reward"), ("reward", "score"),
        ),
    )  # fmt: skip


def other_reward_deviations(settings: Settings) -> tuple[Other, ...]:
    """Other standard deviations of the reward."""
    return (
        *other_deviations(lambda batch: weighted_reward(settings, batch)),
        *_unweighted(settings, _deviation),
    )


def _unweighted(settings: Settings, function: Callable[[Floats], Entries]) -> Iterator[Other]:
    weights = settings.reward_weights or {}
    if any(weight != 1.0 for weight in weights.values()):
        ones = replace(settings, reward_weights=dict.fromkeys(weights, 1.0))
        yield Other(
            "without the reward weights", "is that of the sum of the components without their weights",
            lambda batch: function(weighted_reward(ones, batch)), tuple(REWARD_COMPONENT_PREFIX + name for name in weights),
        )  # fmt: skip


def other_means_of(settings: Settings, component: str) -> tuple[Other, ...]:
    """The mean of a reward component after its weight."""
    weight = (settings.reward_weights or {}).get(component.removeprefix(REWARD_COMPONENT_PREFIX), 1.0)
    if weight == 1.0:
        return ()
    values = column(component)
    sentence = f"is the mean after the component's weight of {weight:g}"
    return (Other("after the reward weight", sentence, lambda batch: _mean(weight * values(batch))),)


def zero_deviation(*, by_group: bool) -> Callable[[Batch], Entries]:
    """Share of rows (all of them or none, unless by group) whose reward has a standard deviation of zero."""

    def entries(batch: Batch) -> Entries:
        rewards = batch.columns["reward"].astype(np.float64)
        group = codes(batch.columns["group"]) if by_group else np.zeros(len(rewards), np.int64)
        zero = unsure = 0
        for number in range(int(group.max()) + 1):
            rows = rewards[group == number]
            kept = rows[~np.isnan(rows)]
            if kept.size > 1:
                flat = float(kept.std(ddof=1)) <= ZERO_STD
                zero += flat * len(rows)
                unsure += (flat and not _sums_exactly(kept[0], kept.size)) * len(rows)
        return entry(zero / len(rewards), unsure / len(rewards))

    return entries


def _sums_exactly(number: float, times: int) -> bool:
    """Whether float32 adds ``number`` to itself without rounding; else a group of equal rewards may show a deviation."""
    multiples = number * np.arange(1, times + 1)
    return bool((multiples == multiples.astype(np.float32)).all())


def lengths(column: str, function: Callable[[Floats], float], *, terminated: bool = False) -> Callable[[Batch], Entries]:
    """A statistic of the response lengths in ``column``; of those that ended by themselves, 0 where none did."""

    def entries(batch: Batch) -> Entries:
        values = batch.columns[column].astype(np.float64)
        if terminated:
            values = values[batch.columns["finish_reason"] == "stop"]
            values = values if values.size else np.zeros(1)
        return entry(float(function(values)), TOLERANCE * float(values.max()))

    return entries


def truncated(batch: Batch) -> Entries:
    """Share of responses that did not end by themselves."""
    reasons = batch.columns["finish_reason"]
    return entry(float(np.mean(reasons != "stop")), TOLERANCE) if known(reasons).all() else UNKNOWN


def reference_k1(batch: Batch) -> Entries:
    """Mean over tokens of the signed log-ratio to the reference (RLOO)."""
    tokens = max(int(batch.columns[value("tokens")].sum()), 1)
    total, size = (float(batch.columns[value(name)].sum()) for name in ("reference_k1", "reference_k1_size"))
    return entry(total / tokens, TOLERANCE * size / tokens + EPSILON32)


def _by_rank(batch: Batch, numerator: str, denominator: str) -> Floats:
    rank = batch.get("rank")
    order = np.zeros(batch.n_sequences, np.int64) if rank is None else codes(rank)
    tops = np.bincount(order, batch.columns[value(numerator)].astype(np.float64))
    bottoms = np.bincount(order, batch.columns[value(denominator)].astype(np.float64))
    return np.divide(tops, bottoms, out=np.zeros_like(tops), where=bottoms > 0)


def sampling_mean(batch: Batch) -> Entries:
    """Unweighted mean over ranks of the mean over tokens of the distance from the engine's log-probabilities."""
    found = float(_by_rank(batch, "sampling_sum", "sampling_tokens").mean())
    return entry(found, TOLERANCE * found)


def sampling_max(batch: Batch) -> Entries:
    """Largest distance from the engine's log-probabilities."""
    found = float(batch.columns[value("sampling_max")].max())
    return entry(found, TOLERANCE * found)


def weight_mean(batch: Batch) -> Entries:
    """Unweighted mean over ranks of the mean over tokens of the importance weight."""
    found = float(_by_rank(batch, "weight_sum", "tokens").mean())
    return entry(found, TOLERANCE * found)
