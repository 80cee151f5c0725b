"""The importance ratio of the policy update: saturated or inert."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import trend
from rl_doctor.rules.impossible import CONTRADICTING, clip_contradicted
from rl_doctor.rules.per_batch import PASSES, per_batch
from rl_doctor.rules.reading import TINY_STEP, evidence, first_of, items, lacking, span, too_short, uncorrected
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import Bools
from rl_doctor.rules.view import View

_OUTSIDE = ("policy.outside_frac", "policy.clip_frac")
_MISMATCH = ("mismatch.abs", "mismatch.k3")
_PER_PAIR = "mismatch.corr"
_KL_OLD = ("policy.kl_old_k3", "policy.kl_old_k1")


def k3_bound(low: float, high: float) -> float:
    """Least k3 of a token whose ratio is outside [1 - low, 1 + high], in nat: the smaller of k3 at the two bounds."""
    below = -low - math.log1p(-low) if 0 <= low < 1 else math.inf
    return min(below, high - math.log1p(high))


@rule(
    "RLD201", "ratio-saturation",
    severity="error",
    optional=(*_OUTSIDE, *PASSES, "stale.mean", *CONTRADICTING),
    limits={
        "outside": 0.25, "outside_severe": 0.6, "clipped": 0.15, "clipped_severe": 0.4, "tiny_clip": 0.05,
        "tiny_clip_k3": 0.015, "tiny_clip_severe_k3": 0.05, "tokens": 1000, "lasting": 0.9,
    },
    cause="Each generation batch is trained on for too long or with steps that are too large: the policy leaves the "
    "trust region in bulk, "
    "and clipping takes the gradient away.",
    advice=(
        "Lower the learning rate, or the number of epochs and mini-batches per generation batch.",
        ("If the first mini-batch is outside already, look at the rollout rules first: old logprobs of another policy "
        "need another cure."),
        "With stale rollouts lower the allowed lag, or correct for it.",
    ),
    avoids=(
        "Sequence-level algorithms with tiny clip ranges, which clip a large share by design.",
        "No clipping at all: on-policy, with one step per batch, nothing can be clipped.",
        "Single steps.",
    ),
    source="arXiv:1707.06347, section 3; arXiv:2507.18071, section 5.2 (clip share of sequence-level ratios)",
)  # fmt: skip
def ratio_saturation(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The importance ratio lies outside the clip range for a large share of tokens, step after step.

    Clipping is a guard rail. When a large share of tokens is beyond it, most of the batch teaches nothing, and what is left
    is biased towards the tokens that moved least.

    Where passes over a generation batch are steps of their own, each batch is one point: before any update its ratio is 1 by
    design. It begins where `lasting` of the steps from there on are beyond the limit.

    The median over the late window (or over an earlier stretch of a twentieth of the run, or at a single severe step with a KL
    of 1 nat and more, which is a warning if severe and else info) of the share outside [1 - clip_low, 1 + clip_high] is held
    against `outside` (warning) and `outside_severe` (error); where only the share of clipped tokens is known, which is about
    half of it, against `clipped` and `clipped_severe`. For clip ranges below `tiny_clip` the share says nothing; then the mean
    k3 must exceed `tiny_clip_k3`, twice what half of the tokens outside a range of .2 would give, and is severe above
    `tiny_clip_severe_k3`. A clipped share that the
    k3 of the same steps cannot reach (each token outside has a k3 of at least `clip - log(1 + clip)`) is a wrong metric, and
    is reported as that; where the KL contradicts it in most of such rows, impossible-values tells. Where the first mini-batch
    is outside already, before any step, it is info: stale-old-logprob tells.
    """
    series = first_of(view, *_OUTSIDE)
    if series is None:
        yield lacking(view, *_OUTSIDE)
        return
    series = per_batch(view, series)
    if int(series.counts.sum()) < limits["tokens"] and len(series) < 8:
        yield Skip("length", f"inconclusive: {items(series, 'token')}")
        return
    low, high = view.config.clip_low, view.config.clip_high
    outside = series.metric == "policy.outside_frac"
    limit, severe = (limits["outside"], limits["outside_severe"]) if outside else (limits["clipped"], limits["clipped_severe"])
    late = _worst(view, series, limit, severe)
    share = late.center
    k3 = view.get("policy.kl_old_k3")
    within = None if k3 is None else k3.values[np.isin(k3.steps, series.steps[late.first : late.last + 1])]
    typical_k3 = None if within is None or within.size == 0 else float(np.median(within))
    worst = share >= severe
    if max(low or 0.2, high or 0.2) < limits["tiny_clip"]:
        if typical_k3 is None:
            yield Skip("config", "the clip range is tiny, so that the share outside it says nothing without k3", ("logprob",))
            return
        if typical_k3 < limits["tiny_clip_k3"]:
            return
        worst = typical_k3 >= limits["tiny_clip_severe_k3"]
    if share < limit:
        return
    if (wrong := _impossible(view, series, share, typical_k3, k3_bound(low or 0.2, high or 0.2))) is not None:
        yield wrong
        return
    cause, ruled_out, unchecked = _why_outside(view, share)
    severity: Severity = "error" if worst and late.last == len(series) - 1 else "warning"
    if not worst and late.last < len(series) - 1:
        severity = "info"  # over, and it was no more than that
    if (_outside_at_first(view) or 0.0) >= 0.5 * share and (_lag(view) or 0.0) < 1.0:
        severity = "info"  # stale-old-logprob tells, and its cure is another
    eps = f"[{1 - low:g}, {1 + high:g}]" if low is not None and high is not None else "the clip range"
    begin = _begin(series.values >= limit, late, limits["lasting"])
    yield Hit(
        f"{share:.0%} of the tokens {'have a ratio outside' if outside else 'are clipped at'} {eps} "
        f"(median, {span(series, late.first, late.last)})"
        + (f"; above {limit:.0%} since step {series.steps[begin]}" if begin < late.first else ""),
        severity,
        (evidence(series, begin, late.last, baseline=None if begin < 8 else trend.early(series.values).center, limit=limit),),
        cause=cause,
        ruled_out=ruled_out,
        unchecked=unchecked,
    )


