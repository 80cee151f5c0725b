"""Numbers that cannot be: outside the range of what they measure, or in contradiction with each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rl_doctor.analyzer.rounding import log_rounding
from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.contradictions import CLIPPED, READ, by_sequence, contradictions
from rl_doctor.rules.ordered import ORDERED, beyond_limit, grain, hit, in_common, order, slack, spread
from rl_doctor.rules.reading import KL_REFERENCE, TRUNCATION, first_of, logged
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.shares import PER_CENT, in_per_cent
from rl_doctor.rules.spans import Breach, among
from rl_doctor.rules.trend import Floats
from rl_doctor.rules.view import View

_SHARES: Final = (
    *CLIPPED, "policy.clip_frac_low", "policy.clip_frac_high", "policy.clip_frac_dual", "policy.outside_frac_low",
    "policy.outside_frac_high", "value.clip_frac", "group.zero_std_frac",
    "group.all_max_frac", "group.all_min_frac", "length.aborted_frac", "pref.accuracy", *TRUNCATION,
)  # fmt: skip
_DIVERGENCES: Final = ("policy.kl_old_k3", "policy.kl_old_k2", "policy.kl_old_abs", "ref.kl_k3", "ref.kl_k2", "ref.kl_abs")
_SIZES: Final = (
    "optim.grad_norm", "optim.learning_rate", "reward.std", "adv.std", "group.std_mean", "length.min", "length.mean",
    "length.max", "value.loss", "policy.ratio_mean", "mismatch.abs", "turns.mean",
)  # fmt: skip
_SUMMED: Final = "policy.entropy_sequence"
_NEGATIVE: Final = (
    "It is a bonus or a loss logged with a minus sign, the entropy of a density, or a sum that counts padding: the entropy of a "
    "choice among tokens cannot be negative."
)
_ROWS: Final = "data.negative_length_frac"
"""Measured where rows were recorded, whose lengths rule impossible-length judges."""
_ONE_ESTIMATOR: Final = frozenset({"verl", "slime", "openrlhf"})
"""Trainers whose logged KL to the reference is by the estimator that the configuration names."""
_NEVER_NEGATIVE: Final = frozenset({"k2", "k3", "abs"})
_RATIO: Final = "It is the mean of -exp(logprob - old_logprob), about -1 whatever happens, where old_logprob - logprob was meant."
_COARSE: Final = "It is computed in half precision, whose rounding is as large as it is."
_SIGNED: Final = ("policy.kl_old_k1", "policy.kl_old", *KL_REFERENCE)


@frozen
class _Bounds:
    """Least |x|, x**2 / 2 and k3(x) of a token outside the clip range, x being the log-ratio; whether the range is configured."""

    least: Mapping[str, float]
    known: bool

    @classmethod
    def of(cls, view: View, unknown: float) -> _Bounds:
        low, high = view.config.clip_low, view.config.clip_high
        known = low is not None and high is not None and 0.0 < low < 1.0 and high > 0.0
        up = math.log1p(high if known and high is not None else unknown)
        down = -math.log1p(-(low if known and low is not None else unknown))
        nearest = min(up, down)
        k3 = min(math.expm1(x) - x for x in (up, -up, down, -down))
        return cls({"policy.kl_old_k3": k3, "policy.kl_old_k2": nearest**2 / 2, "policy.kl_old_abs": nearest}, known)


@rule(
    "RLD006", "impossible-values",
    severity="error",
    optional=(
        "policy.entropy", _SUMMED, "value.explained_var", _ROWS, *_SHARES, *_DIVERGENCES, *_SIZES, *_SIGNED,
        *(name for names in ORDERED for name in names if name), *READ,
    ),
    limits={
        "rounding": 1e-6, "kl": 1e-5, "clearly": 1e-3, "vocabulary": 1e6, "per_cent": PER_CENT, "clipped": 0.1, "half": 0.5,
        "clip_range": 0.01, "slack": 0.25, "nothing": 1e-6, "rows": 5, "nearly_all": 0.8, "throughout": 12, "near_one": 0.05,
        "contradicting": 3, "off": 0.01, "coarse": 0.004, "tokens": 1e8, "turns": 2.0,
    },
    cause="The number is not what its name says, has lost its sign or unit on the way into the log, or is computed wrongly.",
    advice=(
        "Find the line of code that logs the number, and compute it by hand for one batch.",
        "Do not read anything else from a number until it is possible; what is derived from it is as wrong.",
    ),
    avoids=(
        "Rounding: by the digits that the log itself has.",
        "Estimates of a KL that may be negative (k1, or one that is not known), and rounding in half precision.",
        "Numbers of which one was logged and the other recomputed.",
        "Shares in per cent: info.",
        "An entropy that is negative by rounding alone.",
        "One ratio per sequence, whose clip range is far narrower.",
        "Numbers of the same rows that are averaged in other stages: only what these cannot explain is told.",
    ),
    source="Definitions; Jensen's inequality; Bhatia and Davis, A better bound on the variance, 2000; a public run log with a "
    "clip share of 1 and a KL of 1e-9 in the same rows",
)  # fmt: skip
def impossible_values(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """A logged number lies outside what it can be, or contradicts another one of the same row.

    A number that cannot be is a bug in the logging at best, and one in the training at worst. All else that reads it is led
    astray.

    Errors, each with the rows that show it: a share outside 0 to 1; an entropy below 0 or above the logarithm of the
    vocabulary (of `vocabulary` words where that is not known: then a warning); a gradient norm, learning rate, length, standard
    deviation or value loss below 0; a KL below 0 by an estimator that cannot be (k2, k3, absolute; below `clearly` an error,
    else a warning); an explained variance above 1; a mean below the smallest or above the largest value. A standard deviation
    of 0 beside different smallest and largest values is a warning. Values are allowed half a unit of the last digit that the
    log has, and `rounding` of their size; estimates of the KL, computed in single precision, are allowed `kl`, unless they are
    below 0 in every one of at least `throughout` rows.

    A KL to the reference that is logged without the name of its estimator is judged where the trainer or the configuration
    tells it: below 0 by more than `coarse`, what rounding in half precision can do, is an error (a warning where the trainer is
    not known to log that estimator); below -`kl` in every one of `throughout` rows is a warning. A longest response above
    max_response_length is an error, a warning or, for trainers whose limit is another and with more than `turns` turns, info.

    A share of tokens outside the clip range needs a KL to the old policy: outside a range of .2 every token has a k3 of at
    least .0157 in either direction, so that the mean is at least that times the share. A KL below `slack` of it, where at least
    `clipped` of the tokens are clipped, is an error, if it is so at three rows or more and at half of such rows. The range
    comes from the configuration, else `clip_range` is assumed. Estimates that may cancel, and the KL to the reference, count
    only if they are below `nothing` while `half` of the tokens are clipped, or while `clipped` of them are below half of what
    chance leaves of a mean over `tokens` tokens; at `rows` rows or more that are `nearly_all` of such rows, since terms that
    cancel in one row do not in all.

    Contradictions between numbers of the same rows, at `contradicting` rows or more, of a kind that averaging in other stages
    does not make. They are of numbers that the trainer logged: what is recomputed agrees with itself.

    - a mean k2, k3, |x| or exp(x) of a log-ratio x below that of the mean of x, by more than `slack` of it (Jensen), to the old
      policy or to the sampler;
    - clipped below and clipped above that do not add up to all that is clipped; clipped tokens although the smallest and the
      largest ratio are inside the range;
    - a clamped ratio outside its clamp, a truncated importance weight above what it is truncated at;
    - an advantage over the group's standard deviation beyond (G - 1) / sqrt(G) for groups of G and ddof 1, sqrt(G - 1) for ddof
      0 or where it is not known; where the configuration says that it is normalised so, and no deviation leaves one out;
    - a standard deviation above sqrt(2 (largest - mean) (mean - smallest)): a warning;
    - shares of groups all right and all wrong above 1 together; a preference margin other than chosen - rejected;
    - a total loss that is, by more than `half` of the terms, not policy loss - entropy_coef * entropy + kl_coef * KL, for
      trainers that define it so; a reward that is, by more than `off`, not the sum of its components with the weights that are
      configured for all of them: a warning. Both at `half` of the rows, as the first.

    A logged KL to the policy that sampled whose median is within `near_one` of -1, and no value further than `half` from it, over
    `throughout` rows, is minus the mean ratio: an error.

    A share that is above 1 at `per_cent` of the rows, and never above 100, is in per cent, which is info; one whose largest
    value is less than five times its median may be, which is a warning.
    """
    contradicting = list(contradictions(view, limits))
    names = (*_SHARES, *_DIVERGENCES, *_SIZES, "ref.kl", "policy.entropy", _SUMMED, "value.explained_var")
    beyond = list(_beyond(view, limits))
    if (
        not contradicting
        and not beyond
        and not any((found := view.raw(name)) is not None and len(found.measured()) for name in names)
    ):
        yield Skip("data", "no number with a known range was measured")
        return
    for one in (*beyond, *contradicting):
        yield one if one.suspect else replace(one, suspect=_suspect(one))


def _suspect(found: Hit) -> str:
    """The cause of a number that cannot be, by what it is."""
    name, value = found.evidence[0].metric, found.evidence[0].value
    if name in {"policy.entropy", _SUMMED}:
        return "entropy-mislogged"
    return "kl-mislogged" if value < 0.0 and name in {*_DIVERGENCES, "ref.kl"} else "number-mislogged"


def _beyond(view: View, limits: Limits) -> Iterator[Hit]:
    """Numbers beyond what they can be, and clipped tokens without the KL that they need."""
    for name in _SHARES:
        yield from _share(view.raw(name), limits)
    rows = view.get(_ROWS) is not None
    for name in _SIZES:
        if not (rows and name.startswith("length.")):
            yield from _below_zero(view.get(name), limits)
    for name in _DIVERGENCES:
        yield from _divergence(view.get(name), limits)
    yield from _penalty(view, limits)
    yield from _entropy(view, limits)
    yield from _above(view.get("value.explained_var"), 1.0, limits)
    for ends in ORDERED:
        yield from order(view, ends, limits)
    yield from beyond_limit(view, limits)
    yield from spread(view, limits)
    yield from _clip_without_kl(view, limits)
    yield from _minus_ratio(view, limits)


def _minus_ratio(view: View, limits: Limits) -> Iterator[Hit]:
    """A KL to the policy that sampled which is about -1 in every row: minus the mean ratio."""
    for name in ("policy.kl_old_k1", "policy.kl_old"):
        series = view.get(name)
        if series is None or not logged(series) or len(series) < limits["throughout"]:
            continue
        values = series.values
        if abs(float(np.median(values)) + 1.0) > limits["near_one"] or float(np.max(np.abs(values + 1.0))) > limits["half"]:
            continue
        found = among(series, np.ones(len(series), np.bool_), 0.0)
        if found is not None:
            level = float(np.median(values))
            one = hit(found, f"is {level:.3g} throughout, which is minus a mean ratio and no KL,", level, cause=_RATIO)
            yield replace(one, suspect="kl-logged-as-minus-ratio")


def _below_zero(
    series: Series | None, limits: Limits, severity: Severity = "error", tolerance: float = 0.0, cause: str | None = None
) -> Iterator[Hit]:
    if series is None:
        return
    found = among(series, series.values < -max(slack(limits, series), tolerance), 0.0)
    if found is not None:
        lowest = float(series.values.min())
        yield hit(found, f"is {lowest:.3g}, below 0,", lowest, severity, cause)


def _above(
    series: Series | None, top: float, limits: Limits, severity: Severity = "error", cause: str | None = None
) -> Iterator[Hit]:
    if series is None:
        return
    found = among(series, series.values > top + slack(limits, series), top)
    if found is not None:
        highest = float(series.values.max())
        yield hit(found, f"is {highest:.3g}, above {top:.3g},", highest, severity, cause)


def _divergence(series: Series | None, limits: Limits) -> Iterator[Hit]:
    if series is not None:
        clearly = float(series.values.min()) < -limits["clearly"]
        throughout = len(series) >= limits["throughout"] and bool(np.all(series.values < 0.0))
        yield from _below_zero(series, limits, "error" if clearly else "warning", 0.0 if throughout else limits["kl"])


def _penalty(view: View, limits: Limits) -> Iterator[Hit]:
    """A logged KL to the reference below 0, whose estimator is known to be one that cannot be."""
    series, name = view.get("ref.kl"), None if view.trainer is None else view.trainer.name
    by_dialect = "k3" if name == "trl" and "grpo" in (view.info.algorithm or "") else None
    if series is None or not logged(series) or (by_dialect or view.config.kl_estimator) not in _NEVER_NEGATIVE:
        return
    if float(series.values.min()) < -limits["coarse"]:
        known = by_dialect or name in _ONE_ESTIMATOR
        yield from _below_zero(series, limits, "error" if known else "warning", limits["coarse"])
    elif len(series) >= limits["throughout"] and float(series.values.max()) < -limits["kl"]:
        yield from _below_zero(series, limits, "warning", limits["kl"], _COARSE)


def _share(raw: Series | None, limits: Limits) -> Iterator[Hit]:
    series = None if raw is None else raw.measured()
    if series is None or not len(series):
        return
    yield from _below_zero(series, limits)
    above = among(series, series.values > 1.0 + slack(limits, series), 1.0)
    if above is None:
        return
    highest = float(series.values.max())
    counted = series.values[series.values != 0.0]
    if in_per_cent(series.values):
        cause = "The share is logged in per cent: other rules leave it out, or divide it by 100 where that is certain."
        told = hit(above, f"is up to {highest:.3g}: per cent, it seems,", highest, "info", cause)
        yield replace(told, suspect="share-in-per-cent")
    else:
        yield from _above(series, 1.0, limits, "error" if highest > 5.0 * float(np.median(counted)) else "warning")


def _entropy(view: View, limits: Limits) -> Iterator[Hit]:
    yield from _below_zero(view.get(_SUMMED), limits, cause=_NEGATIVE)
    series = view.get("policy.entropy")
    if series is None:
        return
    mostly = float(np.median(series.values)) < 0.0
    yield from _below_zero(series, limits, cause=_NEGATIVE if mostly else None)
    words = view.info.vocab_size
    most = math.log(words) if words else math.log(limits["vocabulary"])
    summed = None if words else "It is a sum over the tokens of a response, or in another unit than nat."
    yield from _above(series, most, limits, "error" if words else "warning", summed)


CONTRADICTING: Final = (*CLIPPED, "policy.kl_old_k3", "policy.kl_old_k2", "policy.kl_old_abs", *_SIGNED)
"""What ``clip_contradicted`` reads: rules that call it ask for these."""


def clip_contradicted(view: View) -> bool:
    """Whether the share of clipped tokens is contradicted by the KL of the same rows, which rule impossible-values tells."""
    return any(_clip_without_kl(view, impossible_values.limits))


def _clip_without_kl(view: View, limits: Limits) -> Iterator[Hit]:
    """Clipped tokens without the KL that they need."""
    clipped = first_of(view, *CLIPPED)
    if clipped is None or not logged(clipped) or by_sequence(view):
        return
    bounds = _Bounds.of(view, limits["clip_range"])
    for name, least in bounds.least.items():
        series = view.get(name)
        joined = None if series is None or not logged(series) else in_common(series, clipped)
        if series is None or joined is None:
            continue
        kept, share = joined
        need = limits["slack"] * least * share - 0.5 * grain(series.values) - least * 0.5 * grain(clipped.values)
        clear = (share >= limits["clipped"]) & (share <= 1.0)
        short = clear & (kept.values < need)
        found = among(kept, short, float(least))
        if found is not None and np.count_nonzero(short) >= max(3.0, 0.5 * np.count_nonzero(clear)):
            yield _contradiction(found, clipped.metric, share, least, known=bounds.known)
            return
    for name in _SIGNED:
        series = view.get(name)
        joined = None if series is None or not logged(series) else in_common(series, clipped)
        if joined is None:
            continue
        kept, share = joined
        for least_share, size, most in (
            (limits["half"], np.abs(kept.values), np.full(len(kept), limits["nothing"])),
            (limits["clipped"], np.abs(kept.values) + _hidden(kept.values, share), _left(bounds, share, limits)),
        ):
            clear = (share >= least_share) & (share <= 1.0)
            nothing = clear & (size < most)
            if np.count_nonzero(nothing) < max(limits["rows"], limits["nearly_all"] * np.count_nonzero(clear)):
                continue
            if (found := among(kept, nothing, float(most[nothing].max()))) is not None:
                yield _contradiction(found, clipped.metric, share, None, known=bounds.known)
                return


def _hidden(values: Floats, beside: Floats) -> Floats:
    """What rounding hides of values; of nothing but zeros as of the values beside them."""
    return log_rounding(values if values.any() else beside)


def _left(bounds: _Bounds, share: Floats, limits: Limits) -> Floats:
    """What a mean over tokens, some of which are clipped, keeps though they cancel: half of its own standard error, at least."""
    return np.asarray(limits["half"] * bounds.least["policy.kl_old_abs"] * np.sqrt(np.maximum(share, 0.0) / limits["tokens"]))


def _contradiction(found: Breach, name: str, share: Floats, least: float | None, *, known: bool) -> Hit:
    clipped, level = float(np.median(share[found.marked])), float(np.median(found.series.values[found.marked]))
    bound = "" if least is None else f"; {clipped:.3g} outside the clip range need at least {least * clipped:.2g}"
    return Hit(
        f"{name} is {clipped:.3g} while {found.series.metric} is {level:.2g}{bound}, {found.when} "
        f"({np.count_nonzero(found.marked)} of {len(found.series)} rows)",
        "error",
        (found.evidence(value=level),),
        cause="One of the two is not what it says: a clip share that counts all tokens (or an unclipped mask), or a KL that is "
        "divided, masked or taken between the same weights.",
        ruled_out=("tokens that cancel: this KL cannot be negative",) if least is not None else (),
        unchecked=() if known else ("the width of the clip range: config.clip_low, config.clip_high",),
        suspect="clip-share-mislogged",
    )
