"""Quantities of ROLL's losses and of how it corrects for the engine's other probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, per_sequence_counts, per_sequence_sums, positions, selected, selection
from rl_doctor.analyzer.formulas.policy_loss import surrogate_of_ratio
from rl_doctor.analyzer.recompute.quantities.registry import (
    Arguments,
    Values,
    close,
    evaluated,
    flagged,
    inner,
    number,
    quantity,
    word,
)
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Flags
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

_ENGINE: Final = ("old_logprob", "rollout_logprob")


def _at_tokens(batch: Batch, rows: Floats | Flags) -> Floats:
    return np.repeat(np.asarray(rows, np.float64), per_sequence_counts(batch))


def _segments(batch: Batch, keep: Flags | None = None) -> tuple[Floats, Flags]:
    """Number of the stretch of selected tokens that each selected token is in, and which are in one at all."""
    chosen = np.flatnonzero(selection(batch))
    kept = np.ones(len(chosen), np.bool_) if keep is None else keep
    at, place = chosen[kept], positions(batch)[chosen[kept]]
    new = np.ones(len(at), np.bool_)
    new[1:] = (np.diff(at) != 1) | (place[1:] == 0)
    number_of = np.zeros(len(chosen))
    number_of[kept] = np.cumsum(new)
    return number_of, kept


def _coarse(batch: Batch, values: Floats, unit: str, keep: Flags | None = None) -> Floats:
    """Values per token, or the mean or the sum over their sequence, or the mean over their stretch; 0 where left out."""
    if unit == "token":
        return values
    if unit == "segment":
        stretch, kept = _segments(batch, keep)
        label = stretch.astype(np.int64)
        sums, counts = (np.bincount(label, weights, int(label.max(initial=0)) + 1) for weights in (values * kept, kept * 1.0))
        return np.where(kept, (sums / np.maximum(counts, 1.0))[label], 0.0)
    given = values if keep is None else np.where(keep, values, 0.0)
    total = per_sequence_sums(batch, given)
    if unit == "geometric":
        number_of = per_sequence_counts(batch) if keep is None else per_sequence_sums(batch, keep)
        total = total / np.maximum(number_of, 1)
    return _at_tokens(batch, total)


@frozen(eq=False)
class Engine:
    """What the engine's probabilities say of the selected tokens: log-ratio and difference of probabilities, float64 ``[n]``."""

    log_ratio: Floats
    difference: Floats

    def ratio(self, batch: Batch, unit: str) -> Values:
        """The ratio per token, or of a unit of tokens."""
        x = _coarse(batch, self.log_ratio, unit)
        size = _coarse(batch, np.abs(self.log_ratio), unit)
        with np.errstate(over="ignore"):
            value = np.exp(x)
        return Values(value, value * (1.0 + EPSILON32 / TOLERANCE * size))

    def change(self, batch: Batch, unit: str) -> Values:
        """The difference of probabilities per token, or of a unit of tokens."""
        return Values(_coarse(batch, self.difference, unit), _coarse(batch, np.abs(self.difference), unit) + 1.0)


@derived
def _engine(batch: Batch) -> Engine:
    """Of the old policy against the engine."""
    old, rollout = (selected(batch, name) for name in _ENGINE)
    return Engine(old - rollout, np.exp(old) - np.exp(rollout))


def _filters(arguments: Arguments) -> list[Mapping[str, Any]]:
    """The filters that the workers apply."""
    return [] if arguments.get("recompute") else [one for one in _listed(arguments) if one.get("enabled", True)]


def _listed(arguments: Arguments) -> list[Mapping[str, Any]]:
    """The filters that are configured; a setting that is a mapping comes as the tuple of its items."""
    given: Any = arguments.get("filters")
    return [dict(one) for one in given] if isinstance(given, tuple) else []


def _within(found: Values, low: float, high: float) -> tuple[Flags, Flags]:
    spread = 1.0 + found.sizes
    near = (np.abs(found.values - low) < 4 * EPSILON32 * spread) | (np.abs(found.values - high) < 4 * EPSILON32 * spread)
    return (found.values >= low) & (found.values <= high), near


def _passes(batch: Batch, one: Mapping[str, Any]) -> tuple[Flags, Flags]:
    """Whether a filter keeps the token, and whether float32 cannot tell."""
    engine, unit = _engine(batch), str(one.get("agg_type", "token"))
    kept = np.ones(len(engine.log_ratio), np.bool_)
    near = np.zeros(len(kept), np.bool_)
    if one.get("ratio_enabled"):
        flags, close_by = _within(engine.ratio(batch, unit), one.get("ratio_low", 0.8), one.get("ratio_high", 1.2))
        kept, near = kept & flags, near | close_by
    if one.get("diff_enabled"):
        flags, close_by = _within(engine.change(batch, unit), one.get("diff_low", -0.2), one.get("diff_high", 0.2))
        kept, near = kept & flags, near | close_by
    return kept, near


