"""What outdated weights are told by: how two logprobs part before any update, and how engine and trainer part over the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.causes.registry import Look, Role, Sign
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import sign
from rl_doctor.rules.spans import LEAST_OFFSET, NO_SPREAD, at, pooled
from rl_doctor.rules.staleness import NEAREST, OLD_REFERENCE, REFERENCE, has_left_reference

GAPS: Final = ("mismatch.abs", "mismatch.prob_abs", "mismatch.k3")
"""Sizes of the gap between engine and trainer, in the order in which they are read: the first that is there."""
MOVED: Final = 0.02
"""Share of the summed learning rate below which the weights have hardly moved."""
FEW: Final = 3


def start_and_level(scene: Scene, *names: str, few: int = FEW) -> tuple[Series, float, float] | None:
    """The first of several metrics that was measured, its median at the ``few`` first steps and over those of the findings."""
    for name in names:
        whole, inside = scene.view.get(name), scene.series(name)
        if whole is not None and inside is not None:
            first = max(1, min(few, len(whole) // 8))
            return whole, float(np.median(whole.values[:first])), pooled(inside)
    return None


def absent_at_first(role: Role, *, wanted: bool = True) -> Sign:
    """That the first ratios are 1 in the beginning and leave it later; with ``wanted`` false, that they never were."""
    words = (
        "the difference is absent at first and comes with the updates"
        if wanted
        else "the difference is there from the first step"
    )

    @sign(words, "mismatch.first_k3", role=role)
    def look(scene: Scene) -> Look:
        found = start_and_level(scene, "mismatch.first_k3", few=1)  # one step later the weights may be outdated
        if found is None:
            return Look(None, words, None, scene.missing("mismatch.first_k3"))
        whole, start, level = found
        absent = start < 0.2 * level
        return Look(absent is wanted, f"before any update k3 is {start:.2g} nat at the first steps and {level:.2g} later",
                    scene.first_step if absent else int(whole.steps[0]))  # fmt: skip

    return look


_ROWS: Final = "mismatch.first_rows_frac"
_SOME: Final = 0.7
"""Share of the rows up to which only some differ."""
_RELATED: Final = 0.3
"""Correlation of two logprobs of the same tokens below which they are not those of the same tokens."""


def rows_that_differ(role: Role, *, few: bool) -> Sign:
    """That only some rows differ before any update, or (nearly) all."""
    words = "only some rows differ before any update" if few else "all rows differ before any update"

    @sign(words, _ROWS, role=role)
    def look(scene: Scene) -> Look:
        series = scene.series(_ROWS)
        if series is None:
            return Look(None, words, None, scene.missing(_ROWS))
        share = scene.value(_ROWS)
        there = share < _SOME if few else share > 0.9
        return Look(there, f"{share:.0%} of {scene.count(_ROWS):,} rows differ before any update", int(series.steps[0]))

    return look


def _bias(scene: Scene) -> tuple[float, float, float]:
    """Mean of x, its standard error, and what honest policies that far apart may have."""
    bias, k3, size = (scene.value(name) for name in ("mismatch.first_bias", "mismatch.first_k3", _ABS))
    error = scene.value("mismatch.first_std") / math.sqrt(max(scene.count("mismatch.first_bias"), 1))
    most = 3.0 * k3
    if not math.isnan(size):  # beyond some size k3 grows so fast that it would excuse a difference to one side only
        most = min(most, UNBIASED * size)
    return bias, error, most + 4.0 * error


_BIAS: Final = ("mismatch.first_bias", "mismatch.first_std", "mismatch.first_k3", "mismatch.first_abs")
_HALF: Final = ("half.logprob_frac", "half.old_logprob_frac")
_ABS: Final = "mismatch.first_abs"
UNBIASED: Final = 0.6
"""Mean of d over mean of its size up to which it may be noise: of normal noise of .95 nat whose mean exp(d) is 1."""
ROUNDED: Final = 0.25
"""Mean |d| of two passes, in nat, beyond which no rounding of logits explains it: that of bfloat16 is .06 at logits of 32."""
KERNELS: Final = 0.15
"""Mean |d| of two passes over a row, in nat, up to which it may be the order of sums in half precision."""
RANDOM: Final = 0.008
"""Mean |d| of two passes, in nat, from which on it may be dropout."""
ROUNDING: Final = 0.012
"""Mean |d| of two passes, in nat, up to which it may be rounding."""


def is_biased(scene: Scene) -> bool | None:
    """Whether the mean of x is more than two honest policies that far apart may have."""
    bias, _, most = _bias(scene)
    return None if math.isnan(bias) or math.isnan(most) else abs(bias) > most


def is_halved(scene: Scene) -> bool | None:
    """Whether one of the two logprobs, and only one, has nothing but values of half precision."""
    new, old = (scene.value(name) for name in _HALF)
    return None if math.isnan(new) or math.isnan(old) else abs(new - old) > 0.5


@sign("one pass is biased against the other, has values of half precision only, or differs by little", *_BIAS, *_HALF, _ABS)
def other_precision(scene: Scene) -> Look:
    """That the two passes differ as two precisions or two code paths do."""
    biased, halved, size = is_biased(scene), is_halved(scene), scene.value(_ABS)
    if biased is None and halved is None:
        return Look(None, other_precision.words, None, scene.missing(*_BIAS, *_HALF))
    bias, _, most = _bias(scene)
    new, old = (scene.value(name) for name in _HALF)
    told = f"mean |d| is {size:.2g} nat, its mean {bias:+.2g} (honest policies: up to {most:.1g})"
    if not (math.isnan(new) or math.isnan(old)):
        told += f"; {new:.0%} of logprob and {old:.0%} of old_logprob are values of half precision"
    constant = abs(bias) > LEAST_OFFSET and scene.value("mismatch.first_std") < NO_SPREAD * abs(bias)
    return Look((bool(biased or halved) or size < ROUNDING) and not size > ROUNDED and not constant, told)


@sign(f"the difference is unbiased noise in full precision, {RANDOM:g} nat or more", *_BIAS, *_HALF, _ABS)
def noise_of_a_pass(scene: Scene) -> Look:
    """That the two passes differ as with dropout: by a mean that is not 0 but a KL, about k3, with the sign of who sampled."""
    biased, halved, size = is_biased(scene), is_halved(scene), scene.value(_ABS)
    if biased is None or math.isnan(size):
        return Look(None, noise_of_a_pass.words, None, scene.missing(*_BIAS))
    bias, k3, (_, _, most) = scene.value("mismatch.first_bias"), scene.value("mismatch.first_k3"), _bias(scene)
    told = f"mean |d| is {size:.2g} nat, its mean {bias:+.2g}, k3 {k3:.2g} (noise: a mean of {most:.1g} at most)"
    if halved:
        told += "; one of the two has nothing but values of half precision"
    return Look(not biased and not halved and size > RANDOM, told)


@sign("on average the two passes are about equally large", _BIAS[0], _ABS)
def same_level(scene: Scene) -> Look:
    """That neither of two passes is far below the other, as one of another model or of other positions is."""
    bias, size = scene.value(_BIAS[0]), scene.value(_ABS)
    if math.isnan(bias) or math.isnan(size):
        return Look(None, same_level.words, None, scene.missing(_BIAS[0], _ABS))
    return Look(abs(bias) < 0.7 * size, f"before any update mean |d| is {size:.2g} nat and its mean {bias:+.2g}")


def unrelated(role: Role) -> Sign:
    """That the two passes do not correlate in the rows that differ.

    Where that are some rows only, it is told by the engine, if that agrees with logprob: old_logprob is far from both there.
    """
    words = "in the rows that differ logprob and old_logprob do not correlate"
    names = ("mismatch.first_corr", _ROWS, "mismatch.off_corr", "mismatch.rollout_to_new", "mismatch.rollout_to_old")

    @sign(words, *names, role=role)
    def look(scene: Scene) -> Look:
        corr, share, off, to_new, to_old = (scene.value(name) for name in names)
        some = share < _SOME and to_new < to_old
        if math.isnan(off if some else corr):
            return Look(None, words, None, scene.missing(*(names[2:] if some else names[:1])))
        if some:
            return Look(off < _RELATED, f"in the rows that differ old_logprob and rollout_logprob correlate with {off:.2g}")
        return Look(corr < _RELATED, f"before any update logprob and old_logprob correlate with {corr:.2g}")

    return look


def rounding_sized(role: Role, *, wanted: bool) -> Sign:
    """That |d| is as small as rounding makes it in the rows that differ, or larger."""
    words = f"in the rows that differ the difference is {'that of rounding' if wanted else 'larger than rounding makes it'}"

    @sign(words, _ABS, _ROWS, role=role)
    def look(scene: Scene) -> Look:
        size, share = scene.value(_ABS), scene.value(_ROWS)
        if math.isnan(size) or not share > 0.0:
            return Look(None, words, None, scene.missing(_ABS, _ROWS))
        there = size / share
        return Look((there <= KERNELS) is wanted, f"mean |d| is {there:.2g} nat in the rows that differ")

    return look


def repeats_reference(role: Role) -> Sign:
    """That old_logprob is the reference's, of a policy that has left its reference: at first every policy is its reference."""
    words = "old_logprob is that of the reference, which the policy has left"
    names = OLD_REFERENCE

    @sign(words, *names, *NEAREST, *REFERENCE, *_BIAS, role=role)
    def look(scene: Scene) -> Look:
        close, away = (scene.series(name) for name in names)
        if close is None or away is None:
            return Look(None, words, None, scene.missing(*names))
        told = f"old_logprob is {pooled(close):.3g} nat from the reference, logprob {pooled(away):.3g}"
        if pooled(close) >= 0.3 * pooled(away):
            return Look(there=False, text=told)
        left = has_left_reference(scene.view, (int(away.steps[0]), int(away.steps[-1])))
        if left is None:
            return Look(None, f"{words}: at the first steps every older policy is the reference")
        return Look(left, told if left else f"{told}, but the samples are those of old_logprob")

    return look


