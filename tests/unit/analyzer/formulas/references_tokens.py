"""Formulas of tokens once more, as loops over plain Python numbers. Arguments are those of the formula, floats as ``Number``."""

from __future__ import annotations

from typing import Any

import mpmath

from tests.unit.analyzer.formulas.numbers import (
    NAN,
    Number,
    average,
    clip,
    exp,
    least,
    log,
    most,
    of,
    parts,
    scatter,
    total,
)

Numbers = list[Number]

# segments


def segment_sums(values: Numbers, splits: list[int]) -> Numbers:
    return [total(part) for part in parts(values, splits)]


def segment_means(values: Numbers, splits: list[int], eps: float | Number = 0.0) -> Numbers:
    return [total(part) / (len(part) + of(eps)) if part else Number(0) for part in parts(values, splits)]


def segment_extremes(values: Numbers, splits: list[int]) -> list[Numbers]:
    filled = parts(values, splits)
    return [[min(part) if part else NAN for part in filled], [max(part) if part else NAN for part in filled]]


def spread(of_sequences: list[Any], splits: list[int]) -> list[Any]:
    return [value for i, value in enumerate(of_sequences) for _ in range(splits[i + 1] - splits[i])]


def kept_splits(splits: list[int], keep: list[bool]) -> list[int]:
    return [sum(keep[:edge]) for edge in splits]


mean = average
variance = scatter

# kl


def k1(x: Numbers) -> Numbers:
    return [-one for one in x]


def k2(x: Numbers) -> Numbers:
    return [one * one / 2 for one in x]


def one_k3(x: Number) -> Number:
    """With the size of x^2 where that is larger: it is exact to a few roundings of the result."""
    value = (exp(Number(x.value)) - 1 - Number(x.value)).value
    if abs(x.value) < 1e-9:
        value = x.value**2 / 2 + x.value**3 / 6 + x.value**4 / 24
    return Number(value, value * (1 + x.size / (abs(x.value) or 1)) if not mpmath.isnan(value) and value < 1e400 else value)


def k3(x: Numbers) -> Numbers:
    return [one_k3(one) for one in x]


def absolute(x: Numbers) -> Numbers:
    return [abs(one) for one in x]


def bounded(values: Numbers, limit: Number) -> Numbers:
    return [clip(one, -limit, limit) for one in values]


def low_var_kl(x: Numbers, clamp: float | Number = 20.0, limit: float | Number = 10.0) -> Numbers:
    return bounded([one_k3(clip(one, -of(clamp), clamp)) for one in x], of(limit))


def bias_corrected_k3(x: Numbers, log_ratio: Numbers) -> Numbers:
    return [one_k3(one) * exp(step) for one, step in zip(x, log_ratio, strict=True)]


def penalty(x: Numbers, kind: str) -> Numbers:
    return {"k1": k1, "kl": k1, "abs": absolute, "k2": k2, "mse": k2, "k3": low_var_kl, "low_var_kl": low_var_kl}[
        kind.strip("+")
    ](x)


def total_variation(logprob: Numbers, other: Numbers) -> Numbers:
    return [abs(exp(p) - exp(q)) for p, q in zip(logprob, other, strict=True)]


def binary_kl(logprob: Numbers, other: Numbers, eps: float | Number = 1e-8) -> Numbers:
    return [
        exp(p) * (p - q) + (1 - exp(p)) * log((1 - exp(p) + eps) / (1 - exp(q) + eps))
        for p, q in zip(logprob, other, strict=True)
    ]


def floored_binary_kl(logprob: Numbers, other: Numbers, floor: float | Number = 1e-6) -> Numbers:
    found = []
    for a, b in zip(logprob, other, strict=True):
        p, q = (clip(exp(one), floor, 1 - of(floor)) for one in (a, b))
        found.append(p * log(p / q) + (1 - p) * log((1 - p) / (1 - q)))
    return found


def jensen_shannon(logprob: Numbers, other: Numbers) -> Numbers:
    found = []
    for p, q in zip(logprob, other, strict=True):
        middle = log((exp(p) + exp(q)) / 2)
        found.append(total([exp(one - middle) - (one - middle) - 1 for one in (p, q)]) / 2)
    return found


# policy_loss


def surrogate_pieces(ratio: Numbers, advantage: Numbers, low: Number, high: Number, dual: Number) -> list[Numbers]:
    pairs = list(zip(ratio, advantage, strict=True))
    return [[-a * r for r, a in pairs], [-a * clip(r, 1 - low, 1 + high) for r, a in pairs], [-a * dual for _, a in pairs]]


