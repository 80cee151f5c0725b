"""What TRL logs once per generation batch: rewards, lengths, and the distance from the sampling engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, known
from rl_doctor.analyzer.formulas.reward import weighted_reward
from rl_doctor.analyzer.recompute.other_rollouts import (
    STATISTICS,
    Other,
    Values,
    by_group,
    column,
    complement,
    deviation_of,
    exchanged,
    first_of_each,
    mean_of,
    of,
    other_values,
)
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, UNKNOWN, Entries, entry
from rl_doctor.analyzer.recompute.trl.rows import value
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.schema import REWARD_COMPONENT_PREFIX
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

if TYPE_CHECKING:
    from rl_doctor.analyzer.recompute.trl.settings import Settings

ZERO_STD: Final = 1e-8
"""``torch.isclose`` to zero: its absolute tolerance."""


def once(settings: Settings, function: Callable[[Batch], Entries], *needs: str, optional: tuple[str, ...] = ()) -> Reduction:
    """A rollout reduction that gives one entry per generation batch, unknown where rows are missing."""

    def fold(batch: Batch) -> Entries:
        if settings.generation_rows is not None and batch.n_sequences != settings.generation_rows:
            return UNKNOWN
        return function(batch)

    return Reduction(fold, Entries(), needs, optional, "rollout")


def mean(column: str) -> Callable[[Batch], Entries]:
    """Mean of a column, NaN left out."""

    def entries(batch: Batch) -> Entries:
        return mean_of(batch.columns[column].astype(np.float64))

    return entries


def deviation(column: str) -> Callable[[Batch], Entries]:
    """Standard deviation (ddof 1) of a column, NaN left out."""

    def entries(batch: Batch) -> Entries:
        return deviation_of(batch.columns[column].astype(np.float64))

    return entries


def logged_reward(settings: Settings, batch: Batch) -> Floats | None:
    """The reward per sequence that is logged: the weighted sum of the components, or the score without components.

    What no function could score is NaN where it is left out, and else 0. None where the rewards cannot be told.
    """
    version, weights = settings.version, settings.weights
    if settings.rloo and not version.raw_reward:
        return None if version.raw_reward is None else batch.columns["reward"].astype(np.float64)
    plain = all(weight == 1.0 for weight in weights.values())
    names = [name for name in weights if REWARD_COMPONENT_PREFIX + name in batch.columns]
    if names and len(names) == len(weights):
        factors = [weights[name] if version.weighted_reward else 1.0 for name in names]
        total = weighted_reward(np.stack([column(REWARD_COMPONENT_PREFIX + name)(batch) for name in names], 1), np.array(factors))
    elif version.weighted_reward or plain:
        score = batch.get("score")
        total = (batch.columns["reward"] if score is None else score).astype(np.float64)
    else:
        return None
    if version.skips_unscored or not np.isnan(total).any():
        return total
    return None if version.skips_unscored is None else np.nan_to_num(total)


def of_reward(settings: Settings, statistic: Callable[[Floats], Entries]) -> Callable[[Batch], Entries]:
    """A statistic of the logged reward."""

    def entries(batch: Batch) -> Entries:
        found = logged_reward(settings, batch)
        return UNKNOWN if found is None else statistic(found)

    return entries


def reward_mean(settings: Settings) -> Callable[[Batch], Entries]:
    """Mean of the logged reward."""
    return of_reward(settings, mean_of)


def reward_deviation(settings: Settings) -> Callable[[Batch], Entries]:
    """Standard deviation of the logged reward over the whole generation batch."""
    return of_reward(settings, deviation_of)


def mean_group_deviation(settings: Settings) -> Callable[[Batch], Entries]:
    """Mean of the groups' standard deviations of the logged reward."""

    def entries(batch: Batch) -> Entries:
        found = logged_reward(settings, batch)
        return UNKNOWN if found is None else by_group(lambda _: found, batch, 1)

    return entries


def other_reward_means(settings: Settings) -> tuple[Other, ...]:
    """Other means of the reward: another column, other weights, other rows, another statistic."""
    return first_of_each(
        _unweighted(settings, mean_of),
        (
            Other(
                "the reward that the advantage uses", "is the mean of the reward that the advantage is computed from (the column "
                "reward), not of the score", mean("reward"), ("reward", "score"),
            ),
        ),
        other_values(partial(_reward_or_nothing, settings), "mean"),
    )  # fmt: skip


