"""Entropy of the policy: collapse and explosion."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import breaks, trend
from rl_doctor.rules.reading import (
    PROGRESS,
    TRUNCATION,
    Progress,
    change_evidence,
    evidence,
    first_of,
    lacking,
    progress,
    span,
    times,
    too_short,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.repetition import at_the_end
from rl_doctor.rules.view import View

_RECENT = 8
"""Last points that are compared with the early window too, where the late window has not moved yet."""
_SOME = 5
"""Responses that must loop: single ones are no sign."""
ENTROPY = ("policy.entropy", "policy.old_entropy")


def _logarithm(series: Series) -> trend.Floats:
    """Log entropy; a zero is kept finite, well below what the run shows elsewhere."""
    least = max(float(np.max(series.values)) * 1e-6, np.finfo(np.float64).tiny)
    return np.log(np.maximum(series.values, least))


def _never_measured(series: Series) -> Skip | None:
    if float(np.max(np.abs(series.values))) > 0.0:
        return None
    return Skip("data", f"{series.metric} is 0 at every step: not measured, rather than collapsed")


@rule(
    "RLD301", "entropy-collapse",
    severity="error",
    optional=(*ENTROPY, *PROGRESS, *TRUNCATION, "repeat.loop_frac"),
    limits={"left": 0.25, "severe": 0.15, "z": 6.0, "fast": 0.25, "open": 0.25, "loops": 0.1, "cut": 0.5, "few": 12},
    cause="The policy became nearly deterministic before it learned: too many updates on too few prompts, a learning rate that "
    "is too high, or clipping that lets probable tokens grow but not improbable ones.",
    advice=(
        "Raise the upper clip bound (clip-higher) or add a small entropy bonus, and lower the learning rate.",
        "Check that rollouts are sampled at temperature 1 and that prompts are not repeated too often.",
        "Go back to a checkpoint from before the onset: a collapsed policy explores no more.",
    ),
    avoids=(
        "A policy that starts with low entropy.",
        "Entropy that falls while the reward rises (a warning at most) or stands at its ceiling (info, unless responses loop).",
        "An entropy column that is 0 because it was never measured.",
    ),
    source="arXiv:2505.22617 (entropy mechanism); arXiv:2503.14476, section 3.1 (clip-higher)",
)  # fmt: skip
def entropy_collapse(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The entropy of the policy falls to a small share of the run's own start.

    Without entropy there are no different samples, without different samples there is no advantage, and learning stops for
    good. Some fall is what learning looks like; the question is what was bought with it.

    The late level (or that of the last 8 points) is compared with the run's own early window, as a ratio. It fires if at most
    `left` remains and the difference of logarithms is `z` standard errors; a run of `few` steps or more that is too short for
    that, if its last third lies at `severe` of its first third or below and no step of it above `left`. The reward decides the
    severity: an error if at most `severe` remains and the reward neither rises nor stands at its ceiling, or falls after the
    onset; info if it stands at its ceiling and had all but `open` of its gain when the entropy had fallen, so that little was
    left to explore for; a warning otherwise, also if the reward was not recorded. It is a warning at least, and not what
    learning looks like, where at most `severe` remains and a share of `loops` of the long responses of the end loops, or `cut`
    of all came to be cut for their length after less than half of that were. A fall that is over within `fast` of the run,
    counted from its onset, is said to be sudden. It begins where the entropy has gone for good by a third of what `left` asks.
    A fall to `left` from one step to the next is a warning from the fourth step after it on, before windows can tell.
    """
    series = first_of(view, *ENTROPY)
    if series is None:
        yield lacking(view, *ENTROPY)
        return
    if skip := _never_measured(series):
        yield skip
        return
    values = _logarithm(series)
    moved = _fallen(values, limits)
    if moved is None:
        yield from (skip,) if (skip := too_short(series)) else _just_now(view, series, values, limits)
        return
    left = math.exp(moved.difference)
    begin = trend.onset(values, moved.early, rising=False, share=0.3, end=moved.late.center)
    reached = trend.onset(values, moved.early, rising=False, share=0.8, end=moved.late.center)
    reward = progress(view, int(series.steps[begin]))
    severity, cause = _verdict(reward, left, limits)
    if severity == "warning" and _solved(reward, int(series.steps[reached]), limits["open"]):
        severity = "info"
    suspect = "exploration-used-up" if reward.good else ""
    if left <= limits["severe"] and _degenerate(view, limits):
        severity, cause, suspect = ("warning" if severity == "info" else severity), None, "policy-closes-up"
    first = trend.onset(values, moved.early, rising=False, share=0.3, end=moved.early.center + math.log(limits["left"]))
    pace = "suddenly" if reached - begin <= limits["fast"] * len(series) else "gradually"
    yield Hit(
        f"Entropy fell {pace} to {left:.0%} of its start ({math.exp(moved.early.center):.3g} to "
        f"{math.exp(moved.late.center):.3g}) "
        f"from step {series.steps[first]} on; {reward.words()}",
        severity,
        (change_evidence(series, first, moved, limits["left"]),),
        cause=cause,
        ruled_out=("low entropy from the start: the limit is relative to the run's own early window",),
        unchecked=() if reward.series is not None else ("whether the run learned meanwhile: reward",),
        suspect=suspect,
    )