def surrogate_of_ratio(ratio: Numbers, advantage: Numbers, low: Number, high: Number, dual: Number | None = None) -> Numbers:
    found = []
    for r, a in zip(ratio, advantage, strict=True):
        loss = most(-a * r, -a * clip(r, 1 - low, 1 + high))
        found.append(least(loss, -a * dual) if dual is not None and a < 0 else loss)
    return found


def surrogate_loss(log_ratio: Numbers, *others: Any) -> Numbers:
    return surrogate_of_ratio([exp(x) for x in log_ratio], *others)


def dual_clip_only_loss(ratio: Numbers, advantage: Numbers, dual: Number) -> Numbers:
    return [-a * (least(r, dual) if a < 0 else r) for r, a in zip(ratio, advantage, strict=True)]


def delta_clamped_loss(ratio: Numbers, advantage: Numbers, low: Number, high: Number, delta: Number) -> Numbers:
    return [-least(least(r, delta) * a, clip(r, 1 - low, 1 + high) * a) for r, a in zip(ratio, advantage, strict=True)]


def binds(ratio: Numbers, advantage: Numbers, low: Number, high: Number) -> list[bool]:
    """As flags of floats, whose bounds are rounded."""
    return [
        -a.value * clip(r, float(1 - low.value), float(1 + high.value)).value > -a.value * r.value
        for r, a in zip(ratio, advantage, strict=True)
    ]


def binds_below(ratio: Numbers, advantage: Numbers, low: Number) -> list[bool]:
    return [bool(r < float(1 - low.value) and a < 0) for r, a in zip(ratio, advantage, strict=True)]


def binds_above(ratio: Numbers, advantage: Numbers, high: Number) -> list[bool]:
    return [bool(r > float(1 + high.value) and a > 0) for r, a in zip(ratio, advantage, strict=True)]


def dual_binds(ratio: Numbers, advantage: Numbers, low: Number, dual: Number) -> list[bool]:
    found = []
    for r, a in zip(ratio, advantage, strict=True):
        clipped = clip(r, float(1 - low.value), 1.2)
        found.append(bool(a < 0 and most(-a * r, -a * clipped) > -a * dual))
    return found


def outside(ratio: Numbers, low: Number, high: Number) -> list[bool]:
    return [bool(r < float(1 - low.value) or r > float(1 + high.value)) for r in ratio]


def cispo_loss(ratio: Numbers, advantage: Numbers, logprob: Numbers, low: Number, high: Number) -> Numbers:
    return [-clip(r, 1 - low, 1 + high) * a * p for r, a, p in zip(ratio, advantage, logprob, strict=True)]


def cispo_capped_loss(ratio: Numbers, advantage: Numbers, logprob: Numbers, cap: Number) -> Numbers:
    return [-least(r, cap) * a * p for r, a, p in zip(ratio, advantage, logprob, strict=True)]


def cispo_capped(ratio: Numbers, advantage: Numbers, cap: Number) -> list[bool]:
    return [bool(r > cap and a > 0) for r, a in zip(ratio, advantage, strict=True)]


def reinforce_loss(logprob: Numbers, advantage: Numbers) -> Numbers:
    return [-p * a for p, a in zip(logprob, advantage, strict=True)]


def dro_loss(logprob: Numbers, log_ratio: Numbers, advantage: Numbers, beta: Number) -> Numbers:
    return [-(p * a - beta / 2 * x * x) for p, x, a in zip(logprob, log_ratio, advantage, strict=True)]


def sapo_loss(ratio: Numbers, advantage: Numbers, positive: Number, negative: Number) -> Numbers:
    found = []
    for r, a in zip(ratio, advantage, strict=True):
        tau = positive if a > 0 else negative
        found.append(-a * (4 / tau) / (1 + exp(-tau * (r - 1))))
    return found


# sequence_loss


def sequence_log_ratio(log_ratio: Numbers, splits: list[int], highest: float | Number = float("inf")) -> Numbers:
    return [least(one, highest) for one in segment_means(log_ratio, splits)]


summed_log_ratio = segment_sums


def pessimistic_log_ratio(log_ratio: Numbers, advantage: Numbers, low: Number, high: Number) -> Numbers:
    found = []
    for x, a in zip(log_ratio, advantage, strict=True):
        sign = 1 if a > 0 else -1 if a < 0 else 0
        found.append(sign * least(sign * x, sign * clip(x, -low, high)) if sign else Number(0))
    return found


def geometric_mean_loss(
    log_ratio: Numbers, advantage: Numbers, splits: list[int], low: Number, high: Number, eps: float | Number = 1e-8
) -> Numbers:
    ratios = segment_means(pessimistic_log_ratio(log_ratio, advantage, low, high), splits, eps)
    return [-a * exp(x) for a, x in zip(segment_means(advantage, splits, eps), ratios, strict=True)]


