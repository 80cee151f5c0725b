"""verl: statistics of a whole batch, which the driver logs once per step. Padding rows count where the driver counts them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import (
    Bools,
    Floats,
    column_sums,
    derived,
    known,
    per_sequence_counts,
    per_sequence_sums,
    real_rows,
    restricted,
    selected,
)
from rl_doctor.analyzer.formulas.kl import penalty
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, UNKNOWN, Entries, Logged, entry
from rl_doctor.analyzer.recompute.statistics import (
    NONE,
    STATISTICS,
    Reading,
    Statistic,
    Statistics,
    deviation_of,
    largest_of,
    mean_of,
    of_column,
    of_rows,
    of_tokens,
)
from rl_doctor.analyzer.recompute.verl.settings import Settings
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.store.batch import Batch

CLAMP: Final = 20.0
_PADDING_PROMPT: Final = 127
"""Prompt tokens of a row that verl adds to fill the batch."""
_EPSILON_RETURN: Final = 1e-5
_MASKS: Final = ("epoch", "is_padding", "response_mask")


@derived
def first_pass(batch: Batch) -> Batch:
    """The rows of the first epoch: each sequence of the batch once."""
    epoch = batch.get("epoch")
    if epoch is None or not epoch.any():
        return batch
    return restricted(batch, epoch == 0, tuple(batch.columns))


@derived
def before_rejection(batch: Batch) -> Batch:
    """The first pass with the mask that the driver had before rollout correction left tokens out."""
    first = first_pass(batch)
    wider, mask = first.get("loss_mask"), first.get("response_mask")
    if wider is None or mask is None:
        return first
    return replace(first, columns={**first.columns, "response_mask": wider.astype(np.bool_) | mask.astype(np.bool_)}, scratch={})


def once(name: str, metric: str | None, unit: str, reduction: Reduction, entries: Callable[[Any], Entries]) -> Logged:
    """A key that is logged once per step."""
    return Logged(name, metric, unit, reduction, entries, "step")


def whole(partial: Callable[[Batch], Statistics], *needs: str, optional: tuple[str, ...] = ()) -> Reduction:
    """A reduction over all rows of a step."""
    return Reduction(partial, NONE, needs, optional, "token")


def keys(settings: Settings) -> Iterator[Logged]:
    """Scores, rewards, lengths, turns, staleness, advantages, returns, values."""
    yield from _rewards(counts_empty=settings.era.counts_empty)
    yield from _lengths(settings)
    yield from _counts()
    for column, prefix, metric in (
        ("advantage", "critic/advantages", "adv."), ("return", "critic/returns", None), ("old_value", "critic/values", None),
    ):  # fmt: skip
        reduction = whole(_tokens_of(column), column, optional=_MASKS)
        for statistic, read in STATISTICS:
            canonical = None if metric is None else metric + statistic
            yield once(f"{prefix}/{statistic}", canonical, "1" if canonical else "reward", reduction, read(column))
    explained = whole(_errors, "old_value", "return", optional=_MASKS)
    yield once("critic/vf_explained_var", "value.explained_var", "1", explained, _explained)


def _tokens_of(column: str) -> Callable[[Batch], Statistics]:
    def partial(batch: Batch) -> Statistics:
        return Statistics({column: of_column(first_pass(batch), column)})

    return partial


def _errors(batch: Batch) -> Statistics:
    first = first_pass(batch)
    returns = selected(first, "return")
    error = returns - selected(first, "old_value")
    return Statistics({"error": of_tokens(first, error, squared=True), "return": of_tokens(first, returns, squared=True)})


def _explained(found: Statistics) -> Entries:
    """One minus the variance of the error over that of the return, both with ddof 1."""
    error, returns = found["error"], found["return"]
    if returns.count < 2:
        return Entries()
    scale = returns.variance(1) + _EPSILON_RETURN
    part = error.variance(1) / scale
    lost = EPSILON32 * (error.square + returns.square * part) / scale
    return entry(1.0 - part, TOLERANCE * (1.0 + part) + lost)


def _real(batch: Batch) -> tuple[Batch, Bools]:
    first = first_pass(batch)
    return first, real_rows(first)


def _numbers(values: NDArray[Any]) -> Floats:
    """A column as float64, NaN for null."""
    return np.where(known(values), values.astype(np.float64), np.nan)


def _rewards(*, counts_empty: bool) -> Iterator[Logged]:
    """Of the sequences that have a token; in 0.5 of all."""
    for name, column, metric in (("critic/score", "score", "reward.score_"), ("critic/rewards", "reward", "reward.")):
        reduction = whole(_present(column), column, "response_length", optional=("epoch", "is_padding"))
        if counts_empty:
            reduction = whole(_plain(column), column, optional=("epoch", "is_padding"))
        for statistic, read in STATISTICS:
            yield once(f"{name}/{statistic}", f"{metric}{statistic}", "reward", reduction, read(column))


def _present(column: str) -> Callable[[Batch], Statistics]:
    def partial(batch: Batch) -> Statistics:
        first, rows = _real(batch)
        rows = rows & (first.columns["response_length"] != 0)
        return Statistics({column: of_rows(_numbers(first.columns[column])[rows])})

    return partial


def _lengths(settings: Settings) -> Iterator[Logged]:
    """The share that is as long as the padded width: of the longest of the batch, or of the configured limit."""
    for prefix, column, limit in (
        ("response_length", "response_length", settings.response_limit),
        ("prompt_length", "prompt_length", settings.prompt_limit),
    ):
        reduction = whole(_lengths_of(column), column, optional=("epoch", "is_padding"))
        canonical = "length." if column == "response_length" else None
        for statistic, read in STATISTICS:
            name = None if canonical is None else canonical + statistic
            yield once(f"{prefix}/{statistic}", name, "tokens", reduction, read("length"))
            if canonical:
                yield once(f"{prefix}_non_aborted/{statistic}", None, "tokens", reduction, read("present"))
        if settings.jagged is None:
            continue
        if settings.jagged:
            at_width = whole(_widest_of(column), column, optional=("epoch", "is_padding"))
            yield once(f"{prefix}/clip_ratio", None, "1", at_width, _share_widest("length"))
            if canonical:
                yield once(f"{prefix}_non_aborted/clip_ratio", None, "1", at_width, _share_widest("present"))
        elif limit is not None:
            at_limit = whole(_at_limit(column, limit), column, optional=("epoch", "is_padding"))
            yield once(f"{prefix}/clip_ratio", "length.limit_frac" if canonical else None, "1", at_limit, mean_of("length"))
            if canonical:
                yield once(f"{prefix}_non_aborted/clip_ratio", None, "1", at_limit, mean_of("present"))
    aborted = whole(_aborted, "response_length", optional=("epoch", "is_padding"))
    yield once("response/aborted_ratio", "length.aborted_frac", "1", aborted, mean_of("aborted"))


def _lengths_of(column: str) -> Callable[[Batch], Statistics]:
    def partial(batch: Batch) -> Statistics:
        first, rows = _real(batch)
        lengths = _numbers(first.columns[column])[rows]
        return Statistics({"length": of_rows(lengths), "present": of_rows(lengths[lengths != 0])})

    return partial


def _at_limit(column: str, limit: int) -> Callable[[Batch], Statistics]:
    def partial(batch: Batch) -> Statistics:
        first, rows = _real(batch)
        lengths = _numbers(first.columns[column])[rows]
        at_limit = (lengths == limit).astype(np.float64)
        return Statistics({"length": of_rows(at_limit), "present": of_rows(at_limit[lengths != 0])})

    return partial


def _aborted(batch: Batch) -> Statistics:
    first, rows = _real(batch)
    return Statistics({"aborted": of_rows((first.columns["response_length"][rows] == 0).astype(np.float64))})


def _widest_of(column: str) -> Callable[[Batch], Statistics]:
    """How many rows have each length, as one quantity per length."""

    def partial(batch: Batch) -> Statistics:
        first, rows = _real(batch)
        lengths = _numbers(first.columns[column])
        padding = 1.0 if column == "response_length" else float(_PADDING_PROMPT)
        width = float(np.nanmax(lengths[rows], initial=0.0 if rows.all() else padding))
        values, counts = np.unique(lengths[rows], return_counts=True)
        found = {f"{value:g}": of_rows(np.ones(count)) for value, count in zip(values.tolist(), counts.tolist(), strict=True)}
        return Statistics({**found, "width": of_rows(np.array([width]))})

    return partial


def _share_widest(of: str) -> Reading:
    def read(found: Statistics) -> Entries:
        width = found["width"].extremes.max
        total = sum(item.count for name, item in found.named.items() if name != "width" and not (of == "present" and name == "0"))
        widest = 0 if of == "present" and width == 0 else found[f"{width:g}"].count
        return entry(widest / total, TOLERANCE) if total else Entries()

    return read


def _counts() -> Iterator[Logged]:
    """Turns of a trajectory, how many policy versions it lags behind, and how many it spans."""
    turns = whole(_plain("turns"), "turns", optional=("epoch", "is_padding"))
    lags = {
        "trajectory_staleness": whole(_lag_of("weight_version"), "weight_version", optional=("epoch", "is_padding")),
        "trajectory_staleness_worst": whole(
            _lag_of("first_weight_version"), "first_weight_version", optional=("epoch", "is_padding")
        ),
        "trajectory_spans": whole(_spans, "weight_version", "first_weight_version", optional=("epoch", "is_padding")),
    }
    for statistic, read in STATISTICS:
        for prefix in ("num_turns", "training/num_turns"):
            metric = "turns.mean" if statistic == "mean" else None
            yield once(f"{prefix}/{statistic}", metric, "turns", turns, read("turns"))
        for name, reduction in lags.items():
            yield once(f"training/off_policy/{name}/{statistic}", None, "versions", reduction, read("versions"))


def _plain(column: str) -> Callable[[Batch], Statistics]:
    def partial(batch: Batch) -> Statistics:
        first, rows = _real(batch)
        return Statistics({column: of_rows(_numbers(first.columns[column])[rows])})

    return partial


def _lag_of(column: str) -> Callable[[Batch], Statistics]:
    """The step before, whose weights are the newest that could have sampled, minus a version that did."""

    def partial(batch: Batch) -> Statistics:
        first, rows = _real(batch)
        return Statistics({"versions": of_rows(batch.step - 1 - _numbers(first.columns[column])[rows])})

    return partial


def _spans(batch: Batch) -> Statistics:
    """Number of versions from the oldest that sampled to the newest."""
    first, rows = _real(batch)
    newest, oldest = (_numbers(first.columns[name])[rows] for name in ("weight_version", "first_weight_version"))
    return Statistics({"versions": of_rows(newest - oldest + 1)})


def old_pass_keys(settings: Settings) -> Iterator[Logged]:
    """What the driver logs of the old logprobs: their entropy, their distance from the engine, their KL to the reference."""
    if settings.configured_agg is not None and not settings.overwrites_entropy:
        entropy = whole(_entropies, "old_entropy", optional=(*_MASKS, "loss_mask", "response_length", "loss_scale_factor"))
        yield once("actor/entropy", "policy.entropy", "nat", entropy, _aggregated(settings))
    needs = ("old_logprob", "rollout_logprob")
    distance = whole(
        _all_probabilities if settings.era.minor == (0, 5) else _probabilities, *needs, optional=(*_MASKS, "loss_mask")
    )
    prefix = "training/rollout_probs_diff"
    yield once(f"{prefix}_mean", "mismatch.prob_abs", "1", distance, mean_of("difference"))
    yield once(f"{prefix}_max", "mismatch.prob_max", "1", distance, largest_of("difference"))
    yield once(f"{prefix}_std", None, "1", distance, deviation_of("difference", ddof=1))
    yield once(f"{prefix}_valid", None, "1", distance, lambda found: entry(float(found["difference"].count > 0)))
    yield once("training/rollout_actor_probs_pearson_corr", "mismatch.prob_corr", "1", distance, _correlation)
    if settings.reward_kl_type is not None:
        penalty = whole(_penalty(settings.reward_kl_type), "old_logprob", "ref_logprob", optional=(*_MASKS, "loss_mask"))
        yield once("actor/reward_kl_penalty", "ref.kl_" + settings.reward_kl_type, "nat", penalty, mean_of("kl"))


def _entropies(batch: Batch) -> Statistics:
    before = before_rejection(batch)
    counts = per_sequence_counts(before)
    filled = counts > 0
    sums = column_sums(before, "old_entropy")[filled]
    found = {
        "token": of_column(before, "old_entropy"),
        "sum": of_rows(sums),
        "mean": of_rows(sums / counts[filled]),
        "rows": of_rows(filled),
    }
    lengths, factor = before.get("response_length"), before.get("loss_scale_factor")
    if lengths is not None:
        found["width"] = of_rows(_numbers(lengths))
    if factor is not None:
        found["factor"] = of_rows(factor.astype(np.float64))
    return Statistics(found)


def _aggregated(settings: Settings) -> Reading:
    """The loss aggregation over all rows of the batch at once, normalised by what the batch itself has."""

    def norm(found: Statistics) -> Entries:
        factor = Statistic() if settings.era.sums_constant else found["factor"]
        width = found["width"].extremes.max if settings.jagged else settings.response_limit
        scale = factor.mean if factor.count and not math.isnan(factor.mean) else None if settings.jagged is None else width
        read = summed(found) if settings.era.sums_constant else mean_of("sum")(found)
        return UNKNOWN if not scale else entry(read.total / scale, read.tolerance / scale)

    def summed(found: Statistics) -> Entries:
        item = found["token"]
        return entry(item.sums[0].value, TOLERANCE * item.sums[2].value)

    def of_all_rows(found: Statistics) -> Entries:
        read, rows = summed(found), max(found["rows"].count, 1)
        return entry(read.total / rows, read.tolerance / rows)

    def without_empty(found: Statistics) -> Entries:
        return entry(math.nan) if settings.era.counts_empty and found["rows"].mean < 1.0 else mean_of("mean")(found)

    reading: dict[str, Reading] = {
        "token-mean": mean_of("token"), "token-sum": summed,
        "seq-mean-token-sum": of_all_rows if settings.era.counts_empty else mean_of("sum"),
        "seq-mean-token-mean": without_empty, "seq-mean-token-sum-norm": norm,
    }  # fmt: skip
    return reading.get(settings.configured_agg or "", lambda _: UNKNOWN)


def _all_probabilities(batch: Batch) -> Statistics:
    """Of all tokens of the responses, those of the environment too."""
    first = first_pass(batch)
    return _distant(replace(first, columns={name: v for name, v in first.columns.items() if name != "response_mask"}, scratch={}))


def _probabilities(batch: Batch) -> Statistics:
    return _distant(before_rejection(batch))


def _distant(before: Batch) -> Statistics:
    trained, sampled = (np.exp(selected(before, name)) for name in ("old_logprob", "rollout_logprob"))
    both = trained + sampled
    return Statistics(
        {
            "difference": of_tokens(before, np.abs(trained - sampled), both, squared=True),
            "trained": of_tokens(before, trained, squared=True),
            "sampled": of_tokens(before, sampled, squared=True),
            "both": of_tokens(before, both, squared=True),
        }
    )


def _correlation(found: Statistics) -> Entries:
    """Pearson's correlation from the variances of the two and of their sum."""
    one, other, both = (found[name] for name in ("trained", "sampled", "both"))
    if one.count < 2:
        return Entries()
    left, right = one.variance(0), other.variance(0)
    scale = math.sqrt(left * right)
    if not scale > 0:
        return entry(math.nan)
    lost = math.sqrt(one.square / left) + math.sqrt(other.square / right)
    return entry((both.variance(0) - left - right) / (2.0 * scale), TOLERANCE + EPSILON32 * lost)


def estimate(kind: str, difference: Floats) -> tuple[Floats, Floats]:
    """A KL estimate of logprob minus reference ``[n]``, and the size of its summands."""
    value = penalty(-difference, kind)
    if kind in {"k1", "abs", "k2"}:
        return value, np.abs(value)
    x = np.clip(-difference, -CLAMP, CLAMP)
    terms = np.minimum(np.exp(x), value + np.abs(x) + 1.0) + np.abs(x) + 1.0  # exp(x), |x| and 1, as float32 adds them
    return value, value + EPSILON32 / TOLERANCE * terms


def _penalty(kind: str) -> Callable[[Batch], Statistics]:
    def partial(batch: Batch) -> Statistics:
        before = before_rejection(batch)
        value, size = estimate(kind, selected(before, "old_logprob") - selected(before, "ref_logprob"))
        counts = np.maximum(per_sequence_counts(before), 1)
        sums = (per_sequence_sums(before, part) / counts for part in (value, size))
        return Statistics({"kl": of_rows(*sums)})

    return partial