def _fallen(values: trend.Floats, limits: Limits) -> trend.Change | None:
    """The end against the beginning, if the entropy fell; None if not, or if too few points show it."""
    if values.size >= trend.SHORTEST:
        moved = trend.change(values)
        if math.exp(moved.difference) > limits["left"]:
            moved = trend.change(values, _RECENT)
        return None if math.exp(moved.difference) > limits["left"] or moved.z > -limits["z"] else moved
    if values.size < limits["few"]:
        return None
    third = values.size // 3
    first, last = trend.window(values, 0, third - 1), trend.window(values, values.size - third, values.size - 1)
    highest = float(values[last.first :].max()) - first.center
    gone = last.center - first.center <= math.log(limits["severe"]) and highest <= math.log(limits["left"])
    return trend.Change(first, last, -math.inf) if gone else None


def _degenerate(view: View, limits: Limits) -> bool:
    """Whether what the policy writes at the end shows that it closed up: responses loop, or have come to be cut."""
    loops = view.get("repeat.loop_frac")
    if loops is not None:
        share, number = at_the_end(loops, 24)
        if share >= limits["loops"] and share * number >= _SOME:
            return True
    cut = first_of(view, *TRUNCATION)
    if cut is None or len(cut) < 8:
        return False
    part = len(cut) // 4
    return float(np.median(cut.values[-part:])) >= limits["cut"] > 2.0 * float(np.median(cut.values[:part]))


def _just_now(view: View, series: Series, values: trend.Floats, limits: Limits) -> Iterator[Hit]:
    """A fall at once that is too recent for a comparison of windows."""
    shift = breaks.fresh(values, -math.log(limits["left"]))
    if shift is None or shift.size > 0.0:
        return
    before, after = math.exp(shift.before), math.exp(shift.after)
    yield Hit(
        f"Entropy fell at once to {after / before:.0%} ({before:.3g} to {after:.3g}) at step {series.steps[shift.index]}; "
        f"{progress(view, int(series.steps[shift.index])).words()}",
        "warning",
        (evidence(series, shift.index, -1, value=after, baseline=before, limit=limits["left"] * before),),
        cause="One update closed the policy up, or other weights were loaded: entropy does not fall like this by learning.",
    )


def _solved(reward: Progress, step: int, left: float) -> bool:
    """Whether the reward stands at its ceiling and had gained all but ``left`` of its gain by a step."""
    if not reward.good or not reward.at_ceiling or reward.series is None:
        return False
    values = reward.series.values
    near = int(np.searchsorted(reward.series.steps, step))
    then = float(np.median(values[max(near - 2, 0) : near + 3]))
    first, last = trend.early(values).center, trend.late(values).center
    return last - then <= left * max(last - first, 0.0)


def _verdict(reward: Progress, left: float, limits: Limits) -> tuple[Severity, str | None]:
    if reward.good:
        return "warning", (
            "The policy becomes sure of what it has learned; exploration is used up, so that further gains are unlikely "
            "without harder prompts or an entropy bonus."
        )
    if reward.series is None or reward.course == "unknown":
        return "warning", None
    return ("error" if left <= limits["severe"] or reward.course == "falling" else "warning"), None


_RAISED: Final = 0.25
"""An upper clip bound from which on entropy is meant to rise."""


