"""KL divergence to the sampling policy and to the reference: spikes and runaway growth."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import trend
from rl_doctor.rules.reading import (
    KL_OLD,
    KL_REFERENCE,
    PROGRESS,
    Progress,
    evidence,
    first_of,
    lacking,
    logged,
    positive,
    progress,
    span,
    times,
    too_short,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_OPTIONAL = (*KL_REFERENCE, *KL_OLD)
_FACTOR: Final = 3.5
_SIGMAS: Final = 6.0
_NEGLIGIBLE: Final = 1e-3
"""Nat per token; numeric noise of logprobs produces as much."""
_SHORTEST_FOR_SPIKES: Final = 12
_FEW: Final = 3
"""Spikes of a run that are still single events."""
_PASSING: Final = "One batch moved the policy far, or was far from the reference by what it holds; it came back by itself."
_SHORTEST_STAY: Final = 3
_SETTLED: Final = 24
"""Steps below which growth from the start cannot be told from a spike that stays."""
"""Points that an excursion must have lasted to be a level that stays."""


def magnitude(series: Series | None) -> Series | None:
    """A KL series without sign: k1 is a difference that may be negative by chance."""
    if series is None:
        return None
    return Series(series.metric, series.unit, series.steps, np.abs(series.values), series.counts)


def _measured(view: View) -> list[tuple[str, Series]]:
    """(words for it, series) of the KL to the reference and of the KL to the sampling policy, where measured."""
    found = (("reference", first_of(view, *KL_REFERENCE)), ("sampling policy", first_of(view, *KL_OLD)))
    return [(words, _moved(part)) for words, series in found if (part := magnitude(series)) is not None]


def _moved(series: Series) -> Series:
    """The series without exact zeros, which are passes before any update; as it is where little else is left."""
    kept = positive(series)
    return kept if len(kept) >= _SHORTEST_FOR_SPIKES else series


def _excursions(series: Series) -> list[trend.Excursion]:
    """Spikes of a series without sign; values below what noise produces count as that."""
    values = np.maximum(series.values, _NEGLIGIBLE)
    return [item for item in trend.excursions(values, _FACTOR, _SIGMAS) if item.value > _NEGLIGIBLE and item.first > 0]


@rule(
    "RLD203", "kl-spike",
    severity="error",
    optional=(*_OPTIONAL, "optim.grad_norm"),
    limits={
        "factor": _FACTOR, "sigmas": _SIGMAS, "large": 20.0, "recent": 0.1, "lasting": 0.1, "negligible": _NEGLIGIBLE,
        "near": 0.02, "tokens": 200, "stays": 6, "alike": 0.7,
    },
    cause="A single update moved the policy far: an outlier batch, a learning rate that is too high for it, or weights that were "
    "reloaded wrongly.",
    advice=(
        "Look at the batch of the first step of the spike: extreme advantages, very long or repeated responses.",
        "Compare the gradient norm and the learning rate at that step; lower the learning rate or max_grad_norm if both jumped.",
        "If the run was resumed there, check that optimizer state and weights were restored.",
    ),
    avoids=("A recovered spike is info.", "Noise with heavy tails, steady growth, and values rounded to 0.000 and 0.001."),
    source="Public GRPO logs in which single steps reach 15 times their neighbours and recover",
)  # fmt: skip
def kl_spike(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL divergence stands a multiple above its own level for a few steps.

    A spike says that one update moved the policy much further than its neighbours did. Most recover, and then it is worth
    knowing, no more. One that is large and recent, or that has not come back, needs a look before the run goes on.

    The level is a running median of the run itself; a point is part of a spike if it exceeds the level `factor` times and by
    `sigmas` robust standard deviations of the logarithm. Recovered is info; `large` times within the last `recent` share of
    the run, or not recovered, is a warning; longer than `lasting` of the run and not recovered is an error; what has not
    recovered counts from its third step on, in runs of 24 steps or more. A shorter peak
    within `sigmas` of the noise of the whole series on the logarithm is info. Values below
    `negligible` nat per token are within what numeric noise of logprobs produces. Passes with a KL of exactly 0, which come
    before any update, are left out. An error takes `stays` steps; so does a warning where a peak of `alike` of the size (on the
    logarithm) came and went. A shorter peak of means over fewer than `tokens` tokens is info, and so is a KL to the reference
    below `near` nat per token, to which any policy that learns comes.
    """
    measured = _measured(view)
    if not measured:
        yield lacking(view, KL_REFERENCE[0], *KL_OLD[:1])
        return
    judged = False
    for words, series in measured:
        if too_short(series, _SHORTEST_FOR_SPIKES):
            continue
        judged = True
        if found := _excursions(series):
            yield _spike(view, words, series, found, limits)
    if not judged:
        yield too_short(measured[0][1], _SHORTEST_FOR_SPIKES) or Skip("length", "inconclusive")