def _kept(batch: Batch, arguments: Arguments) -> tuple[Flags, Flags]:
    filters = _filters(arguments)
    key = ("roll_kept", repr(filters))
    if key not in batch.scratch:
        batch.scratch[key] = _kept_by(batch, filters)
    found: tuple[Flags, Flags] = batch.scratch[key]
    return found


def _kept_by(batch: Batch, filters: list[Mapping[str, Any]]) -> tuple[Flags, Flags]:
    count = int(per_sequence_counts(batch).sum())
    kept, near = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    for one in filters:
        flags, close_by = _passes(batch, one)
        kept, near = kept & flags, near | close_by
    return kept, near


def _engine_if_needed(arguments: Arguments) -> tuple[str, ...]:
    return _ENGINE if _filters(arguments) or arguments.get("weighted") else ()


def _policy_columns(arguments: Arguments) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("logprob", "old_logprob", *_engine_if_needed(arguments))))


def _loss_columns(arguments: Arguments) -> tuple[str, ...]:
    return (*_policy_columns(arguments), "advantage")


@quantity("roll_kept", _engine_if_needed, additive=False)
def _kept_flags(batch: Batch, arguments: Arguments) -> Values:
    """Whether the workers' filters keep the token."""
    return flagged(*_kept(batch, arguments))


def _ratio(batch: Batch, arguments: Arguments) -> Values:
    """The ratio per token, of the sequence ("seq"), or of its stretches ("segment"), over what the filters keep."""
    x = selected(batch, "logprob") - selected(batch, "old_logprob")
    unit = {"seq": "geometric", "segment": "segment"}.get(word(arguments, "kind", "token"), "token")
    keep = _kept(batch, arguments)[0] if unit != "token" else None
    size = _coarse(batch, np.abs(x), unit, keep)
    x = _coarse(batch, x, unit, keep)
    with np.errstate(over="ignore"):
        value = np.exp(x)
    return Values(value, value * (1.0 + EPSILON32 / TOLERANCE * size))


def _bounds(arguments: Arguments) -> tuple[float, float]:
    both = ("low", "high") if arguments.get("ranged") else ("clip", "clip")
    low, high = (number(arguments, name) or 0.0 for name in both)
    return low, high


@quantity("roll_ratio", _policy_columns, additive=False)
def _ratio_values(batch: Batch, arguments: Arguments) -> Values:
    """The ratio that the loss uses."""
    return _ratio(batch, arguments)


@quantity("roll_loss", _loss_columns, additive=False)
def _loss(batch: Batch, arguments: Arguments) -> Values:
    """The policy loss per token; dual clip's constant is 1 + 2 pg_clip; with ``weighted`` times the engine's ratio."""
    ratio, advantage = _ratio(batch, arguments), selected(batch, "advantage")
    low, high = _bounds(arguments)
    dual = 1.0 + 2.0 * (number(arguments, "clip") or 0.0) if arguments.get("dual") else None
    value = surrogate_of_ratio(ratio.values, advantage, low, high, dual)
    size = np.abs(value) * ratio.sizes / np.where(ratio.values > 0, ratio.values, 1.0)
    if arguments.get("weighted"):
        weight = _engine(batch).ratio(batch, word(arguments, "unit", "token"))
        most = number(arguments, "most")
        scale = weight.values if most is None else np.clip(weight.values, 0.0, most)
        value, size = value * scale, size * np.minimum(weight.sizes, scale + weight.sizes - weight.values)
    return Values(value, size)


@quantity("roll_binds", _loss_columns, additive=False)
def _binds(batch: Batch, arguments: Arguments) -> Values:
    """Whether the clipped surrogate is the smaller one."""
    ratio, advantage = _ratio(batch, arguments), selected(batch, "advantage")
    low, high = _bounds(arguments)
    near = close(ratio.values, 1.0 - low, 1.0 + high, spread=1.0 + ratio.sizes)
    below, above = ratio.values < 1.0 - low, ratio.values > 1.0 + high
    return flagged((below & (advantage < 0)) | (above & (advantage > 0)), near & (advantage != 0))


@quantity("roll_outside", lambda a: (*_policy_columns(a), "padded_width"), additive=False, rows=True)
def _outside(batch: Batch, arguments: Arguments) -> Values:
    """How many positions of the row have a ratio out of range; one of the whole sequence stands at all its padded positions."""
    ratio = _ratio(batch, arguments)
    low, high = _bounds(arguments)
    near = close(ratio.values, 1.0 - low, 1.0 + high, spread=1.0 + ratio.sizes)
    side = word(arguments, "side", "both")
    flags = ((ratio.values < 1.0 - low) & (side != "high")) | ((ratio.values > 1.0 + high) & (side != "low"))
    found, slack = per_sequence_sums(batch, flags), per_sequence_sums(batch, near)
    if word(arguments, "kind", "token") == "seq":
        width = _width(batch)
        found, slack = (found > 0) * width, (slack > 0) * width
    return Values(found, found, slack)