def other_reward_deviations(settings: Settings, *, grouped: bool = False) -> tuple[Other, ...]:
    """Other standard deviations of the reward, than that over all rows or, ``grouped``, the mean of the groups'."""
    values = partial(_reward_or_nothing, settings)
    whole = (Other("over all rows", "is the standard deviation over all rows", of(values, deviation_of)),) if grouped else ()
    found = first_of_each(whole, other_values(values, "std"), _unweighted(settings, deviation_of))
    return tuple(one for one in found if not (grouped and one.name == "mean of the groups' deviations"))


def _reward_or_nothing(settings: Settings, batch: Batch) -> Floats:
    found = logged_reward(settings, batch)
    return np.full(batch.n_sequences, np.nan) if found is None else found


def _unweighted(settings: Settings, function: Callable[[Floats], Entries]) -> Iterator[Other]:
    weights = settings.reward_weights or {}
    if any(weight != 1.0 for weight in weights.values()):
        ones = replace(settings, reward_weights=dict.fromkeys(weights, 1.0))
        yield Other(
            "without the reward weights", "is that of the sum of the components without their weights",
            of_reward(ones, function), tuple(REWARD_COMPONENT_PREFIX + name for name in weights),
        )  # fmt: skip


def other_means_of(settings: Settings, component: str) -> tuple[Other, ...]:
    """Other means of a reward component."""
    weight = (settings.reward_weights or {}).get(component.removeprefix(REWARD_COMPONENT_PREFIX), 1.0)
    values = column(component)
    sentence = f"is the mean after the component's weight of {weight:g}"
    weighted = Other("after the reward weight", sentence, of(lambda batch: weight * values(batch), mean_of))
    return first_of_each(() if weight == 1.0 else (weighted,), other_values(values, "mean"))


def other_lengths(values: Values, statistic: str, *, terminated: bool = False) -> tuple[Other, ...]:
    """Other statistics of response lengths, than that of all of them or, ``terminated``, of those that ended by themselves."""
    whole, prompt = column("response_length"), column("prompt_length")
    counted: dict[str, tuple[str, Values, tuple[str, ...]]] = {
        "tools' tokens included": ("counts what tools and environments wrote too", whole, ("response_length",)),
        "tokens of the mask": ("counts the tokens of the mask alone", column(value("tokens")), (value("tokens"),)),
        "with the prompt": ("counts the prompt's tokens too", lambda batch: values(batch) + prompt(batch), ("prompt_length",)),
        "with the prompt and tools' tokens": (
            "counts the tokens of the prompt and what tools and environments wrote too",
            lambda batch: whole(batch) + prompt(batch), ("prompt_length", "response_length"),
        ),
        "prompt_length for response_length": (
            "uses prompt_length where response_length belongs", prompt, ("prompt_length",),
        ),
    }  # fmt: skip
    kept = {
        name: (sentence, _ended(function) if terminated else function, needs)
        for name, (sentence, function, needs) in counted.items()
    }
    found = [*exchanged(statistic, kept), *other_values(_ended(values) if terminated else values, statistic)]
    if terminated:
        found.append(
            Other("truncated responses included", "counts responses that were cut off too", of(values, STATISTICS[statistic][1]))
        )
    return first_of_each(one for one in found if not (terminated and one.name.endswith("responses only")))


def _ended(values: Values) -> Values:
    return lambda batch: np.where(batch.columns["finish_reason"] == "stop", values(batch), np.nan)


def other_shares(function: Callable[[Batch], Entries], limit: int | None) -> tuple[Other, ...]:
    """Other shares of truncated responses."""

    def at_limit(batch: Batch) -> Floats:
        return (column("response_length")(batch) >= (limit or 0)).astype(np.float64)

    def cut_off(batch: Batch) -> Floats:
        return np.asarray(batch.columns["finish_reason"] != "stop", np.float64)

    told = "is the share of responses that are as long as the limit"
    whole = () if limit is None else (Other("at the limit", told, of(at_limit, mean_of), ("response_length",)),)
    ranked = (one for one in other_values(cut_off, "mean") if one.name == "rank 0 only")
    return first_of_each(complement(function), whole, ranked)