def _worst(view: View, series: Series, limit: float, severe: float) -> trend.Window:
    """The late window; if that is below the limit, an earlier stretch above it, or a single step that ended elsewhere."""
    late = trend.late(series.values)
    if late.center >= limit:
        return late
    stretches = [item for item in trend.run_lengths(series.values >= limit) if item[1] - item[0] >= max(2, len(series) // 20)]
    k3 = view.raw("policy.kl_old_k3")
    if not stretches and k3 is not None:
        far = np.isin(series.steps, k3.steps[k3.values >= 1.0]) & (series.values >= severe)
        stretches = trend.run_lengths(far)
    if not stretches:
        return late
    return trend.window(series.values, *max(stretches, key=lambda item: item[1] - item[0]))


def _begin(beyond: Bools, late: trend.Window, lasting: float) -> int:
    """Index of the first point beyond the limit from which on, to the end of the window, a share ``lasting`` of them is."""
    inside = beyond[: late.last + 1]
    shares = np.cumsum(inside[::-1])[::-1] / np.arange(inside.size, 0, -1)
    starts = np.flatnonzero(inside & (shares >= lasting))
    return min(int(starts[0]), late.first) if starts.size else late.first


def _impossible(view: View, series: Series, share: float, k3: float | None, bound: float) -> Hit | Skip | None:
    """A share outside the clip range that the KL of the same steps does not allow; a skip where another rule tells."""
    if clip_contradicted(view):
        return Skip("data", "the share of clipped tokens contradicts the KL of the same rows: impossible-values tells")
    if k3 is None:
        return None
    least = bound * share
    if view.info.algorithm == "gspo" or k3 >= 0.5 * least:
        return None
    return Hit(
        f"A share of {share:.0%} outside the clip range needs a mean k3 of at least {least:.2g}, but it is {k3:.2g}",
        "warning",
        (evidence(series, trend.late(series.values).first, -1, value=share, limit=k3 / bound),),
        cause="One of the two logged metrics is wrong: tokens outside the clip range have a k3 of at least clip - log(1 + clip).",
        ruled_out=("a policy that moved too far: the KL of the same steps is too small for it",),
    )


def _outside_at_first(view: View) -> float | None:
    """Share outside in the first mini-batch, before any step; None where that is not known."""
    first = view.get("policy.first_outside_frac")
    return None if first is None else float(np.median(first.values[trend.late(first.values).first :]))


def _lag(view: View) -> float | None:
    lag = view.get("stale.mean")
    return None if lag is None else float(np.median(lag.values))


def _why_outside(view: View, share: float) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """Tell apart: old logprobs of another policy, stale rollouts, too many updates."""
    level, lag = _outside_at_first(view), _lag(view)
    if lag is not None and lag >= 1.0:
        return f"The rollouts are stale: the weights are {lag:.1f} versions ahead of those that sampled.", (), ()
    unchecked = () if lag is not None else ("stale rollouts: weight_version and policy_version",)
    if level is None:
        return None, (), ("old logprobs of another policy: epoch and minibatch", *unchecked)
    if level >= 0.5 * share:
        return (
            (
                "The ratio is outside before any step was taken: old_logprob belongs to another policy, temperature or alignment "
                "than logprob."
            ),
            (f"too many updates: the first mini-batch is outside already ({level:.0%})",),
            unchecked,
        )
    return None, (f"old logprobs of another policy: only {level:.1%} is outside in the first mini-batch",), unchecked


@rule(
    "RLD202", "inert-ratio",
    severity="error",
    optional=(
        "policy.later_zero_frac", "policy.slice_zero_frac", "policy.ratio_zero_frac", "policy.ratio_mean", *_KL_OLD,
        "optim.learning_rate", "optim.grad_norm", "ref.kl_k3", "stale.mean", *_MISMATCH, _PER_PAIR,
    ),
    limits={"inert": 0.999, "tokens": 200, "drift": 3.0, "z": 6.0, "material": 0.02, "steps": 0.9},
    cause="old_logprob is computed anew in every pass (or logprob is divided by its own detached copy), so that the "
    "ratio is 1 by "
    "construction and clipping never acts.",
    advice=(
        "Compute old_logprob once per generation batch, before the first optimizer step, and keep it.",
        "If one step per batch is intended, set epochs and mini-batches to 1: the ratio is then 1 by design.",
        "With asynchronous rollouts use the sampler's logprobs as old_logprob, or correct with an importance weight.",
    ),
    avoids=(
        "On-policy training with one step per batch.",
        "Mini-batches that are not known: skipped, never an alarm.",
        "Steps with a learning rate or a gradient of 0.",
        "Lag that an importance weight corrects.",
    ),
    source="Public issue threads on ratios divided by their own detached value",
)  # fmt: skip
def inert_ratio(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The ratio is exactly 1 on all tokens although the policy has moved since they were sampled.

    After an optimizer step the logprobs of a token cannot all be bit for bit what they were. A ratio of exactly 1 then means
    that it compares the policy with itself: there is no trust region, and stale data are trained on as if they were fresh.

    It fires if, in mini-batches before which a step was taken on the same generation batch, at least `inert` of `tokens` or
    more tokens (or of those of the first pass alone, as where later slices come without old logprobs) have a log-ratio of
    exactly 0 while learning rate and gradient norm are positive, or neither is known and the
    KL to the reference says that the policy moves at `steps` of the steps (error; else a warning); if this holds for
    all tokens of rollouts that are a weight version or more behind and no importance weight corrects for it (warning); or if
    ratio and KL are exactly 1 and 0 at every step while the gap to the sampler grows `drift` times, by `z` standard errors
    and to at least `material` nat (warning). Where the sampler's logprobs were recorded token by token, the rules on rollout
    against trainer judge the gap, and the last two are info.
    """
    later = view.get("policy.later_zero_frac")
    if later is not None and int(later.counts.sum()) >= limits["tokens"]:
        slices = view.get("policy.slice_zero_frac")
        hit = _inert_later(view, later, limits) or (None if slices is None else _inert_later(view, slices, limits))
        if hit is not None:
            yield hit
            return
    hit = _inert_lag(view, limits) or _inert_drift(view, limits)
    if hit is not None:
        yield hit
        return
    if later is None and view.get("stale.mean") is None:
        missing = view.missing.get("policy.later_zero_frac", ())
        if missing:
            yield Skip("column", f"whether a step was taken since sampling is not known: {', '.join(missing)}", tuple(missing))
        else:
            yield Skip(
                "data", "no mini-batch comes after an optimizer step on the same generation batch: a ratio of 1 is by design"
            )
    elif later is not None and int(later.counts.sum()) < limits["tokens"]:
        yield Skip("length", f"inconclusive: {int(later.counts.sum())} tokens in later mini-batches")
    elif later is not None and not len(_moving(view, later)):
        yield Skip("data", "no update moves the policy, by its gradient or learning rate: a ratio of 1 is what follows")


def _moving(view: View, series: Series) -> Series:
    """Those steps of a series on which neither learning rate nor gradient norm is 0, nor was at the step before.

    What a ratio tells of at one step was moved, or not, by the update before; a warm-up begins at a rate of 0.
    """
    keep = np.ones(len(series), np.bool_)
    for name in ("optim.learning_rate", "optim.grad_norm"):
        found = view.raw(name)
        if found is not None:
            zero = found.values == 0.0
            still = found.steps[zero | np.concatenate([[False], zero[:-1]])]
            keep &= ~np.isin(series.steps, still)
    return series.where(keep)


def _unmeasured_motion(view: View) -> tuple[str, ...]:
    names = {"optim.learning_rate": "a learning rate of 0: learning_rate", "optim.grad_norm": "a gradient of 0: grad_norm"}
    return tuple(words for name, words in names.items() if view.get(name) is None)


def _leaves_reference(view: View) -> bool:
    """Whether the KL to the reference grows: steps were taken."""
    found = view.get("ref.kl_k3")
    return found is not None and len(found) > 1 and float(np.median(found.values)) > max(2.0 * float(found.values[0]), 1e-9)


def _inert_later(view: View, later: Series, limits: Limits) -> Hit | None:
    moving = _moving(view, later)
    if len(moving) == 0 or int(moving.counts.sum()) < limits["tokens"]:
        return None
    inert = moving.values >= limits["inert"]
    if float(np.mean(inert)) < 0.5:
        return None
    unchecked = _unmeasured_motion(view)
    first = int(np.flatnonzero(inert)[0])
    share = float(np.average(moving.values[inert], weights=moving.counts[inert]))
    return Hit(
        f"The log-ratio is exactly 0 on {share:.1%} of the tokens in mini-batches after an optimizer step, on "
        f"{int(inert.sum())} of "
        f"{len(moving)} steps",
        "warning"
        if len(unchecked) == 2 and not (float(np.mean(inert)) >= limits["steps"] and _leaves_reference(view))
        else "error",
        (evidence(moving, first, -1, value=share, limit=limits["inert"]),),
        ruled_out=tuple(
            words
            for name, words in (
                ("optim.learning_rate", "a learning rate of 0: steps with one are left out"),
                ("optim.grad_norm", "a gradient of 0: steps with one are left out"),
            )
            if view.get(name) is not None
        ),
        unchecked=unchecked,
        suspect=_stands_still(view),
    )


def _stands_still(view: View) -> str:
    """The cause, where the KL to the reference says that no step changes the weights: it is exactly 0 all along."""
    kl, rate = view.get("ref.kl_k3"), view.get("optim.learning_rate")
    if kl is None or len(kl) < 2 or bool(np.any(kl.values != 0.0)):
        return ""
    tiny = rate is not None and float(np.median(rate.values)) < TINY_STEP
    return "" if tiny else "optimizer-not-stepping"  # a tiny rate leaves open whether a step is taken and vanishes


def _unless_told(view: View) -> Severity:
    """Info where the rules on rollout against trainer see the gap token by token and name its cause; else a warning."""
    return "warning" if view.get(_PER_PAIR) is None else "info"


def _inert_lag(view: View, limits: Limits) -> Hit | None:
    zero, lag = view.get("policy.ratio_zero_frac"), view.get("stale.mean")
    if zero is None or lag is None or not uncorrected(view):
        return None
    _, here, there = np.intersect1d(zero.steps, lag.steps, return_indices=True)
    stale = lag.values[there] >= 1.0
    if not stale.any() or int(zero.counts[here][stale].sum()) < limits["tokens"]:
        return None
    if float(np.mean(zero.values[here][stale] >= limits["inert"])) < 0.9:
        return None
    gap = first_of(view, *_MISMATCH)
    since = int(np.flatnonzero(stale)[0])
    return Hit(
        f"The ratio is exactly 1 although the rollouts are {float(np.median(lag.values[there][stale])):.1f} weight "
        "versions behind",
        _unless_told(view),
        (
            evidence(zero, int(here[since]), -1, limit=limits["inert"]),
            evidence(lag, int(there[since]), -1, limit=1.0),
        ),
        cause="old_logprob is recomputed with the weights being trained: the ratio does not see that other weights "
        "sampled the tokens.",
        unchecked=("how far the sampler is off: rollout_logprob",) if gap is None else (),
        suspect="staleness-hidden-by-recomputation",
    )


def _inert_drift(view: View, limits: Limits) -> Hit | None:
    ratio, gap = view.get("policy.ratio_mean"), first_of(view, *_MISMATCH)
    if ratio is None or gap is None or too_short(gap) or too_short(ratio) or not uncorrected(view):
        return None
    if not bool(np.all(ratio.values == 1.0)):
        return None
    kl = first_of(view, *_KL_OLD)
    if kl is not None and bool(np.any(kl.values != 0.0)):
        return None
    values = np.log(np.maximum(gap.values, max(float(gap.values.max()) * 1e-6, 1e-12)))
    moved = trend.change(values)
    level = math.exp(moved.late.center)
    if moved.difference < math.log(limits["drift"]) or moved.z < limits["z"] or level < limits["material"]:
        return None
    begin = trend.onset(values, moved.early, rising=True, share=0.8)
    since = min(int(np.searchsorted(ratio.steps, gap.steps[begin])), len(ratio) - 1)
    return Hit(
        f"The ratio is exactly 1 at all {len(ratio)} steps while the gap to the sampler's logprobs grew from "
        f"{math.exp(moved.early.center):.3g} to {level:.3g}",
        _unless_told(view),
        (evidence(ratio, since, -1, value=1.0), evidence(gap, begin, -1, value=level, baseline=math.exp(moved.early.center))),
        cause="The ratio compares the trainer with itself, so that a sampler with other weights goes unnoticed: stale weights.",
        ruled_out=("fresh rollouts: the sampler's logprobs drift away from the trainer's",),
        unchecked=("the lag itself: weight_version and policy_version",) if view.get("stale.mean") is None else (),
        suspect="ratio-blind-to-sampler",
    )
