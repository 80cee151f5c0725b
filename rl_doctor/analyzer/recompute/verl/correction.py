"""verl: how far the old policy is from the engine that sampled, and how rollout correction answers to it (``rollout_corr/*``).

The driver computes it over a whole batch, with the mask from before any token is left out; where the old policy is the engine's
(bypass), the loss computes it per micro-batch, between the policy being trained and the engine. Rows that only fill the batch
have no token; statistics over rows count them with the value of an empty sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, per_sequence_counts, per_sequence_sums, restricted, selected, selected_splits
from rl_doctor.analyzer.formulas.importance import dropped_outside, log_perplexity, outside_bounds, token_weights, truncated
from rl_doctor.analyzer.formulas.kl import k3
from rl_doctor.analyzer.formulas.segments import segment_means
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, UNKNOWN, Entries, Logged, entry
from rl_doctor.analyzer.recompute.stages import MICROBATCH_OF_RANK, certain, keyed_rows
from rl_doctor.analyzer.recompute.statistics import (
    Reading,
    Statistics,
    deviation_of,
    largest_of,
    mean_of,
    of_rows,
    of_tokens,
    smallest_of,
)
from rl_doctor.analyzer.recompute.verl.batch import CLAMP, before_rejection, once, whole
from rl_doctor.analyzer.recompute.verl.rejection import NEAR, criteria, divergence, engine_difference, left_out, of_criterion
from rl_doctor.analyzer.recompute.verl.settings import Correction, Settings
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

_NEEDS: Final = ("old_logprob", "rollout_logprob")
_MASKS: Final = ("epoch", "is_padding", "response_mask", "loss_mask")


@frozen(eq=False)
class Scope:
    """Where the numbers are computed.

    Attributes:
        prefix: what their names start with.
        reduction: (prepared batch -> Statistics) -> what is folded.
        reads: (name of a key, Reading) -> State -> Entries.
        canonical: whether they correspond to canonical metrics.
    """

    prefix: str
    reduction: Callable[[Callable[[Batch], Statistics]], Reduction]
    reads: Callable[[str, Reading], Callable[[Any], Entries]]
    canonical: bool

    def keys(self, of: Mapping[str, Reading], reduction: Reduction) -> Iterator[Logged]:
        """The keys of one reduction."""
        for name, read in of.items():
            metric = _CANONICAL.get(name) if self.canonical else None
            shares = "fraction" in name or "chi2" in name or "_is_" in name or ("ppl" in name and "log" not in name)
            yield once(self.prefix + name, metric, "1" if shares else "nat", reduction, self.reads(name, read))


def keys(settings: Settings) -> Iterator[Logged]:
    """Distances, importance weights and rejections, as far as they are configured and known."""
    scope = _OF_DRIVER
    if settings.bypasses:
        scope = _IN_LOSS if settings.era.engine else _IN_OLDER_LOSS
    distances = _OF_OLDER_ACTOR if settings.era.current_distance and not settings.bypasses else scope
    yield from distances.keys(_DISTANCES, distances.reduction(_distance))
    correction = settings.correction
    if correction is None or (settings.era.minor < (0, 7) and settings.bypasses):
        return
    if correction.weights in {"token", "sequence"}:
        weight = partial(_weight, correction=correction, raw_weights=settings.era.raw_weights)
        yield from scope.keys(_weights(settings, correction), scope.reduction(weight))
    if correction.rejection and settings.era.minor >= (0, 7):
        if not settings.bypasses:
            masks = whole(left_out, "loss_mask", "response_mask", optional=("epoch", "is_padding"))
            of = {"rollout_rs_masked_fraction": mean_of("tokens"), "rollout_rs_seq_masked_fraction": mean_of("rows")}
            yield from scope.keys(of, masks)
        for criterion in criteria(correction):
            yield from scope.keys(of_criterion(criterion), scope.reduction(partial(divergence, criterion=criterion)))


@frozen
class _ByMicroBatch:
    """``Statistics`` per micro-batch of each rank."""

    groups: Mapping[tuple[int, ...], Statistics]

    @property
    def count(self) -> int:
        """Number of items."""
        return sum(item.count for item in self.groups.values())

    def __add__(self, other: _ByMicroBatch, /) -> _ByMicroBatch:
        merged = dict(self.groups)
        for key, item in other.groups.items():
            merged[key] = merged[key] + item if key in merged else item
        return _ByMicroBatch({key: merged[key] for key in sorted(merged)})  # what is averaged over them adds up in one order


def _micro_batches(batch: Batch, engine: str) -> list[tuple[tuple[int, ...], Batch]]:
    """Each micro-batch apart; the policy being trained is compared with the engine, whose logprobs the column ``engine`` has."""
    place = (_micro_batches, engine)
    if place not in batch.scratch:
        found = []
        for key, rows in keyed_rows(batch, MICROBATCH_OF_RANK):
            flags = np.zeros(batch.n_sequences, np.bool_)
            flags[rows] = True
            part = restricted(batch, flags, ("response_mask", "is_padding", "logprob", engine))
            compared = {"old_logprob": part.columns["logprob"], "rollout_logprob": part.columns[engine]}
            found.append((key, replace(part, columns={**part.columns, **compared}, scratch={})))
        batch.scratch[place] = found
    made: list[tuple[tuple[int, ...], Batch]] = batch.scratch[place]
    return made


def _by_micro_batch(of: Callable[[Batch], Statistics], engine: str) -> Reduction:
    def folded(batch: Batch) -> _ByMicroBatch:
        return _ByMicroBatch({key: of(part) for key, part in _micro_batches(batch, engine)})

    needs = ("microbatch", "logprob", engine)
    return Reduction(folded, _ByMicroBatch({}), needs, (*MICROBATCH_OF_RANK, "is_padding", "response_mask"), "token")


def _mean_of_micro_batches(name: str, read: Reading) -> Callable[[_ByMicroBatch], Entries]:
    """The plain mean over micro-batches and ranks; over mini-batches the mean, or what the key's name says."""
    ends = _ends(name)

    def entries(state: _ByMicroBatch) -> Entries:
        minis: dict[tuple[int, ...], list[Entries]] = {}
        for key, item in state.groups.items():
            minis.setdefault(key[1:-1], []).append(read(item))
        found = []
        for parts in minis.values():
            if any(part.number != 1 for part in parts):
                return UNKNOWN
            whole_mini = sum(parts, Entries())
            found.append(certain(whole_mini.total / len(parts), whole_mini.tolerance / len(parts)))
        if ends is None:
            return sum(found, Entries())
        return certain(ends(item.total for item in found), max(item.tolerance for item in found))

    return entries