def _spike(view: View, words: str, series: Series, found: list[trend.Excursion], limits: Limits) -> Hit:
    n = len(series)
    worst = max(found, key=lambda item: (not item.recovered and item.n > 1, item.factor))
    recent = worst.last >= n - max(round(limits["recent"] * n), 3)
    noise = trend.noise(np.log(np.maximum(series.values, limits["negligible"])))[0]
    severity: Severity
    settled = worst.n >= limits["stays"]
    before = any(item.recovered and math.log(item.factor) >= limits["alike"] * math.log(worst.factor) for item in found)
    stays = not worst.recovered and worst.n >= _SHORTEST_STAY and n >= _SETTLED and (settled or not before)
    inside = slice(worst.first, worst.last + 1)
    few = not settled and not logged(series) and float(np.median(series.counts[inside])) < limits["tokens"]
    if few or (series.metric in KL_REFERENCE and worst.value < limits["near"]):
        severity = "info"
    elif stays and settled and worst.n > limits["lasting"] * n:
        severity = "error"
    elif math.log(worst.factor) < limits["sigmas"] * noise:
        severity = "info"  # the series has such peaks all the time
    elif stays or (worst.factor >= limits["large"] and recent):
        severity = "warning"
    else:
        severity = "info"
    state = worst.outcome
    passing = worst.recovered and len(found) <= max(_FEW, 0.02 * n)
    more = f" (the largest of {len(found)})" if len(found) > 1 else ""
    ruled_out, unchecked = _spike_company(view, series, worst)
    usual = f"{times(worst.factor)} its level of {worst.level:.3g}"
    if worst.level <= limits["negligible"]:
        usual = f"where its median is {np.median(series.values):.2g}"
    return Hit(
        f"KL to the {words} reached {worst.value:.3g}, {usual}, at {span(series, worst.first, worst.last)} {state}{more}",
        severity,
        tuple(
            evidence(series, item.first, item.last, value=item.value, baseline=item.level, limit=limits["factor"] * item.level)
            for item in sorted(found, key=lambda item: -item.factor)[:3]
        ),
        cause=_PASSING if passing else None,
        ruled_out=ruled_out,
        unchecked=unchecked,
        suspect="update-of-one-batch" if passing else "",
    )


