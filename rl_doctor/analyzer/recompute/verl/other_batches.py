"""verl: what the driver's statistics of a batch may be instead of what they are defined as."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, column_sums, known, per_sequence_counts, real_rows, selected
from rl_doctor.analyzer.recompute.other_statistics import Drawn, complement, other_readings, other_rows, others, unmasked
from rl_doctor.analyzer.recompute.registry import Hypothesis, Logged
from rl_doctor.analyzer.recompute.statistics import (
    STATISTICS,
    Reading,
    Statistic,
    Statistics,
    deviation_of,
    mean_of,
    of_rows,
    of_tokens,
)
from rl_doctor.analyzer.recompute.verl.batch import before_rejection, first_pass
from rl_doctor.analyzer.recompute.verl.settings import Settings
from rl_doctor.schema import REWARD_COMPONENT_PREFIX
from rl_doctor.store.batch import Batch

Rows = Callable[[Batch], Floats]
_TOKENS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "critic/advantages": ("advantage", ("return", "token_reward")),
    "critic/returns": ("return", ("advantage", "token_reward", "old_value")),
    "critic/values": ("old_value", ("value", "return")),
}
_ROWS: Final[Mapping[str, tuple[str, str]]] = {
    "critic/score": ("score", "reward"), "critic/rewards": ("reward", "score"), "num_turns": ("turns", ""),
    "training/num_turns": ("turns", ""),
}  # fmt: skip
_LENGTHS: Final = ("response_length", "response_length_non_aborted", "prompt_length")
_DISTANCE: Final = "training/rollout_probs_diff_"
_MASKED: Final = frozenset({"actor/entropy", "actor/reward_kl_penalty", "critic/vf_explained_var"})
_READ: Final[Mapping[str, Callable[[str], Reading]]] = {**dict(STATISTICS), "std": partial(deviation_of, ddof=1)}


def with_others(item: Logged, settings: Settings, columns: Collection[str]) -> Logged:
    """A key of the driver with what it may be instead."""
    draw: Callable[[Batch], Any] = item.reduction.partial
    own = Drawn(draw, item.entries, item.reduction.needs, item.reduction.optional)
    return replace(item, hypotheses=lambda: others(_of(item.name, own, settings, columns)))


def _of(key: str, own: Drawn, settings: Settings, columns: Collection[str]) -> Iterator[Hypothesis]:
    prefix, _, statistic = key.rpartition("/")
    if prefix in _TOKENS:
        yield from _of_tokens(own, *_TOKENS[prefix], statistic)
    elif prefix in _ROWS:
        yield from _of_rows(own, *_ROWS[prefix], statistic, columns)
    elif prefix in _LENGTHS:
        yield from _of_lengths(own, prefix, statistic, settings)
    elif key.startswith(_DISTANCE):
        yield from _of_distances(own, key.removeprefix(_DISTANCE))
    elif key == "training/rollout_actor_probs_pearson_corr":
        yield from _of_correlation(own)
    elif key in _MASKED:
        yield from (*unmasked(own), *other_rows(own))
        if key.endswith("explained_var"):
            yield from complement(own)


def _drawn(own: Drawn, function: Rows, read: Reading, *needs: str, name: str = "value") -> Drawn:
    """A statistic of one number per row of the batch, NaN for rows that do not count."""

    def draw(batch: Batch) -> Statistics:
        first = first_pass(batch)
        values = function(first)[real_rows(first)]
        return Statistics({name: of_rows(values[~np.isnan(values)])})

    return replace(own, draw=draw, read=read, needs=needs)


def _column(name: str) -> Rows:
    def values(batch: Batch) -> Floats:
        column = batch.columns[name]
        return np.where(known(column), column.astype(np.float64), np.nan)

    return values


def _of_rows(own: Drawn, column: str, other: str, statistic: str, columns: Collection[str]) -> Iterator[Hypothesis]:
    """Of a score, a reward, or turns."""
    read = _READ[statistic]("value")
    if other:
        yield _drawn(own, _column(other), read, other).named(f"{other} for {column}", f"uses {other} where {column} belongs")
        for name in sorted(name for name in columns if name.startswith(REWARD_COMPONENT_PREFIX)):
            told = f"is that of the component {name.removeprefix(REWARD_COMPONENT_PREFIX)} alone"
            yield _drawn(own, _column(name), read, name).named(f"{name} alone", told)
    if statistic == "mean":

        def draw(batch: Batch) -> Statistics:
            first = first_pass(batch)
            counts = per_sequence_counts(first)
            return Statistics({"value": of_tokens(first, np.repeat(_column(column)(first), counts))})

        weighted = replace(own, draw=draw, read=read, needs=(column, "response_mask"))
        yield weighted.named("weighted by tokens", "weighs each response by its tokens")
        every = _drawn(own, _column(column), read, column)
        yield every.named("aborted responses included", "counts responses without a token too")
    yield from other_readings(own, column, statistic)
    yield from other_rows(own)


def _of_tokens(own: Drawn, column: str, instead: Collection[str], statistic: str) -> Iterator[Hypothesis]:
    """Of a column per token."""
    yield from unmasked(own)
    for other in instead:

        def draw(batch: Batch, other: str = other) -> Statistics:
            first = first_pass(batch)
            return Statistics({column: of_tokens(first, selected(first, other))})

        changed = replace(own, draw=draw, needs=(other,))
        yield changed.named(f"{other} for {column}", f"uses {other} where {column} belongs")
    if statistic == "mean":
        read = mean_of("value")
        yield _drawn(own, partial(_row_means, column=column), read, column).named(
            "mean of the sequences' means", "is the mean of the sequences' own means, not a mean over tokens"
        )
        yield _drawn(own, partial(_row_sums, column=column), read, column).named(
            "mean of the sequences' sums", "is the mean over sequences of the sum over each"
        )
        yield _drawn(own, partial(_row_widths, column=column), read, column, "padded_width").named(
            "over the padded width", "divides by all positions of the padded rows"
        )
        size = replace(own, draw=partial(_sizes, column=column), read=read)
        yield size.named("absolute values", "is the mean absolute value")
    yield from other_readings(own, column, statistic)
    yield from other_rows(own)


def _sizes(batch: Batch, column: str) -> Statistics:
    first = first_pass(batch)
    return Statistics({"value": of_tokens(first, np.abs(selected(first, column)))})


def _row_sums(batch: Batch, column: str) -> Floats:
    return np.where(per_sequence_counts(batch) > 0, column_sums(batch, column), np.nan)


def _row_widths(batch: Batch, column: str) -> Floats:
    return column_sums(batch, column) / _column("padded_width")(batch)


def _row_means(batch: Batch, column: str) -> Floats:
    return _row_sums(batch, column) / np.maximum(per_sequence_counts(batch), 1)


def _of_lengths(own: Drawn, prefix: str, statistic: str, settings: Settings) -> Iterator[Hypothesis]:
    """Of lengths, or the share of them that are at the limit."""
    column = "prompt_length" if prefix == "prompt_length" else "response_length"
    limit = settings.prompt_limit if column == "prompt_length" else settings.response_limit
    alone = prefix.endswith("_non_aborted")
    of = "present" if alone else "length"
    functions: dict[str, tuple[str, Rows, tuple[str, ...]]] = {
        "with the prompt": ("counts the prompt's tokens too", _whole, ("prompt_length", "response_length")),
    }
    if column == "response_length":
        functions["tokens of the mask"] = "counts the tokens of the mask alone", _counts, ("response_mask",)
        functions["prompt_length for response_length"] = (
            "uses prompt_length where response_length belongs", _column("prompt_length"), ("prompt_length",),
        )  # fmt: skip
        empty = "counts responses without a token too" if alone else "leaves responses without a token out"
        functions["aborted responses " + ("included" if alone else "left out")] = empty, partial(_present, alone=alone), (column,)
    else:
        functions["response_length for prompt_length"] = (
            "uses response_length where prompt_length belongs", _column("response_length"), ("response_length",),
        )  # fmt: skip
    read = mean_of("value") if statistic == "clip_ratio" else _READ[statistic]("value")
    for name, (sentence, function, needs) in functions.items():
        if statistic != "clip_ratio":
            yield _drawn(own, function, read, *needs).named(name, sentence)
        elif limit is not None:
            yield _drawn(own, partial(_at_limit, function=function, limit=limit), read, *needs).named(name, sentence)
    if statistic == "clip_ratio":
        yield from complement(own)
        if column == "response_length":
            told = "is the share of responses that were cut off, as their finish_reason tells"
            yield _drawn(own, _cut_off, read, "finish_reason").named("finish reason", told)
    else:
        yield from other_readings(own, of, statistic)
    yield from other_rows(own)


def _whole(batch: Batch) -> Floats:
    return _column("prompt_length")(batch) + _column("response_length")(batch)


def _counts(batch: Batch) -> Floats:
    return per_sequence_counts(batch).astype(np.float64)


def _present(batch: Batch, *, alone: bool) -> Floats:
    lengths = _column("response_length")(batch)
    return lengths if alone else np.where(lengths > 0, lengths, np.nan)


def _at_limit(batch: Batch, function: Rows, limit: int) -> Floats:
    lengths = function(batch)
    return np.where(np.isnan(lengths), np.nan, (lengths >= limit) * 1.0)


def _cut_off(batch: Batch) -> Floats:
    reasons = batch.columns["finish_reason"]
    return np.where(known(reasons), (reasons == "length") * 1.0, np.nan)


def _logprobs(batch: Batch) -> tuple[Floats, Floats]:
    return selected(batch, "old_logprob"), selected(batch, "rollout_logprob")


_DISTANCES: Final[Mapping[str, tuple[str, Callable[[Floats, Floats], Floats]]]] = {
    "of log-probabilities": ("is that of the log-probabilities, not of the probabilities", lambda a, b: np.abs(a - b)),
    "with its sign": ("is that of the difference with its sign", lambda a, b: np.exp(a) - np.exp(b)),
    "log-ratio": ("is that of the log-ratio with its sign", lambda a, b: a - b),
    "squared": ("is that of the squared difference", lambda a, b: (np.exp(a) - np.exp(b)) ** 2),
    "relative": ("is that of the ratio's distance from 1", lambda a, b: np.abs(np.expm1(a - b))),
}


def _of_distances(own: Drawn, statistic: str) -> Iterator[Hypothesis]:
    """Of the distance between the probabilities of the trainer and of the engine."""
    if statistic not in _READ:
        return
    yield from unmasked(own)
    for name, (sentence, function) in _DISTANCES.items():
        yield replace(own, draw=partial(_distant, function=function)).named(name, sentence)
    yield from other_readings(own, "difference", statistic)
    yield from other_rows(own)


def _distant(batch: Batch, function: Callable[[Floats, Floats], Floats]) -> Statistics:
    before = before_rejection(batch)
    trained, sampled = _logprobs(before)
    size = np.exp(trained) + np.exp(sampled) + np.abs(trained) + np.abs(sampled)
    return Statistics({"difference": of_tokens(before, function(trained, sampled), size, squared=True)})


def _of_correlation(own: Drawn) -> Iterator[Hypothesis]:
    def draw(batch: Batch) -> Statistics:
        before = before_rejection(batch)
        trained, sampled = _logprobs(before)
        named: dict[str, Statistic] = {
            name: of_tokens(before, values, squared=True)
            for name, values in (("trained", trained), ("sampled", sampled), ("both", trained + sampled))
        }
        return Statistics(named)

    yield from unmasked(own)
    yield replace(own, draw=draw).named("of log-probabilities", "is that of the log-probabilities, not of the probabilities")
    yield from other_rows(own)