@rule(
    "RLD302", "entropy-explosion",
    severity="error",
    optional=(*ENTROPY, *PROGRESS, *TRUNCATION),
    limits={"growth": 3.0, "z": 6.0, "truncation": 0.1, "uniform": 0.5},
    cause="The policy dissolves into noise: an entropy bonus or clip-higher that is too strong, a learning rate that "
    "is too high, "
    "or rewards that push down what was sampled without pushing up anything else.",
    advice=(
        "Lower entropy_coef or the upper clip bound, and the learning rate.",
        "Read responses from after the onset; garbled text at unchanged settings points to a rollout or trainer mismatch.",
        "Go back to a checkpoint from before the onset.",
    ),
    avoids=("Entropy that rises while reward and length stay as they are: info.", ("Absolute levels: what is high "
    "depends on the model.")),
    source="Public issue threads on entropy growth with clip-higher and overlong samples",
)  # fmt: skip
def entropy_explosion(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The entropy of the policy grows to a multiple of the run's own start.

    Rising entropy alone is no fault: many runs with a raised upper clip bound live well with it. Together with a falling
    reward or with more and more responses that hit the length limit it means that the policy comes apart.

    It fires if the late level (or that of the last 8 points) is `growth` times the early window and the difference of
    logarithms is `z` standard errors. An error if the reward or the validation score falls, a warning if the share of
    truncated responses rises by `truncation`, or if the entropy exceeds `uniform` of that of a uniform choice from the
    vocabulary, or if the reward does not rise either and it is known that no bonus and no raised clip bound is set; else
    info. A rise by `growth` from one step to the next is a warning from the fourth step after it on.
    """
    series = first_of(view, *ENTROPY)
    if series is None:
        yield lacking(view, *ENTROPY)
        return
    if skip := _never_measured(series) or too_short(series):
        yield skip
        return
    values = _logarithm(series)
    moved = trend.change(values)
    if math.exp(moved.difference) < limits["growth"]:
        moved = trend.change(values, _RECENT)
    growth = math.exp(moved.difference)
    if growth < limits["growth"] or moved.z < limits["z"]:
        yield from _risen_just_now(view, series, values, limits)
        return
    begin = trend.onset(values, moved.early, rising=True, share=0.3, end=moved.late.center)
    reward = progress(view, int(series.steps[begin]))
    cut = first_of(view, *TRUNCATION)
    more_cut = cut is not None and trend.course(cut.values, limits["truncation"]) == "rising"
    vocabulary = view.info.vocab_size
    near_uniform = (
        vocabulary is not None and vocabulary > 1 and moved.late.center > math.log(limits["uniform"] * math.log(vocabulary))
    )
    unmeant = _unmeant(view) and reward.course != "rising"
    severity: Severity = "error" if reward.course == "falling" else "warning" if more_cut or near_uniform or unmeant else "info"
    unchecked: tuple[str, ...] = () if reward.series is not None else ("whether the reward falls: reward",)
    unchecked += () if cut is not None else ("whether more responses are truncated: finish_reason or config.max_response_length",)
    yield Hit(
        f"Entropy grew {times(growth)} ({math.exp(moved.early.center):.3g} to {math.exp(moved.late.center):.3g}), "
        f"{span(series, begin)}; {reward.words()}"
        + ("; more responses are truncated" if more_cut else "")
        + ("; that is more than half the entropy of a uniform choice from the vocabulary" if near_uniform else ""),
        severity,
        (change_evidence(series, begin, moved, limits["growth"]),),
        cause=None
        if severity != "info"
        else "A raised upper clip bound or an entropy bonus; harmless as long as the reward holds.",
        unchecked=unchecked,
        suspect="entropy-rises-harmlessly" if severity == "info" and reward.series is not None else "",
    )


def _unmeant(view: View) -> bool:
    """Whether it is known that nothing is set which raises the entropy: no bonus, and no raised upper clip bound."""
    config = view.config
    return config.entropy_coef == 0 and config.clip_high is not None and config.clip_high < _RAISED


def _risen_just_now(view: View, series: Series, values: trend.Floats, limits: Limits) -> Iterator[Hit]:
    """A rise at once that is too recent for a comparison of windows."""
    shift = breaks.fresh(values, math.log(limits["growth"]))
    if shift is None or shift.size < 0.0:
        return
    before, after = math.exp(shift.before), math.exp(shift.after)
    yield Hit(
        f"Entropy rose at once {times(after / before)} ({before:.3g} to {after:.3g}) at step {series.steps[shift.index]}; "
        f"{progress(view, int(series.steps[shift.index])).words()}",
        "warning",
        (evidence(series, shift.index, -1, value=after, baseline=before, limit=limits["growth"] * before),),
        cause="Within a step or two the policy became another: weights that were loaded or sent wrongly, an update that broke it,"
        " or a trainer whose forward pass changed.",
    )