def nearest(role: Role, near: str, far: str, words: str, told: str, share: float = 0.5) -> Sign:
    """That one distance is less than ``share`` of another; ``told`` has ``{}`` for both."""

    @sign(words, near, far, role=role)
    def look(scene: Scene) -> Look:
        close, away = scene.series(near), scene.series(far)
        if close is None or away is None:
            return Look(None, words, None, scene.missing(near, far))
        steps = np.intersect1d(close.steps, away.steps)
        one, other = at(close, steps), at(away, steps)
        if one is None or other is None:
            return Look(None, words)
        return Look(pooled(one) < share * pooled(other), told.format(f"{pooled(one):.3g}", f"{pooled(other):.3g}"))

    return look


def rate_is_zero(role: Role) -> Sign:
    """That the learning rate is 0 (or the gradient) at nearly all steps of the findings."""
    words = "the weights do not move: learning rate or gradient are 0"
    names = ("optim.learning_rate", "optim.grad_norm")

    @sign(words, *names, role=role)
    def look(scene: Scene) -> Look:
        found = [series for name in names if (series := scene.series(name)) is not None]
        if not found:
            return Look(None, words, None, scene.missing(*names))
        shares = [float(np.mean(series.values == 0.0)) for series in found]
        share = max(shares)
        told = "learning rate" if shares.index(share) == 0 and found[0].metric == names[0] else "gradient"
        return Look(share > 0.9, f"the {told} is 0 at {share:.0%} of the steps")

    return look