def _over_micro_batches(name: str, read: Reading) -> Callable[[_ByMicroBatch], Entries]:
    """The plain mean over micro-batches and ranks at once, or what the key's name says."""
    ends = _ends(name)

    def entries(state: _ByMicroBatch) -> Entries:
        found = [read(item) for item in state.groups.values()]
        if any(part.number != 1 for part in found):
            return UNKNOWN
        if ends is None:
            return sum(found, Entries())
        return certain(ends(item.total for item in found), max(item.tolerance for item in found))

    return entries


def _ends(name: str) -> Callable[[Iterable[float]], float] | None:
    return max if "max" in name else min if "min" in name else None


_OF_DRIVER: Final = Scope(
    "rollout_corr/", lambda of: whole(lambda batch: of(before_rejection(batch)), *_NEEDS, optional=_MASKS), lambda _, read: read,
    canonical=True,
)  # fmt: skip
_IN_LOSS: Final = Scope(
    "actor/rollout_corr/", lambda of: _by_micro_batch(of, "old_logprob"), _mean_of_micro_batches, canonical=False
)  # fmt: skip
_IN_OLDER_LOSS: Final = Scope(
    "rollout_corr/", lambda of: _by_micro_batch(of, "old_logprob"), _over_micro_batches, canonical=False
)  # fmt: skip
_OF_OLDER_ACTOR: Final = Scope(
    "rollout_corr/", lambda of: _by_micro_batch(of, "rollout_logprob"), _over_micro_batches, canonical=False
)  # fmt: skip


