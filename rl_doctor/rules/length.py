"""Length of responses: truncation, growth without gain, aborted responses."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules import breaks, trend
from rl_doctor.rules.reading import (
    PROGRESS,
    TRUNCATION,
    Progress,
    change_evidence,
    evidence,
    first_of,
    items,
    lacking,
    progress,
    times,
    too_short,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_RECENT = 8
"""Last points that are compared with the early window too, where the late window has not moved yet."""
_TRUNCATED_REWARD = "length.limit_reward_mean"
_EARNS = "Responses run into the length limit and earn no less for it: nothing teaches them to end."


@rule(
    "RLD501", "length-truncation",
    severity="error",
    optional=(*TRUNCATION, _TRUNCATED_REWARD, *PROGRESS),
    limits={"half": 0.5, "standing": 0.25, "tolerable": 0.3, "all": 0.9, "always": 0.7, "every": 0.95, "floor": 0.1},
    cause="max_response_length is too short for what the policy writes, so that responses are cut before they can be right.",
    advice=(
        "Raise max_response_length, or ask for shorter answers, until fewer than a tenth of the responses are cut.",
        ("Read the ends of cut responses: unfinished reasoning needs room; loops or missing end-of-sequence tokens "
        "need another cure."),
        "Mask cut responses out of the loss (overlong filtering) if the limit has to stay.",
    ),
    avoids=("A share that is easing.", "Cut responses that are rewarded like others.", "A few cut responses in every step."),
    source="Public runs with every response cut at the limit; arXiv:2503.14476, section 3.4",
)  # fmt: skip
def length_truncation(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Many responses are cut at the length limit.

    A cut response rarely earns its reward, whatever the policy meant to say. When most are cut, a reward of 0, groups
    without variance and a gradient of 0 all follow from it: look at the limit before the reward function.

    The share of responses at the limit is taken over the late window. At `half` or more it is an error if cut responses earn
    no more than `floor` of the way from the smallest to the largest reward (or, where that is unknown, the reward does not
    rise), and whatever the reward does if practically no response ends by itself: `all` in the late window, without easing, and
    `always` over the run, or of few steps `every` one (unless it is known that cut responses earn more). Else it is a warning.
    From `standing` on it is a warning if it grows, or stands at `tolerable` or more while the reward does not rise, else info; a
    share that eases is info while the reward rises, and a warning above `half` or if it was above in the beginning. It begins at
    the step from which on the share stands at the limit that it is held against.
    """
    series = first_of(view, *TRUNCATION)
    if series is None:
        yield lacking(view, *TRUNCATION)
        return
    if skip := too_short(series, 3):
        yield skip
        return
    late = trend.late(series.values)
    share = float(np.mean(series.values[late.first :]))
    shift = breaks.fresh(series.values, limits["standing"])
    if shift is not None and shift.after >= limits["half"] > share:
        late, share = trend.window(series.values, shift.index, len(series) - 1), float(np.mean(series.values[shift.index :]))
    if share < limits["standing"]:
        return
    sequences = int(series.counts[late.first :].sum())
    if sequences < 24 and len(series) < 8:
        yield Skip("length", f"inconclusive: {items(series, 'response')}")
        return
    course = trend.course(series.values, 0.25 * share)
    if course == "unknown":
        course = "flat"
    reward = progress(view)
    early = float(np.mean(series.values[: trend.early(series.values).n]))
    floored, words = _truncated_reward(view, limits)
    severity = _how_bad(series, share, early, course, floored=floored, reward=reward, limits=limits)
    trend_words = {"falling": "easing", "rising": "growing", "flat": "standing"}[course]
    bar = limits["half" if share >= limits["half"] else "standing"]
    yield Hit(
        f"{share:.0%} of the responses are cut at the length limit ({trend_words}, {early:.0%} at the start){words}; "
        f"{reward.words()}",
        severity,
        (evidence(series, late.first, -1, value=share, baseline=early, limit=bar), *_standing(series, bar, late.first)),
        cause=_EARNS if floored is False else None,
        ruled_out=("a broken reward function: cut responses earn the least, which explains the low reward",) if floored else (),
        unchecked=() if floored is not None else ("what cut responses earn: finish_reason and reward",),
        suspect="length-limit-too-short" if floored and share >= limits["half"] else "",
    )