def summed_rate(scene: Scene, at_steps: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """Share of the run's summed learning rate before each of ``at_steps``; None where it is unknown or 0 all along."""
    rate = scene.view.get("optim.learning_rate")
    if rate is None or not float(rate.values.sum()) > 0.0:
        return None
    total = np.append(0.0, np.cumsum(rate.values)) / rate.values.sum()
    return np.asarray(total[np.searchsorted(rate.steps, at_steps, side="left")], np.float64)


def onset_of(series: Series) -> int | None:
    """Index at which a series has left its start for good: the middle between start and the level of its last third."""
    if len(series) < 6:
        return None
    start = float(np.median(series.values[: max(2, len(series) // 12)]))
    level = float(np.median(series.values[-max(len(series) // 3, 3) :]))
    inside = np.flatnonzero(series.values < 0.5 * (start + level))
    if not level > 2.0 * start or not inside.size:
        return None
    return min(int(inside[-1]) + 1, len(series) - 1)


def gap(scene: Scene) -> Series | None:
    """The size of the gap between engine and trainer over the whole run."""
    return next((series for name in GAPS if (series := scene.view.get(name)) is not None), None)


def ends(series: Series) -> tuple[float, float]:
    """Medians of the first fifth and of the last sixth of a series."""
    size = len(series)
    return float(np.median(series.values[: max(size // 5, 1)])), float(np.median(series.values[-max(size // 6, 1) :]))


def gap_sign(words: str, *more: str, role: Role = "needed") -> Callable[[Callable[[Scene], Look]], Sign]:
    """As ``sign``, for one that reads the gap."""
    return sign(words, *GAPS, *more, role=role)


def no_gap(scene: Scene, words: str) -> Look:
    """The look of a sign that needs a gap where there is none, or one that is too short."""
    return Look(None, words, None, scene.missing(GAPS[0]))


def with_role(role: Role, made: Sign) -> Sign:
    """A sign in another role."""
    return replace(made, role=role)


def either(one: Sign, other: Sign, role: Role = "needed") -> Sign:
    """A sign that is there where one of two is; told is the one that is there."""
    words = f"{one.words}, or {other.words}"

    @sign(words, *one.needs, *other.needs, role=role)
    def look(scene: Scene) -> Look:
        looks = [one.look(scene), other.look(scene)]
        there = next((found for found in looks if found.there), None)
        if there is not None:
            return there
        unknown = [found for found in looks if found.there is None]
        if unknown:
            return Look(None, words, None, tuple(dict.fromkeys(name for found in unknown for name in found.missing)))
        return Look(there=False, text="; ".join(found.text for found in looks))

    return look


def both(one: Sign, other: Sign, role: Role = "needed") -> Sign:
    """A sign that is there where two are; told is the one that decides."""
    words = f"{one.words}, and {other.words}"

    @sign(words, *one.needs, *other.needs, role=role)
    def look(scene: Scene) -> Look:
        looks = [one.look(scene), other.look(scene)]
        absent = next((found for found in looks if found.there is False), None)
        if absent is not None:
            return absent
        unknown = [found for found in looks if found.there is None]
        if unknown:
            return Look(None, words, None, tuple(dict.fromkeys(name for found in unknown for name in found.missing)))
        return Look(there=True, text="; ".join(found.text for found in looks), step=looks[0].step)

    return look


def grows(*, wanted: bool, role: Role = "needed") -> Sign:
    """That the gap between engine and trainer grows from its floor; with ``wanted`` false, that it was there at first."""
    words = "the gap is at its floor at first and grows" if wanted else "the gap is there from the first step"

    @gap_sign(words, role=role)
    def look(scene: Scene) -> Look:
        found = start_and_level(scene, *GAPS)
        if found is None:
            return no_gap(scene, words)
        series, start, level = found
        index = onset_of(series)
        return Look((start < 0.5 * level) is wanted, f"{series.metric} is {start:.2g} at the first steps and {level:.2g} later",
                    None if index is None else int(series.steps[index]))  # fmt: skip

    return look