def _width(batch: Batch) -> Floats:
    width = batch.columns["padded_width"].astype(np.float64)
    return np.where(width > 0, width, np.nan)


@quantity("per_width", lambda _: ("padded_width",))
def _per_width(batch: Batch, arguments: Arguments) -> Values:
    """The quantity ``of`` divided by the padded width."""
    found = evaluated(batch, inner(arguments, "of"))
    width = _at_tokens(batch, _width(batch))
    near = None if found.near is None else np.asarray(found.near, np.float64) / width
    return Values(found.values / width, found.sizes / width, near)


@quantity("roll_engine_ratio", lambda _: _ENGINE, additive=False)
def _engine_ratio(batch: Batch, arguments: Arguments) -> Values:
    """exp(old - engine) of a ``unit`` of tokens."""
    return _engine(batch).ratio(batch, word(arguments, "unit", "token"))


@quantity("roll_engine_change", lambda _: _ENGINE, additive=False)
def _engine_change(batch: Batch, arguments: Arguments) -> Values:
    """exp(old) - exp(engine) of a ``unit`` of tokens."""
    return _engine(batch).change(batch, word(arguments, "unit", "token"))


@quantity("roll_weight_capped", lambda _: (*_ENGINE, "padded_width"), additive=False, rows=True)
def _weight_capped(batch: Batch, arguments: Arguments) -> Values:
    """How many positions have a weight above its cap; one of the whole sequence stands at all its padded positions."""
    unit, most = word(arguments, "unit", "token"), number(arguments, "most")
    weight = _engine(batch).ratio(batch, unit)
    cap = np.inf if most is None else most
    flags, near = weight.values > cap, close(weight.values, cap, spread=1.0 + weight.sizes)
    found, slack = per_sequence_sums(batch, flags), per_sequence_sums(batch, near)
    if unit in ("geometric", "sequence"):
        found, slack = (found > 0) * _width(batch), (slack > 0) * _width(batch)
    return Values(found, found, slack)


@quantity("roll_filter_passes", lambda _: (*_ENGINE, "padded_width"), additive=False, rows=True)
def _filter_passes(batch: Batch, arguments: Arguments) -> Values:
    """How many positions the last filter of ``unit`` and ``kind`` lets pass: of the padded ones all, if an equal ratio passes."""
    unit, kind = word(arguments, "unit"), word(arguments, "kind")
    named = [one for one in _listed(arguments) if one.get("agg_type", "token") == unit and one.get(f"{kind}_enabled")]
    if not named:
        return Values.plain(np.full(batch.n_sequences, np.nan))
    engine, last = _engine(batch), named[-1]
    bounds = (0.8, 1.2) if kind == "ratio" else (-0.2, 0.2)
    low, high = (float(last.get(f"{kind}_{end}", bound)) for end, bound in zip(("low", "high"), bounds, strict=True))
    found = engine.ratio(batch, unit) if kind == "ratio" else engine.change(batch, unit)
    flags, near = _within(found, low, high)
    counts, width = per_sequence_counts(batch), _width(batch)
    neutral = low <= (1.0 if kind == "ratio" else 0.0) <= high
    passed, slack = per_sequence_sums(batch, flags), per_sequence_sums(batch, near)
    if unit in ("geometric", "sequence"):
        passed = np.where(counts > 0, (passed > 0) * width, neutral * width)
        return Values(passed, passed, (slack > 0) * width)
    passed = passed + neutral * (width - counts)
    return Values(passed, passed, slack)


@quantity("roll_valid", _engine_if_needed, additive=False, rows=True)
def _valid(batch: Batch, arguments: Arguments) -> Values:
    """Whether the filters leave a token of the row."""
    kept, _ = _kept(batch, arguments)
    return Values.plain((per_sequence_sums(batch, kept) > 0).astype(np.float64))


@quantity("row_count", lambda _: (), rows=True)
def _row_count(batch: Batch, _: Arguments) -> Values:
    """1 for every row."""
    return Values.plain(np.ones(batch.n_sequences))


@quantity("row_with_prompt", lambda _: ("prompt_length",), rows=True)
def _row_with_prompt(batch: Batch, _: Arguments) -> Values:
    """Tokens of the prompt and selected tokens of the row."""
    return Values.plain(batch.columns["prompt_length"] + per_sequence_counts(batch).astype(np.float64))


@quantity("both", lambda _: ())
def _both(batch: Batch, arguments: Arguments) -> Values:
    """Whether the quantities ``first`` and ``second`` both hold."""
    first, second = (evaluated(batch, inner(arguments, name)) for name in ("first", "second"))
    flags = (first.values > 0) & (second.values > 0)
    return flagged(flags, np.zeros(len(flags), np.bool_))
