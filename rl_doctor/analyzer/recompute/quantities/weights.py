"""Weights that correct for the distance between the policy and the engine that sampled, and what they leave out."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import (
    Floats,
    derived,
    filled_rows,
    per_sequence_counts,
    per_sequence_sums,
    real_rows,
    selected,
    selected_splits,
    selection,
)
from rl_doctor.analyzer.formulas.importance import dropped_outside, outside_bounds, truncated
from rl_doctor.analyzer.formulas.kl import k2, k3
from rl_doctor.analyzer.formulas.segments import segment_extremes, segment_sums, spread
from rl_doctor.analyzer.recompute.quantities.registry import (
    Arguments,
    Values,
    close,
    difference,
    flagged,
    number,
    quantity,
    ratio_of,
    word,
)
from rl_doctor.analyzer.recompute.stages import Flags
from rl_doctor.store.batch import Batch

_ENGINE: Final = ("old_logprob", "rollout_logprob")


def _engine(arguments: Arguments) -> tuple[str, ...]:
    """The columns whose difference is the logarithm of the weight; none where that is given as a quantity ``x``."""
    return () if "x" in arguments else _columns(arguments)


def _columns(arguments: Arguments) -> tuple[str, str]:
    return word(arguments, "first", _ENGINE[0]), word(arguments, "second", _ENGINE[1])


def _weight(batch: Batch, arguments: Arguments) -> Values:
    first, second = _columns(arguments)
    return ratio_of(batch, {**arguments, "first": first, "second": second})


def _rows(arguments: Arguments) -> tuple[str, ...]:
    """Columns of a quantity of whole rows: ``dropped`` names the mask of rows that count only if they are trained on at all."""
    return (*_engine(arguments), *((word(arguments, "dropped"),) if "dropped" in arguments else ()))


def _counted(batch: Batch, arguments: Arguments) -> Flags:
    """Rows that are no padding, and of which not all tokens of the mask ``dropped`` are left out."""
    counted = real_rows(batch)
    if "dropped" in arguments:
        masked = segment_sums(batch.columns[word(arguments, "dropped")], batch.splits) > 0
        counted = counted & ~(masked & (per_sequence_counts(batch) == 0))
    return counted


def _bounds(arguments: Arguments) -> tuple[float, float]:
    low, high = number(arguments, "low"), number(arguments, "high")
    return 0.0 if low is None else low, np.inf if high is None else high


@quantity("weight", _engine)
def _raw(batch: Batch, arguments: Arguments) -> Values:
    """exp(first - second), by default of the old policy and the engine."""
    return _weight(batch, arguments)


@quantity("weight_truncated", _engine)
def _truncated(batch: Batch, arguments: Arguments) -> Values:
    """The weight kept within [low, high]."""
    found, (low, high) = _weight(batch, arguments), _bounds(arguments)
    return Values(truncated(found.values, high, low), np.minimum(found.sizes, max(high, low) * 2.0))


@quantity("weight_kept", _engine)
def _kept(batch: Batch, arguments: Arguments) -> Values:
    """The weight, 0 where it is outside [low, high]."""
    found, bounds = _weight(batch, arguments), _bounds(arguments)
    value = dropped_outside(found.values, *bounds)
    return Values(value, np.where(value > 0, found.sizes, 0.0), close(found.values, *bounds) * found.values)


@quantity("weight_outside", _engine)
def _outside(batch: Batch, arguments: Arguments) -> Values:
    """Whether the weight is outside [low, high]."""
    found, bounds = _weight(batch, arguments).values, _bounds(arguments)
    return flagged(outside_bounds(found, *bounds), close(found, *bounds))


@quantity("weight_change", _engine)
def _change(batch: Batch, arguments: Arguments) -> Values:
    """|exp(first - second) - 1|."""
    found = _weight(batch, arguments)
    return Values(np.abs(found.values - 1.0), found.sizes + 1.0)


@quantity("within_sequence", _engine, additive=False)
def _within_sequence(batch: Batch, arguments: Arguments) -> Values:
    """Whether exp(mean of first - second over the sequence) is within [low, high], at each of its tokens."""
    first, second = _columns(arguments)
    x = selected(batch, first) - selected(batch, second)
    x = np.where(np.isfinite(x), x, 0.0)
    (low, high), splits = _bounds(arguments), selected_splits(batch)
    counts = np.maximum(per_sequence_counts(batch), 1)
    ratio = np.exp(per_sequence_sums(batch, x) / counts)
    near = close(ratio, low, high, spread=1.0 + per_sequence_sums(batch, np.abs(x)) / counts)
    return flagged(spread((ratio >= low) & (ratio <= high), splits), spread(near, splits))


@quantity("sequences_outside", _rows, additive=False, rows=True)
def _sequences_outside(batch: Batch, arguments: Arguments) -> Values:
    """Whether exp(mean of first - second over the sequence) is outside [low, high]; 1 stands for an empty sequence."""
    found = _within_sequence(batch, arguments)
    splits = selected_splits(batch)
    low, high = _bounds(arguments)
    empty = float(not low <= 1.0 <= high)
    value, near = np.where(_counted(batch, arguments), empty, 0.0), np.zeros(batch.n_sequences)
    filled = np.flatnonzero(np.diff(splits))
    value[filled] = 1.0 - found.values[splits[filled]]
    if found.near is not None:
        near[filled] = found.near[splits[filled]]
    return Values(value, np.abs(value), near)


@quantity("sequence_weight", _rows, additive=False, rows=True)
def _sequence_weight(batch: Batch, arguments: Arguments) -> Values:
    """exp(sum of first - second over the sequence), 1 for an empty one; 0 where it is not finite."""
    first, second = _columns(arguments)
    x = selected(batch, first) - selected(batch, second)
    with np.errstate(over="ignore"):
        value = np.exp(per_sequence_sums(batch, x))
    value = np.where(np.isfinite(value) & _counted(batch, arguments), value, 0.0)
    return Values(value, value * (1.0 + 0.2 * per_sequence_sums(batch, np.abs(x))))


@quantity("counted", lambda a: (word(a, "dropped"),) if "dropped" in a else (), rows=True)
def _counted_rows(batch: Batch, arguments: Arguments) -> Values:
    """1 for a row, 0 where it is padding or all of its tokens of the mask ``dropped`` are left out."""
    return Values.plain(_counted(batch, arguments).astype(np.float64))


class Rejection(NamedTuple):
    """What AReaL's rejection sampling makes of tokens.

    Attributes:
        weight: importance weight, 0 where the token is left out, float64 ``[n_selected]``.
        kept: whether the token is still covered by the loss.
        changed: whether it was left out, or its weight was clamped.
        near: where float32 cannot tell.
        size: size of the weight's summands.
    """

    weight: Floats
    kept: Flags
    changed: Flags
    near: Flags
    size: Floats


def rejection(batch: Batch, arguments: Arguments) -> Rejection:
    """Bounds on a statistic of x = old - engine, per token or per sequence.

    The statistic is exp(x), of a sequence exp of the sum, mean or maximum of x; or x, x^2 / 2, exp(-x) - 1 + x (kl_k1, kl_k2,
    kl_k3), of a sequence their sum, mean or maximum. Outside ``lower`` and ``upper`` the action "mask" leaves tokens out, "clamp"
    clamps their weight. The weight is exp(x); with the ratio of sequences exp(mean x).
    Source: AReaL, ``apply_rejection_sampling``.
    """
    key = ("rejection", tuple(sorted((name, str(value)) for name, value in arguments.items())))
    if key not in batch.scratch:
        batch.scratch[key] = _rejection(batch, arguments)
    found: Rejection = batch.scratch[key]
    return found


def _rejection(batch: Batch, arguments: Arguments) -> Rejection:
    x = difference(batch, {"first": _ENGINE[0], "second": _ENGINE[1]})
    finite = np.isfinite(x)
    x = x if finite.all() else np.where(finite, x, 0.0)
    metric, by_sequence = word(arguments, "metric", "ratio"), word(arguments, "level", "token") == "sequence"
    lower, upper = number(arguments, "lower"), number(arguments, "upper")
    low, high = -np.inf if lower is None else lower, np.inf if upper is None else upper
    statistic = x if metric in {"ratio", "kl_k1"} else k2(x) if metric == "kl_k2" else k3(-x)
    log_weight, rounding = x, 1.0 + np.abs(x)
    if by_sequence:
        splits, counts = selected_splits(batch), np.maximum(per_sequence_counts(batch), 1)
        mean_size = spread(per_sequence_sums(batch, np.abs(x)) / counts, splits)
        rounding = 1.0 + mean_size
        if metric == "ratio":
            log_weight = spread(per_sequence_sums(batch, x) / counts, splits)
        statistic = spread(_together(batch, statistic, word(arguments, "agg", "mean")), splits)
    with np.errstate(over="ignore"):
        raw = np.exp(log_weight)
        if metric == "ratio":
            statistic = raw if statistic is log_weight else np.exp(statistic)
    inside = (statistic >= low) & (statistic <= high)
    near = close(
        statistic if metric == "ratio" else np.abs(statistic), *(abs(bound) for bound in (low, high)), spread=4.0 * rounding
    )
    size = raw * (1.0 + 0.2 * rounding)
    if word(arguments, "action", "mask") == "mask":
        return Rejection(np.where(inside, raw, 0.0), inside, ~inside, near, size)
    clamped = np.clip(raw, 0.0 if lower is None else lower, high)
    weight = np.where(inside, raw, clamped) if by_sequence else clamped
    return Rejection(weight, np.ones(x.size, np.bool_), weight != raw, near, np.minimum(size, np.maximum(weight, raw) * 2.0))


def _together(batch: Batch, values: Floats, how: str) -> Floats:
    if how == "max":
        highest = segment_extremes(values, selected_splits(batch))[1]
        return np.where(np.isnan(highest), 0.0, highest)
    sums = per_sequence_sums(batch, values)
    return sums if how == "sum" else sums / np.maximum(per_sequence_counts(batch), 1)


@quantity("rejection_weight", lambda _: _ENGINE, additive=False)
def _rejection_weight(batch: Batch, arguments: Arguments) -> Values:
    """The importance weight after rejection, 0 where a token is left out."""
    found = rejection(batch, arguments)
    return Values(found.weight, found.size, found.near * found.weight if found.near.any() else None)


@quantity("rejection_kept", lambda _: _ENGINE, additive=False)
def _rejection_kept(batch: Batch, arguments: Arguments) -> Values:
    """Whether rejection leaves the token in the loss."""
    found = rejection(batch, arguments)
    return flagged(found.kept, found.near & (word(arguments, "action", "mask") == "mask"))


@quantity("rejection_changed", lambda _: _ENGINE, additive=False)
def _rejection_changed(batch: Batch, arguments: Arguments) -> Values:
    """Whether rejection left the token out, or clamped its weight."""
    found = rejection(batch, arguments)
    return flagged(found.changed, found.near)


@derived
def _before(batch: Batch) -> NDArray[np.int64]:
    """Where in the stored tokens the one before each selected token is; -1 where that is no token of the response."""
    place = np.flatnonzero(selection(batch))
    rows, ends = filled_rows(selected_splits(batch))
    first = ends[:-1]
    before = place - 1
    before[first[place[first] == batch.splits[rows]]] = -1
    return before


@quantity("has_previous", lambda _: ())
def _has_previous(batch: Batch, _: Arguments) -> Values:
    """Whether there is a token of the response before."""
    return Values.plain((_before(batch) >= 0).astype(np.float64))


@quantity("previous_age", lambda _: ("policy_version", "token_version"))
def _previous_age(batch: Batch, arguments: Arguments) -> Values:
    """The version being trained, less ``lag``, minus the one that sampled the token before; NaN where that is none."""
    before = _before(batch)
    newest = batch.columns["policy_version"].astype(np.float64) - (number(arguments, "lag") or 0.0)
    age = np.repeat(newest, per_sequence_counts(batch)) - batch.columns["token_version"][before]
    age[before < 0] = np.nan
    return Values.plain(age)