def _standing(series: Series, bar: float, late: int) -> tuple[Evidence, ...]:
    """Evidence from the point on from which about as many as ``bar`` are cut, single steps left out; if before ``late``."""
    below = np.flatnonzero(trend.running_median(series.values, 9) < 0.9 * bar)
    since = int(below[-1]) + 1 if below.size else 0
    return (evidence(series, since, -1, value=float(np.mean(series.values[since:])), limit=bar),) if since < late else ()


def _how_bad(
    series: Series, share: float, early: float, course: trend.Course, *, floored: bool | None, reward: Progress, limits: Limits
) -> Severity:
    """What a share of cut responses is worth, by where it came from and what the cut responses cost."""
    if share >= limits["half"]:
        if floored is not False and _always(series, share, course, limits):
            return "error"
        lost = floored if floored is not None else (reward.series is not None and not reward.good)
        few = len(series) < trend.SHORTEST and not floored
        return "warning" if course == "falling" or few or not lost else "error"
    if course == "rising":
        return "warning"
    if reward.good:
        return "info" if course == "falling" or share < 0.4 else "warning"
    eases = course == "falling" and early < limits["half"]
    return "info" if share < limits["half" if eases else "tolerable"] else "warning"


def _always(series: Series, share: float, course: trend.Course, limits: Limits) -> bool:
    """Whether practically no response ends by itself; of few steps each has to say so."""
    if len(series) < trend.SHORTEST:
        return float(series.values.min()) >= limits["every"]
    return share >= limits["all"] and float(np.mean(series.values)) >= limits["always"] and course != "falling"


def _truncated_reward(view: View, limits: Limits) -> tuple[bool | None, str]:
    """Whether cut responses earn about the smallest reward, and words for it; None where unknown."""
    earned = view.get(_TRUNCATED_REWARD)
    low, high = view.get("reward.min"), view.get("reward.max")
    if low is None or high is None:
        return None, ""
    floor, top = float(low.values.min()), float(high.values.max())
    if top == floor:
        return True, f", and every reward is {floor:.3g}"
    if earned is None:
        return None, ""
    level = float(np.median(earned.values[trend.late(earned.values).first :]))
    return level <= floor + limits["floor"] * (top - floor), f", earning {level:.3g} on average"