def _spike_company(view: View, series: Series, worst: trend.Excursion) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whether the gradient norm jumped at the same steps."""
    norm = view.get("optim.grad_norm")
    if norm is None:
        return (), ("an outlier gradient: grad_norm",)
    first, last = series.steps[max(worst.first - 1, 0)], series.steps[worst.last]
    inside = norm.values[(norm.steps >= first) & (norm.steps <= last)]
    usual = float(np.median(norm.values))
    if inside.size and inside.max() < 2.0 * usual:
        return (f"outlier gradient: grad_norm stays below twice its median ({inside.max():.3g} of {usual:.3g})",), ()
    return (), ()


@rule(
    "RLD204", "kl-runaway",
    severity="error",
    optional=(*_OPTIONAL, *PROGRESS),
    limits={
        "growth": 8.0, "severe": 20.0, "z": 6.0, "negligible": _NEGLIGIBLE, "speed": 4.0, "multiple": 5.5, "small": 0.2,
        "large": 0.5, "far": 1.0, "lost": 2.0, "destroyed": 5.0, "jump": 3.0, "material": 0.1,
    },
    cause="The policy drifts away without bound: the learning rate is too high, or the KL term does not hold it (coefficient too "
    "small, wrong sign, or no gradient through it).",
    advice=(
        "Lower the learning rate or raise kl_coef, and go back to a checkpoint from before the onset.",
        "Check the sign of the KL term in the loss, and that it carries a gradient: doubling kl_coef must change the KL.",
        "Read a few responses from after the onset for repetition or garbage.",
    ),
    avoids=(
        "KL that settles at a new level.", "Growth from zero at the start, which slows down.", "Spikes that recover.",
        "A KL that grows because the policy learns: while the reward rises with it, moderate growth is info.",
    ),
    source="Public issue threads on KL that grows without bound; arXiv:1909.08593, section 2.2",
)  # fmt: skip
def kl_runaway(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL divergence grows by a multiple late in the run, faster than it did before, or jumps and stays there.

    KL to the reference grows from zero in every run that learns, and then slows down or settles. Growth that speeds up means
    that nothing holds the policy.

    The end of the run is compared with its middle (40% to 55%) and the middle with the early window. It fires

    - if the end is `growth` times the middle, by `z` standard errors, and the logarithm grew faster in the second half than
      in the first;
    - if the end is `large` nat per token or more and `multiple` times the middle, and the KL itself grew `speed` times faster in
      the second half than in the first (so that a start at 0 hides nothing);
    - if the end is `growth` times the early window and either `destroyed` nat or, while the reward falls, `far`;
    - if the end is `growth` times the first three points and `far` nat, and the reward gained nothing by it: also a KL that
      settles there is no success;
    - at a sudden lasting jump by `growth` times, or by `jump` times and `material` nat, which kl-spike does not report.

    The last points must still be there. An error if it is `severe` times or the reward falls, from `destroyed` nat on, and
    from `lost` nat on without a gain; else a warning. While the reward rises with it, it is info if the KL ends below `small`,
    or below `lost` at less than `severe` times the level before (a jump: less than `growth` times); or, with the reward at
    its ceiling, below `growth` times that level. Levels below `negligible` nat per token are left alone.
    """
    measured = _measured(view)
    if not measured:
        yield lacking(view, KL_REFERENCE[0], *KL_OLD[:1])
        return
    short = [skip for _, series in measured if (skip := too_short(series))]
    for words, series in measured:
        if not too_short(series):
            hit = _runaway(view, words, series, limits)
            if hit is not None:
                yield hit
    if len(short) == len(measured):
        yield short[0]


def _runaway(view: View, words: str, series: Series, limits: Limits) -> Hit | None:
    found = _jumped(series, limits) or _grown(view, series, limits)
    if found is None or (found[0] == "jump" and _told_as_spike(series, found[1])):
        return None
    how, begin, before, level = found
    if level < limits["negligible"] or float(np.median(series.values[-3:])) < level / limits["growth"]:
        return None
    reward = progress(view, int(series.steps[begin]))
    bought = level < limits["lost"] and level < limits["growth" if how == "jump" else "severe"] * before
    mild = level < limits["small"] or bought or (level < limits["growth"] * before and reward.at_ceiling)
    severity: Severity = "info" if reward.good and mild else "warning"
    gained = reward.good or reward.series is None or reward.course == "unknown"
    if reward.course == "falling" or level >= limits["destroyed"] or (how == "far" and level >= limits["lost"] and not gained):
        severity = "error"
    if how != "far" and level / before >= limits["severe"] and not reward.good:
        severity = "error"
    start = int(series.steps[begin])
    multiple, levels = times(level / before), f"from {before:.3g} to {level:.3g} nat per token"
    ruled_out: tuple[str, ...] = ("a spike: the last points are still there",)
    limit = limits["jump" if how == "jump" else "growth" if level >= limits["growth"] * before else "multiple"] * before
    if how == "jump":
        told = f"rose at once {multiple}, {levels}, at step {start} and stays there"
    elif how == "faster":
        told = f"grew {multiple}, {levels}, since step {start}, and faster than before"
        ruled_out = ("growth from zero that slows down: the second half of the run grew faster than the first", *ruled_out)
    else:
        told = f"grew {levels}, since step {start}"
    return Hit(
        f"KL to the {words} {told}; {reward.words()}",
        severity,
        (evidence(series, begin, -1, value=level, baseline=before, limit=limit),),
        cause="The policy moved far at one step and stayed there: an outlier update, weights that were reloaded wrongly, or a "
        "reference that was replaced."
        if how == "jump"
        else None,
        ruled_out=ruled_out,
        unchecked=_unknown_reward(reward),
    )