def _row_means(batch: Batch, values: Floats) -> Floats:
    return segment_means(values, selected_splits(batch))


_DISTANCES: Final[Mapping[str, Reading]] = {
    **{
        name: mean_of(name)
        for name in (
            "training_ppl", "training_log_ppl", "rollout_ppl", "rollout_log_ppl", "kl", "k3_kl", "log_ppl_diff",
            "log_ppl_abs_diff", "ppl_ratio",
        )
    },
    "chi2_token": mean_of("chi2_token", -1.0), "chi2_seq": mean_of("chi2_seq", -1.0),
    "log_ppl_diff_max": largest_of("log_ppl_diff"), "log_ppl_diff_min": smallest_of("log_ppl_diff"),
}  # fmt: skip
_CANONICAL: Final = {"kl": "mismatch.k1", "k3_kl": "mismatch.k3", "rollout_is_mean": "mismatch.is_weight_mean"}


def _distance(before: Batch) -> Statistics:
    trained, sampled = selected(before, "old_logprob"), selected(before, "rollout_logprob")
    ahead = trained - sampled
    size = np.abs(trained) + np.abs(sampled)
    splits = selected_splits(before)
    log_trained, log_sampled = log_perplexity(trained, splits), log_perplexity(sampled, splits)
    apart, spread = log_trained - log_sampled, _row_means(before, size)
    total, absolute = per_sequence_sums(before, ahead), per_sequence_sums(before, np.abs(ahead))
    squared = np.exp(2.0 * np.clip(ahead, -CLAMP, CLAMP))
    both = np.exp(2.0 * np.clip(total, -CLAMP, CLAMP))
    return Statistics(
        {
            "training_ppl": of_rows(np.exp(log_trained), np.exp(log_trained) * (1.0 + np.abs(log_trained))),
            "training_log_ppl": of_rows(log_trained, _row_means(before, np.abs(trained))),
            "rollout_ppl": of_rows(np.exp(log_sampled), np.exp(log_sampled) * (1.0 + np.abs(log_sampled))),
            "rollout_log_ppl": of_rows(log_sampled, _row_means(before, np.abs(sampled))),
            "kl": of_tokens(before, -ahead),
            "k3_kl": of_tokens(before, k3(ahead), k3(ahead) + EPSILON32 / TOLERANCE * (np.exp(ahead) + np.abs(ahead) + 1.0)),
            "log_ppl_diff": of_rows(apart, spread),
            "log_ppl_abs_diff": of_rows(np.abs(apart), spread),
            "ppl_ratio": of_rows(np.exp(apart), np.exp(apart) * (1.0 + spread)),
            "chi2_token": of_tokens(before, squared, squared * (1.0 + EPSILON32 / TOLERANCE * np.abs(ahead))),
            "chi2_seq": of_rows(both, both * (1.0 + 2.0 * absolute)),
        }
    )


def _weights(settings: Settings, correction: Correction) -> dict[str, Reading]:
    """The importance weights before they are normalised, and up to 0.7 before they are cut."""
    whole_rows = correction.weights == "sequence"
    fraction = "raw_seq" if settings.era.minor >= (0, 9) else "seq"
    of: dict[str, Reading] = {
        "mean": mean_of("weight"),
        "max": _exponential(largest_of("logarithm"), highest=CLAMP) if whole_rows else largest_of("weight"),
        "min": _exponential(smallest_of("logarithm")) if whole_rows else smallest_of("weight"),
        "std": deviation_of("bounded", ddof=0),
        "ratio_fraction_high": mean_of("row_high" if whole_rows else "high"),
        "ratio_fraction_low": mean_of("row_low" if whole_rows else "low"),
        "eff_sample_size": _effective,
        "seq_mean": mean_of("seq"),
        "seq_std": deviation_of("seq", ddof=1),
        "seq_max": largest_of("seq"),
        "seq_min": smallest_of("seq"),
        "seq_max_deviation": largest_of("seq_deviation"),
        "seq_fraction_high": mean_of(f"{fraction}_high"),
        "seq_fraction_low": mean_of(f"{fraction}_low"),
    }
    if correction.drops:
        of["oob_ratio"] = mean_of("outside")
    if correction.normalised:
        of["batch_norm_factor"] = mean_of(("cut_seq" if settings.era.minor < (0, 7) else "filled_seq") if whole_rows else "cut")
    return {f"rollout_is_{name}": read for name, read in of.items()}


