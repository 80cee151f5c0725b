"""Quantities of SkyRL's policy losses, with its corrections for what the engine sampled with other probabilities."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.derive import Floats, per_sequence_counts, per_sequence_sums, selected, selection
from rl_doctor.analyzer.formulas.divergence_loss import within_binary_kl, within_total_variation
from rl_doctor.analyzer.formulas.policy_loss import cispo_loss, outside, sapo_loss, surrogate_of_ratio
from rl_doctor.analyzer.recompute.quantities.registry import Arguments, Values, close, flagged, number, quantity, word
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Flags
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

_CLAMP = 20.0
_HIGHEST = 10.0
_OLD, _ENGINE = ("logprob", "old_logprob"), ("logprob", "rollout_logprob")
_AGAINST_ENGINE = ("rollout_is", "dppo")
_SETTINGS = (
    "tis", "token_cap", "sequence_cap", "sequence_mask", "geometric_low", "geometric_high", "product_low", "product_high",
    "outlier_low", "outlier_high", "token_low", "token_high",
)  # fmt: skip
_THRESHOLDS = ("outlier_low", "outlier_high", "token_low", "token_high")


def _corrected(arguments: Arguments) -> bool:
    """Whether any correction is configured."""
    named = (arguments.get(name) is not None for name in ("tis", "sequence_mask", *_THRESHOLDS[:2]))
    return any(named) or all(arguments.get(name) is not None for name in _THRESHOLDS[2:])


def _needs(arguments: Arguments) -> tuple[str, ...]:
    engine = _ENGINE if word(arguments, "kind") in _AGAINST_ENGINE or _rollout_anchor(arguments) else _OLD
    correction = ("old_logprob", "rollout_logprob") if _corrected(arguments) else ()
    return tuple(dict.fromkeys((*engine, "advantage", *correction)))


def _rollout_anchor(arguments: Arguments) -> bool:
    return word(arguments, "kind") == "cispo" and word(arguments, "anchor", "old") == "rollout"


def _bound(arguments: Arguments, name: str) -> float:
    return number(arguments, name) or 0.0


@frozen(eq=False)
class Correction:
    """What correction does to the selected tokens.

    Attributes:
        ratio: exp(old - engine), float64 ``[n]``.
        weight: what the loss is multiplied by, float64 ``[n]``.
        whole: tokens of sequences without an outlier, bool ``[n]``.
        kept: those of them that the mask of single tokens keeps, bool ``[n]``.
        left: those of them whose sequence is kept, bool ``[n]``.
        rows: flags per sequence by name, float64 ``[n_sequences]``.
        near: where float32 cannot tell, bool ``[n]``.
    """

    ratio: Floats
    weight: Floats
    whole: Flags
    kept: Flags
    left: Flags
    rows: dict[str, Floats]
    near: Flags


def correction(batch: Batch, arguments: Arguments) -> Correction:
    """SkyRL's correction: outliers' sequences first, then single tokens, then the weight, then sequences by their ratio."""
    key = ("skyrl_correction", *(arguments.get(name) for name in _SETTINGS))
    if key not in batch.scratch:
        batch.scratch[key] = _correction(batch, arguments)
    found: Correction = batch.scratch[key]
    return found


def _correction(batch: Batch, arguments: Arguments) -> Correction:
    x = selected(batch, "old_logprob") - selected(batch, "rollout_logprob")
    counts = per_sequence_counts(batch)

    def at_tokens(rows: Floats | Flags) -> Floats:
        return np.repeat(np.asarray(rows, np.float64), counts)

    ratio = np.exp(np.clip(x, -_CLAMP, _CLAMP))
    low, high, token_low, token_high = (number(arguments, name) for name in _THRESHOLDS)
    over, under = ratio > (np.inf if high is None else high), ratio < (-np.inf if low is None else low)
    rows: dict[str, Flags] = {"over": per_sequence_sums(batch, over) > 0, "under": per_sequence_sums(batch, under) > 0}
    rows["outlier"] = rows["over"] | rows["under"]
    whole = at_tokens(rows["outlier"]) == 0
    near = close(ratio, *(bound for bound in (low, high, token_low, token_high) if bound is not None))
    kept = whole
    if token_low is not None and token_high is not None:
        kept = whole & (ratio >= token_low) & (ratio <= token_high)
    total = per_sequence_sums(batch, np.where(kept, x, 0.0))
    size = per_sequence_sums(batch, np.where(kept, np.abs(x), 0.0))
    product = np.exp(np.clip(total, -_CLAMP, _CLAMP))
    weight, cap = np.ones(len(x)), np.inf
    if arguments.get("tis") == "token":
        cap = _bound(arguments, "token_cap")
        weight = np.minimum(ratio, cap)
    elif arguments.get("tis") == "sequence":
        rows["capped"] = product > _bound(arguments, "sequence_cap")
        weight = at_tokens(np.minimum(product, _bound(arguments, "sequence_cap")))
    kind = arguments.get("sequence_mask")
    left = kept
    if kind is not None:
        tokens = np.maximum(per_sequence_sums(batch, kept), 1.0)
        found = product if kind == "product" else np.exp(np.clip(total / tokens, -_CLAMP, _CLAMP))
        bottom, top = (_bound(arguments, f"{kind}_{end}") for end in ("low", "high"))
        rows |= {"above": found > top, "below": found < bottom}
        rows["masked"] = rows["above"] | rows["below"]
        left = kept & (at_tokens(rows["masked"]) == 0)
        near = near | (at_tokens(close(found, bottom, top, spread=1.0 + size)) > 0)
    return Correction(ratio, weight, whole, kept, left, {name: flags.astype(np.float64) for name, flags in rows.items()}, near)


@frozen(eq=False)
class _Policy:
    """Ratio, advantage and log-probability at the selected tokens, each ``[n]``, and the relative error of the ratio."""

    ratio: Floats
    advantage: Floats
    logprob: Floats
    anchor: Floats
    error: Floats


def _policy(batch: Batch, arguments: Arguments) -> _Policy:
    kind = word(arguments, "kind")
    columns = _ENGINE if kind in _AGAINST_ENGINE or _rollout_anchor(arguments) else _OLD
    logprob, anchor = (selected(batch, name) for name in columns)
    x = logprob - anchor
    size = np.abs(x)
    if kind == "gspo":
        counts = np.maximum(per_sequence_counts(batch), 1)
        x, size = (np.repeat(per_sequence_sums(batch, part) / counts, per_sequence_counts(batch)) for part in (x, size))
        x = np.minimum(x, _HIGHEST)
    elif kind != "importance_sampling":
        x = np.clip(x, -_CLAMP, _CLAMP)
    with np.errstate(over="ignore"):
        ratio = np.exp(x)
    return _Policy(ratio, selected(batch, "advantage"), logprob, anchor, 1.0 + EPSILON32 / TOLERANCE * size)


def _divergence(policy: _Policy, arguments: Arguments) -> tuple[Flags, Flags]:
    """Which tokens DPPO keeps, and where float32 cannot tell."""
    low, high = _bound(arguments, "delta_low"), _bound(arguments, "delta_high")
    first, second, advantage = policy.logprob, policy.anchor, policy.advantage
    if word(arguments, "dppo", "binary_tv") == "binary_tv":
        change = np.exp(first) - np.exp(second)
        near = np.abs(change - np.where(advantage > 0, high, -low)) < 4 * EPSILON32
        return within_total_variation(first, second, advantage, low, high) | (advantage == 0), near
    return within_binary_kl(first, second, advantage, low, high) | (advantage == 0), np.zeros(first.size, np.bool_)


def _range(arguments: Arguments) -> tuple[float, float]:
    names = ("cispo_low", "cispo_high") if word(arguments, "kind") == "cispo" else ("low", "high")
    return _bound(arguments, names[0]), _bound(arguments, names[1])


def _loss(policy: _Policy, arguments: Arguments) -> tuple[Floats, Flags]:
    """The loss per token before correction, and where float32 cannot tell whether it is 0."""
    kind, ratio, advantage = word(arguments, "kind"), policy.ratio, policy.advantage
    low, high = _range(arguments)
    none = np.zeros(ratio.size, np.bool_)
    if kind == "cispo":
        return cispo_loss(ratio, advantage, policy.logprob, low, high), none
    if kind == "sapo":
        return sapo_loss(ratio, advantage, _bound(arguments, "positive"), _bound(arguments, "negative")), none
    if kind == "rollout_is":
        within = (ratio > 1.0 - low) & (ratio < 1.0 + high)
        return np.where(within, -ratio * advantage * policy.logprob, 0.0), close(ratio, 1.0 - low, 1.0 + high)
    if kind == "dppo":
        kept, near = _divergence(policy, arguments)
        return np.where(kept, -ratio * advantage, 0.0), near
    if kind == "importance_sampling":
        return -ratio * advantage, none
    return surrogate_of_ratio(ratio, advantage, low, high, number(arguments, "dual") if kind == "dual_clip" else None), none


@quantity("skyrl_loss", _needs, additive=False)
def _policy_loss(batch: Batch, arguments: Arguments) -> Values:
    """The policy loss of ``kind`` per token, with the advantage before it is divided for the aggregation."""
    policy = _policy(batch, arguments)
    value, near = _loss(policy, arguments)
    size = np.abs(value) * policy.error + (4.0 * np.abs(policy.advantage) if word(arguments, "kind") == "sapo" else 0.0)
    flips = np.where(near, np.abs(policy.ratio * policy.advantage), 0.0)
    if _corrected(arguments):
        found = correction(batch, arguments)
        whole = np.abs(value) * found.weight
        value, size = np.where(found.left, found.weight * value, 0.0), np.where(found.left, found.weight * size, 0.0)
        flips = flips * found.weight + found.near * whole
    return Values(value, size, flips)


@quantity("skyrl_clipped", _needs, additive=False)
def _clipped(batch: Batch, arguments: Arguments) -> Values:
    """Whether the policy loss of ``kind`` clips, cuts or leaves out the token."""
    policy, kind = _policy(batch, arguments), word(arguments, "kind")
    low, high = _range(arguments)
    spread = 1.0 + policy.error if kind == "gspo" else 1.0
    near = close(policy.ratio, 1.0 - low, 1.0 + high, spread=spread)
    if kind == "dppo":
        kept, near = _divergence(policy, arguments)
        return flagged(~kept, near)
    if kind == "rollout_is":
        return flagged((policy.ratio <= 1.0 - low) | (policy.ratio >= 1.0 + high), near)
    if kind == "cispo":
        return flagged(outside(policy.ratio, low, high), near)
    below, above = policy.ratio < 1.0 - low, policy.ratio > 1.0 + high
    advantage = policy.advantage
    return flagged((below & (advantage < 0)) | (above & (advantage > 0)), near & (advantage != 0))


@quantity("skyrl_ratio", _needs, additive=False)
def _ratio(batch: Batch, arguments: Arguments) -> Values:
    """The ratio of the loss of ``kind``, with ``clamped`` within its range."""
    policy = _policy(batch, arguments)
    low, high = _range(arguments)
    value = np.clip(policy.ratio, 1.0 - low, 1.0 + high) if arguments.get("clamped") else policy.ratio
    return Values(value, np.abs(value) * policy.error)


def _sampled(_: Arguments) -> tuple[str, ...]:
    return ("old_logprob", "rollout_logprob")


@quantity("skyrl_kept", _sampled, additive=False)
def _kept(batch: Batch, arguments: Arguments) -> Values:
    """Whether the mask of outliers ("whole") or that of single tokens as well ("kept") leaves the token in."""
    found = correction(batch, arguments)
    return flagged(found.whole if word(arguments, "stage") == "whole" else found.kept, found.near)


@quantity("skyrl_capped", _sampled)
def _capped(batch: Batch, arguments: Arguments) -> Values:
    """Whether the weight of the token is above its cap."""
    found = correction(batch, arguments)
    cap = _bound(arguments, "token_cap")
    return flagged(found.ratio > cap, close(found.ratio, cap))


@quantity("skyrl_token_masked", _sampled)
def _token_masked(batch: Batch, arguments: Arguments) -> Values:
    """Whether the mask of single tokens leaves the token out."""
    found, low, high = correction(batch, arguments), _bound(arguments, "token_low"), _bound(arguments, "token_high")
    return flagged((found.ratio < low) | (found.ratio > high), close(found.ratio, low, high))


@quantity("skyrl_rows", _sampled, additive=False, rows=True)
def _rows(batch: Batch, arguments: Arguments) -> Values:
    """A flag of the sequence: over, under or outlier; capped; above, below or masked. NaN where the settings ask for none."""
    found = correction(batch, arguments)
    near = per_sequence_sums(batch, found.near) > 0
    rows = found.rows.get(word(arguments, "what"))
    return Values.plain(np.full(batch.n_sequences, np.nan)) if rows is None else flagged(rows > 0, near)


@quantity("turn_start", lambda _: ())
def _turn_start(batch: Batch, _: Arguments) -> Values:
    """Whether the token is the first of a stretch of tokens that are trained on."""
    chosen = selection(batch)
    before = np.append(False, chosen[:-1])
    before[batch.splits[:-1][batch.lengths > 0]] = False
    return Values.plain((~before[chosen]).astype(np.float64))


@quantity("skyrl_value_clipped", lambda _: ("value", "old_value", "return"))
def _value_clipped(batch: Batch, arguments: Arguments) -> Values:
    """Whether the error of old + clip(value - old) is larger than that of the value; unclipped, that is a matter of rounding."""
    value, old, returns = (selected(batch, name) for name in ("value", "old_value", "return"))
    clip = _bound(arguments, "clip")
    plain, clipped = (value - returns) ** 2, (np.clip(value, old - clip, old + clip) - returns) ** 2
    single = old.astype(np.float32)
    rounded = single + (value.astype(np.float32) - single) != value.astype(np.float32)
    near = rounded & (np.abs(clipped - plain) < 8 * EPSILON32 * (plain + clipped + np.abs(returns) + np.abs(value)))
    return flagged(clipped > plain, near | (np.abs(np.abs(value - old) - clip) < 4 * EPSILON32))