def geometric_weight(weight: Numbers, splits: list[int], eps: float = 1e-8, floor: float = 1e-10) -> Numbers:
    return [exp(one) for one in segment_means([log(w + floor) for w in weight], splits, eps)]


def log_ratio_outside(log_ratio: Numbers, low: Number, high: Number) -> list[bool]:
    return [bool(x < -low or x > high) for x in log_ratio]


def vespo_weight(
    log_ratio: Numbers, advantage: Numbers, splits: list[int], shape: tuple[Number, Number], rate: tuple[Number, Number],
    correction: Numbers | None = None,
) -> Numbers:  # fmt: skip
    floor = log(Number(1e-8))
    found = []
    for i, part in enumerate(parts(log_ratio, splits)):
        w = total([clip(x, -20, 20) for x in part])
        if correction is not None:
            w = w + total([clip(log(c), floor, 20) for c in parts(correction, splits)[i]])
        w = clip(w, floor, 20)
        k, lam = (shape[0], rate[0]) if advantage[i] >= 0 else (shape[1], rate[1])
        found.append(exp(most(lam, 1e-4) + k * w - most(lam, 1e-4) * exp(w)))
    return found


def luspo_losses(losses: Numbers, splits: list[int]) -> Numbers:
    return [loss * (splits[i + 1] - splits[i]) for i, loss in enumerate(losses)]


def over_tokens(of_sequences: Numbers, splits: list[int]) -> Numbers:
    return spread([exp(x) for x in of_sequences], splits)


# divergence_loss


def within_total_variation(logprob: Numbers, old: Numbers, advantage: Numbers, low: Number, high: Number) -> list[bool]:
    rise = [exp(p) - exp(q) for p, q in zip(logprob, old, strict=True)]
    return [bool(one <= high) if a > 0 else bool(one >= -low) for one, a in zip(rise, advantage, strict=True)]


def within_binary_kl(logprob: Numbers, old: Numbers, advantage: Numbers, low: Number, high: Number) -> list[bool]:
    found = []
    for p, q, a, kl in zip(logprob, old, advantage, binary_kl(old, logprob), strict=True):
        found.append(bool(kl <= high or p <= q) if a > 0 else bool(kl <= low or p >= q))
    return found


def dppo_loss(ratio: Numbers, advantage: Numbers, logprob: Numbers, keep: list[bool], cap: Number) -> Numbers:
    rows = zip(ratio, advantage, logprob, keep, strict=True)
    return [-a * least(r, cap) * p if inside else Number(0) for r, a, p, inside in rows]


def dppo_capped(ratio: Numbers, keep: list[bool], cap: Number) -> list[bool]:
    return [bool(inside and r > cap) for r, inside in zip(ratio, keep, strict=True)]


def kept_ratio_loss(log_ratio: Numbers, advantage: Numbers, keep: list[bool], kl_coef: Number) -> Numbers:
    rows = zip(log_ratio, advantage, keep, strict=True)
    return [kl_coef * x * x - (a * exp(x) if inside else Number(0)) for x, a, inside in rows]


# covariance_loss


def covariances(logprob: Numbers, advantage: Numbers) -> Numbers:
    middle, centre = average(advantage), average(logprob)
    return [(a - middle) * (p - centre) for p, a in zip(logprob, advantage, strict=True)]


def clip_cov_candidates(covariance: Numbers, bound: list[bool], lower: Number, upper: Number) -> list[bool]:
    return [bool(lower < c and c < upper and not stopped) for c, stopped in zip(covariance, bound, strict=True)]


def clip_cov_number(tokens: int, candidates: int, share: Number) -> int:
    return min(max(int(share.value * tokens), 1), candidates)


def clip_cov_loss(ratio: Numbers, advantage: Numbers, low: Number, high: Number, dropped: list[bool]) -> Numbers:
    losses = surrogate_of_ratio(ratio, advantage, low, high)
    return [Number(0) if gone else loss for loss, gone in zip(losses, dropped, strict=True)]


def kl_cov_selected(covariance: Numbers, share: Number) -> list[bool]:
    number = max(int(share.value * len(covariance)), 1)
    order = sorted(range(len(covariance)), key=lambda i: (-covariance[i].value, i))[:number]
    return [i in order for i in range(len(covariance))]


def kl_cov_loss(log_ratio: Numbers, advantage: Numbers, selected: list[bool], coef: Number) -> Numbers:
    rows = zip(log_ratio, advantage, selected, strict=True)
    return [-a * exp(x) + (coef * abs(x) if chosen else Number(0)) for x, a, chosen in rows]