def _grown(view: View, series: Series, limits: Limits) -> tuple[str, int, float, float] | None:
    """How it grew, the point at which that began, the level before and the level at the end; None if it did not run away."""
    logs = np.log(np.maximum(series.values, limits["negligible"] / limits["growth"]))
    n = logs.size
    middle, first, last = trend.window(logs, round(0.4 * n), round(0.55 * n)), trend.early(logs), trend.late(logs, 0.1)
    start, half, end = (float(np.exp(part.center)) for part in (first, middle, last))
    sigma, rho = trend.noise(logs)
    error = sigma * (min(2 * trend.inflation(rho) / last.n, 1.0) + min(2 * trend.inflation(rho) / middle.n, 1.0)) ** 0.5
    growth = last.center - middle.center
    faster = growth >= math.log(limits["growth"]) and growth > max(
        trend.least_z(limits["z"], len(series)) * error, middle.center - first.center
    )
    apart = float(np.min(series.values[last.first :])) > 2.0 * half
    fast = end >= max(limits["large"], limits["multiple"] * half) and end - half >= limits["speed"] * (half - start) and apart
    if faster or fast:
        return "faster", trend.onset(logs, middle, rising=True, share=0.2), half, end
    begin = trend.onset(logs, first, rising=True, share=0.2)
    lost = end >= limits["far"] and progress(view, int(series.steps[begin])).course == "falling"
    if (lost or end >= limits["destroyed"]) and end >= limits["growth"] * start:
        return "far", begin, start, end
    origin = float(np.median(series.values[:3]))
    if end >= limits["far"] and end >= limits["growth"] * origin:
        reward = progress(view)
        if reward.course in {"flat", "falling"} and not reward.at_ceiling:
            begin = int(np.flatnonzero(trend.running_median(series.values, 5) >= 0.5 * end)[0])
            return "far", begin, max(origin, limits["negligible"]), end
    return None


def _jumped(series: Series, limits: Limits) -> tuple[str, int, float, float] | None:
    """As ``_grown``, for a sudden and lasting jump, on the scale of the logarithm or of the KL itself."""
    logs = np.log(np.maximum(series.values, limits["negligible"] / limits["growth"]))
    level = trend.late(series.values, 0.1).center
    for values, unscaled in ((logs, math.exp), (series.values, float)):
        shift = trend.jump(values)
        if shift is None or shift.recovered:
            continue
        before, after = unscaled(shift.before), unscaled(shift.after)
        grown = min(after, level)
        if before <= 0.0 or grown < limits["jump"] * before:
            continue
        if grown < limits["growth"] * before and after - before < limits["material"]:
            continue
        return "jump", shift.index, before, after
    return None


def _told_as_spike(series: Series, index: int) -> bool:
    """Whether kl-spike reports the jump at ``index`` as a spike that has not recovered."""
    ongoing = (item for item in _excursions(series) if not item.recovered and item.n >= _SHORTEST_STAY)
    return any(abs(item.first - index) <= _SHORTEST_STAY for item in ongoing)


def _unknown_reward(reward: Progress) -> tuple[str, ...]:
    return ("whether the reward falls at the same time: reward",) if reward.series is None else ()