def _weight(before: Batch, correction: Correction, *, raw_weights: bool) -> Statistics:
    counts = per_sequence_counts(before)
    logarithm, rounding = engine_difference(before), np.abs(engine_difference(before))
    row_sums, row_rounding = per_sequence_sums(before, logarithm), per_sequence_sums(before, rounding)
    if correction.weights == "sequence":
        logarithm, rounding = np.repeat(row_sums, counts), np.repeat(row_rounding, counts)
    raw = token_weights(logarithm, CLAMP)
    upper = correction.upper
    lower = 1.0 / upper if correction.lower is None else correction.lower
    slack = NEAR * (1.0 + rounding)
    near_high, near_low = (np.abs(raw / bound - 1.0) < slack for bound in (upper, lower))
    high, low = raw > upper, raw < lower
    cut = dropped_outside(raw, lower, upper) if correction.drops else truncated(raw, upper)
    lost = np.where(near_high | near_low, raw, 0.0) if correction.drops else np.zeros(raw.size)
    weight, bounded = (raw, truncated(raw, upper, lower)) if raw_weights else (cut, cut)
    size, cut_size = (part * (1.0 + EPSILON32 / TOLERANCE * rounding) for part in (weight, cut))
    rows, raw_rows, cut_rows = (_row_means(before, part) for part in (weight, raw, cut))
    row_slack = NEAR * (1.0 + _row_means(before, rounding))
    row_near = NEAR * (1.0 + row_rounding)
    row_size = _row_means(before, size)
    found = {
        "weight": of_tokens(before, weight, size, lost),
        "cut": of_tokens(before, cut, cut_size, lost),
        "bounded": of_tokens(before, bounded, bounded * (1.0 + EPSILON32 / TOLERANCE * rounding), lost, squared=True),
        "high": of_tokens(before, high.astype(np.float64), None, near_high.astype(np.float64)),
        "low": of_tokens(before, low.astype(np.float64), None, near_low.astype(np.float64)),
        "outside": of_tokens(before, outside_bounds(raw, lower, upper) * 1.0, None, (near_high | near_low).astype(np.float64)),
        "logarithm": of_rows(row_sums, row_rounding),
        "seq": of_rows(rows, row_size, _row_means(before, lost)),
        "cut_seq": of_rows(cut_rows, _row_means(before, cut_size)),
        "filled_seq": of_rows(cut_rows[counts > 0], _row_means(before, cut_size)[counts > 0]),
        "seq_deviation": of_rows(np.abs(rows - 1.0), row_size + 1.0),
    }
    for name, values, near, bounds in (
        ("row", row_sums, row_near, (math.log(upper), math.log(lower))),
        ("raw_seq", raw_rows, row_slack * upper, (upper, lower)),
        ("seq", rows, row_slack * upper, (upper, lower)),
    ):
        found[f"{name}_high"] = of_rows((values > bounds[0]) * 1.0, None, np.abs(values - bounds[0]) < near)
        found[f"{name}_low"] = of_rows((values < bounds[1]) * 1.0, None, np.abs(values - bounds[1]) < near)
    return Statistics(found)


def _exponential(read: Reading, highest: float = math.inf) -> Reading:
    def exponential(found: Statistics) -> Entries:
        logarithm = read(found)
        value = math.exp(min(logarithm.total, highest)) if logarithm.total < math.log(1e300) else math.inf
        return entry(value, value * (TOLERANCE + logarithm.tolerance)) if logarithm.count else Entries()

    return exponential


def _effective(found: Statistics) -> Entries:
    """Effective sample size as a share: the squared mean weight over the mean squared weight."""
    item = found["bounded"]
    if not item.count or not item.square > 0:
        return Entries()
    value = item.mean**2 / item.square
    return entry(value, 4 * TOLERANCE * value * max(item.size / item.mean, 1.0) + 2.0 * item.slack / item.mean)