@rule(
    "RLD502", "length-explosion",
    severity="error",
    optional=("length.mean", *PROGRESS),
    limits={"growth": 2.0, "huge": 5.0, "z": 6.0},
    cause="The policy writes longer without being better: the loss favours length (token-mean with long wrong "
    "answers), the end-of-"
    "sequence token is not trained, or the reward pays for length.",
    advice=(
        "Compare the lengths of right and wrong answers; if the wrong ones grow, use a constant normaliser or a length penalty.",
        "Check that the end-of-sequence token is inside the response mask (rule mask-misses-eos).",
        "Read the longest responses for repetition.",
    ),
    avoids=("Growth that comes with a rising reward.", "Growth of a few per cent."),
    source="arXiv:2503.20783 (length bias); public issue threads on gibberish growth",
)  # fmt: skip
def length_explosion(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Responses grow to a multiple of their early length while the reward does not rise.

    Longer reasoning that earns more is what many runs are for. Length that grows while the reward stands still or falls
    costs time and usually ends at the length limit.

    It fires if the late mean length (or that of the last 8 points) is `growth` times that of the early window, the
    difference of logarithms is `z` standard errors (on a short run more) and the reward does not rise: an error if the reward
    falls, or ends no higher after a growth of `huge` times; a warning if it stands, info if it was not recorded. Growth by
    `growth` from one step to the next is a warning from the fourth step after it on.
    """
    series = view.get("length.mean")
    if series is None:
        yield lacking(view, "length.mean")
        return
    if skip := too_short(series):
        yield skip
        return
    values = np.log(np.maximum(series.values, 1.0))
    moved = trend.change(values)
    if math.exp(moved.difference) < limits["growth"]:
        moved = trend.change(values, _RECENT)
    growth = math.exp(moved.difference)
    if growth < limits["growth"] or moved.z < trend.least_z(limits["z"], len(series)):
        yield from _grown_just_now(view, series, values, limits)
        return
    begin = trend.onset(values, moved.early, rising=True, share=0.3, end=moved.late.center)
    reward = progress(view, int(series.steps[begin]))
    if reward.good:
        return
    severity: Severity = "info" if reward.series is None else "warning"
    if reward.course == "falling" or (growth >= limits["huge"] and _no_higher(reward.series)):
        severity = "error"
    yield Hit(
        f"Responses grew {times(growth)}, from {math.exp(moved.early.center):.0f} to "
        f"{math.exp(moved.late.center):.0f} tokens, since "
        f"step {series.steps[begin]}; {reward.words()}",
        severity,
        (change_evidence(series, begin, moved, limits["growth"]),),
        ruled_out=("growth that pays: the reward does not rise with it",) if reward.series is not None else (),
        unchecked=() if reward.series is not None else ("whether the growth pays: reward",),
    )


def _grown_just_now(view: View, series: Series, values: trend.Floats, limits: Limits) -> Iterator[Hit]:
    """Growth at once that is too recent for a comparison of windows."""
    shift = breaks.fresh(values, math.log(limits["growth"]))
    if shift is None or shift.size < 0.0:
        return
    reward = progress(view, int(series.steps[shift.index]))
    if reward.good:
        return
    before, after = math.exp(shift.before), math.exp(shift.after)
    yield Hit(
        f"Responses grew at once {times(after / before)}, from {before:.0f} to {after:.0f} tokens, at step "
        f"{series.steps[shift.index]}; {reward.words()}",
        "info" if reward.series is None else "warning",
        (evidence(series, shift.index, -1, value=after, baseline=before, limit=limits["growth"] * before),),
        cause="Length does not double in a step by learning: other prompts, another limit, or an end token that is lost.",
        unchecked=() if reward.series is not None else ("whether the growth pays: reward",),
    )


def _no_higher(reward: Series | None) -> bool:
    """Whether a reward that is long enough to tell ends no higher than it began."""
    if reward is None or len(reward) < trend.SHORTEST:
        return False
    return trend.late(reward.values).center <= trend.early(reward.values).center


@rule(
    "RLD503", "aborted-responses",
    severity="warning",
    optional=("length.aborted_frac", "stale.max"),
    limits={"standing": 0.2, "sequences": 32},
    cause="The engine aborts responses (time-outs, memory, a full queue), and they are trained on as if they were complete.",
    advice=(
        "Read the engine's log for time-outs and preemptions; lower its concurrency or raise its memory share.",
        "Leave aborted responses out of the batch, or mask them, so that an unfinished answer is not counted as wrong.",
    ),
    avoids=("Partial rollouts that are continued later: weight versions differ within a response.", ("Padding "
    "rows."), "A few per cent."),
    source="Public issue threads on time-outs in agentic rollouts",
)  # fmt: skip
def aborted_responses(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Many responses were aborted by the engine before they were complete.

    An aborted response says nothing about the policy. Counted as wrong it teaches the policy to avoid whatever takes long.

    It fires if at least `standing` of the responses of the late window were aborted, over at least `sequences` responses.
    Where responses span several weight versions, partial rollouts are at work by design and it is info.
    """
    series = view.get("length.aborted_frac")
    if series is None:
        yield lacking(view, "length.aborted_frac")
        return
    if skip := _few(series, limits["sequences"]):
        yield skip
        return
    late = trend.late(series.values)
    share = float(np.mean(series.values[late.first :]))
    if share < limits["standing"]:
        return
    lag = view.get("stale.max")
    partial = lag is not None and float(lag.values.max()) > 0
    yield Hit(
        f"{share:.0%} of the responses were aborted" + (", in a run with several weight versions" if partial else ""),
        "info" if partial else "warning",
        (evidence(series, late.first, -1, value=share, limit=limits["standing"]),),
        ruled_out=() if lag is None or partial else ("partial rollouts: every response has the current weights",),
        unchecked=("partial rollouts by design: weight_version",) if lag is None else (),
    )


def _few(series: Series, least: float) -> Skip | None:
    total = int(series.counts.sum())
    return Skip("length", f"inconclusive: {total} responses, and {least:.0f} are needed") if total < least else None