def zero_deviation(*, by_group: bool, skips_unscored: bool | None = True) -> Callable[[Batch], Entries]:
    """Share of rows (all of them or none, unless by group) whose reward has a standard deviation of zero.

    Args:
        by_group: whether the deviation is the group's.
        skips_unscored: whether rows that no function could score are left out, instead of counting as 0; None where not known.
    """

    def entries(batch: Batch) -> Entries:
        rewards = batch.columns["reward"].astype(np.float64)
        if not skips_unscored and np.isnan(rewards).any():
            if skips_unscored is None:
                return UNKNOWN
            rewards = np.nan_to_num(rewards)
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


def completion_lengths(settings: Settings, *, masked: bool) -> Values:
    """Tokens of each response: where the mask leaves out some between others, which tools or environments wrote, those in it.

    A mask that only ends elsewhere than the response is not that of a tool.

    Args:
        settings: the configuration.
        masked: whether there is a mask to count.

    Returns:
        Batch -> lengths ``[n_sequences]``; NaN for a response that is not in the mask because it is truncated, which does not
        tell what of it is a tool's, and for all where the version is not known to leave out what tools wrote, or where more than
        the last token is left out behind the others, which a tool may have written.
    """

    def values(batch: Batch) -> Floats:
        whole = batch.columns["response_length"].astype(np.float64)
        if not masked:
            return whole
        inside, between = (batch.columns[value(name)].astype(np.float64) for name in ("tokens", "between"))
        if not between.any():
            return np.where((inside < whole - 1) & (inside > 0), np.nan, whole)
        truncated = (inside == 0) & (whole > 0) & settings.masks_truncated
        return np.where(truncated | (not settings.version.counts_generated), np.nan, inside)

    return values


def lengths(values: Values, function: Callable[[Floats], float], *, terminated: bool = False) -> Callable[[Batch], Entries]:
    """A statistic of response lengths; of those that ended by themselves, 0 where none did; unknown where one of them is."""

    def entries(batch: Batch) -> Entries:
        found = values(batch)
        if terminated:
            found = found[batch.columns["finish_reason"] == "stop"]
            found = found if found.size else np.zeros(1)
        return UNKNOWN if np.isnan(found).any() else entry(float(function(found)), TOLERANCE * float(found.max()))

    return entries


def truncated(batch: Batch, ranks: int = 1) -> Entries:
    """Share of responses that did not end by themselves; with ``ranks``, 1 - ranks times the share of those that did (0.18.0)."""
    reasons = batch.columns["finish_reason"]
    ended = float(np.mean(reasons == "stop"))
    return entry(1.0 - ranks * ended, TOLERANCE * ranks) if known(reasons).all() else UNKNOWN


def reference_k1(batch: Batch, *, by_rank: bool = False) -> Entries:
    """Mean over tokens of the signed log-ratio to the reference (RLOO), of all ranks or of the ranks' means."""
    if by_rank:
        found, size = (float(_by_rank(batch, name, "tokens").mean()) for name in ("reference_k1", "reference_k1_size"))
        return entry(found, TOLERANCE * size + EPSILON32)
    tokens = max(int(batch.columns[value("tokens")].sum()), 1)
    total, size = (float(batch.columns[value(name)].sum()) for name in ("reference_k1", "reference_k1_size"))
    return entry(total / tokens, TOLERANCE * size / tokens + EPSILON32)


def _ranks(batch: Batch) -> NDArray[np.int64]:
    rank = batch.get("rank")
    return np.zeros(batch.n_sequences, np.int64) if rank is None else codes(rank)


def _by_rank(batch: Batch, numerator: str, denominator: str) -> Floats:
    order = _ranks(batch)
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


def weight_end(batch: Batch, *, largest: bool) -> Entries:
    """The largest or the smallest importance weight of a token; a rank without tokens has 0."""
    values, order = batch.columns[value("weight_max" if largest else "weight_min")].astype(np.float64), _ranks(batch)
    filled = ~np.isnan(values)
    empty = np.setdiff1d(order, order[filled]).size > 0
    pick = np.max if largest else np.min
    return entry(float(pick(np.append(values[filled], 0.0) if empty else values[filled])), TOLERANCE)


def row_weights(statistic: Callable[[Floats], float]) -> Callable[[Batch], Entries]:
    """A statistic of the importance weights of whole sequences."""

    def entries(batch: Batch) -> Entries:
        values = batch.columns[value("weight_first")].astype(np.float64)
        return entry(float(statistic(values)), TOLERANCE * float(np.abs(values).max()))

    return entries
