"""A reward that collapses, and which of the other series broke before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules import breaks, trend
from rl_doctor.rules.breaks import Event
from rl_doctor.rules.reading import (
    KL_OLD,
    KL_REFERENCE,
    REWARD,
    VALIDATION,
    counted,
    evidence,
    first_of,
    lacking,
    logged,
    too_short,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_KINDS: Final = {
    "collapse-from-mismatch": ("mismatch.k3", "mismatch.abs", "mismatch.prob_abs"),
    "collapse-from-large-updates": ("optim.grad_norm",),
    "collapse-from-drift": (),
    "collapse-from-entropy": ("policy.entropy", "policy.old_entropy"),
    "collapse-from-length": ("length.mean",),
}
"""Cause -> the metrics, of which the first measured one tells whether it began there."""
_UPWARDS: Final = ("collapse-from-mismatch", "collapse-from-large-updates", "collapse-from-drift")
"""Causes that only a rise tells: a distance or a gradient that falls breaks no policy."""
_DRIFT: Final = (KL_OLD, KL_REFERENCE, ("policy.clip_frac", "policy.outside_frac"))
_BEFORE: Final = 8
_AFTER: Final = 4
_LOOK: Final = 20
"""Points before the fall that it is compared with; and the fewest before and after it."""
_FEW: Final = 16
"""Responses per step below which the reward of a step is that of the prompts it happened to ask."""
_ORDERS: Final = 10_000
"""Of how many orders of the same points, for each split looked at, this one must be one, where steps have few responses."""
_AT_ONCE: Final = 1
"""Steps within which a reward falls that is scored differently from then on."""
_BESIDE: Final = 3
"""Steps before such a fall within which a KL must break that is to explain it."""
_UNKNOWN: Final = "collapse-without-precursor"
_LACKS: Final = {
    "collapse-from-mismatch": "whether engine and trainer parted before: rollout_logprob",
    "collapse-from-large-updates": "whether the gradient grew before: grad_norm",
    "collapse-from-drift": "whether the policy moved away before: old_logprob or ref_logprob",
    "collapse-from-entropy": "whether the entropy changed before: entropy",
    "collapse-from-length": "whether responses grew or shrank before: response_length",
}
_WORDS: Final = {
    "collapse-from-mismatch": "Engine and trainer parted first: the updates were made for a policy that did not sample.",
    "collapse-from-large-updates": "The gradient grew first: single updates became too large.",
    "collapse-from-drift": "The policy moved away first: updates were too large, or too little holds it.",
    "collapse-from-entropy": "The entropy changed first: the policy came apart or closed up before the reward shows it.",
    "collapse-from-length": "The length of responses changed first.",
    _UNKNOWN: "Unknown: nothing that was recorded breaks before the reward does.",
}


@rule(
    "RLD303", "sudden-collapse",
    severity="error", since="0.2.0",
    optional=(
        *REWARD, *VALIDATION, "reward.min", *(name for names in _KINDS.values() for name in names),
        *(name for names in _DRIFT for name in names),
    ),
    limits={"lost": 0.5, "z": 5.0, "material": 0.3, "within": 0.25, "far": 0.02},
    cause="The policy broke: what was recorded broke in the order that the finding tells.",
    advice=(
        "Go back to a checkpoint from before the first break that is named, not from before the reward's.",
        "Read responses from the steps between the first break and the reward's.",
        "If nothing broke before, record what the finding says could not be looked at, and run again from that checkpoint.",
    ),
    avoids=(
        "A reward that falls while nothing else of the policy changes: that is the reward's doing (rule reward-drift).",
        "A decline over most of the run.",
        "A precursor by chance: each has to leave its own line for good, by more than its noise explains.",
    ),
    source="Public issue threads on rewards that collapse between steps 60 and 160 with garbled text, for unrelated reasons",
)  # fmt: skip
def sudden_collapse(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The reward collapses and stays down, and the policy breaks with it; the finding tells in which order.

    A collapse has many causes that look the same once it is over. What tells them apart is what broke first: the mismatch
    of engine and trainer, the gradient, the distance to the old policy or to the reference, the entropy, the length.

    It looks for a reward (or validation score) that loses `lost` of the way from its level to its floor (the median of the
    smallest rewards; 0 where those are not known), and `material` of the level, by `z` standard errors, within `within` of the
    run, and does not come back: four fifths of all later points lie below nine tenths of the 20 before. Where steps have
    fewer than 16 responses, so that rewards jump with their prompts, it must also be one of 10,000 orders of these points.

    For every other series the break is found at which it leaves the line it was on: the split into two lines that explains
    most, and the earliest such split in the same direction. It counts if what lies after it is away from that line by more
    than the series' own autocorrelated noise explains, and by at least half of the level (a KL, which grows as a policy
    learns, by twice, and to `far` nat per token; a clip fraction to that share); of a mismatch, a gradient and a KL only a
    rise counts. A series broke first if the range in which its break may lie ends before that of the reward begins. If none
    did, the finding says that the cause is unknown. Where nothing but the reward breaks, nothing is said here; nor where it
    falls from one step to the next, and all that broke is a KL long before, as it does where a policy learns, or the length
    with it, as where other prompts begin.
    """
    series = _longest(view)
    if series is None:
        yield lacking(view, *REWARD)
        return
    if skip := too_short(series, 16):
        yield skip
        return
    fall = _fall(view, series, limits)
    if fall is None:
        return
    begin, reached, before, after = fall
    reward = _reward_event(series, begin, reached)
    told = {name: found for name in _KINDS if (found := _events(view, name, series, (begin, reached), limits))}
    if not told or (reached - begin <= _AT_ONCE and _other_data(series, begin, told)):
        return
    leaders = {
        name: one for name, found in told.items() if (one := next((e for e in found if e.leads(reward)), None)) is not None
    }
    first = min(leaders, key=lambda name: leaders[name].step, default=_UNKNOWN)
    order = sorted((found[0] for found in told.values()), key=lambda event: event.step)
    words = "; ".join(event.words(reward) for event in order[:4])
    pace = counted(int(series.steps[reached] - series.steps[begin]) + 1, "step")
    yield Hit(
        f"Reward collapsed from {before:.3g} to {after:.3g} within {pace}, "
        f"from step {reward.step} on. {'Before it: ' if leaders else 'Nothing breaks before it. With it: '}{words}",
        "error",
        (
            evidence(
                series, begin, -1, value=after, baseline=before, limit=before - limits["lost"] * (before - _floor(view, series))
            ),
            *(_evidence(event) for event in order[:4]),
        ),
        cause=_WORDS[first],
        unchecked=tuple(words for name, words in _LACKS.items() if not _measured(view, name)),
        suspect=first,
    )


def _other_data(series: Series, begin: int, told: Mapping[str, tuple[Event, ...]]) -> bool:
    """Whether all that breaks is a KL more than some steps before point ``begin``, or the length at that point or after it."""
    near, first = int(series.steps[max(begin - _BESIDE, 0)]), int(series.steps[begin])
    if not set(told) <= {"collapse-from-drift", "collapse-from-length"}:
        return False
    drift, length = told.get("collapse-from-drift", ()), told.get("collapse-from-length", ())
    return all(event.latest < near for event in drift) and all(event.step >= first for event in length)


def _longest(view: View) -> Series | None:
    """The reward, or the validation score where that has as many points."""
    reward, score = first_of(view, *REWARD), first_of(view, *VALIDATION)
    if reward is None or score is None:
        return reward or score
    return score if len(score) >= len(reward) else reward


def _floor(view: View, series: Series) -> float:
    low = view.get("reward.min")
    least = float(np.min(series.values))
    if low is None or series.metric in VALIDATION:
        return min(least, 0.0)
    return min(least, float(np.median(low.values)))


def _fall(view: View, series: Series, limits: Limits) -> tuple[int, int, float, float] | None:
    """First point of the fall, the point at which most of it is done, and the levels before and after."""
    values, floor, n = series.values, _floor(view, series), len(series)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    splits = np.arange(_BEFORE, n - _AFTER + 1)
    starts = np.maximum(splits - _LOOK, 0)
    width = splits - starts
    fell = (sums[splits] - sums[starts]) / width - (sums[n] - sums[splits]) / (n - splits)
    split = int(splits[np.argmax(fell * np.sqrt(width * (n - splits) / (width + n - splits)))])
    early, late = values[max(split - _LOOK, 0) : split], values[split:]
    before, after = float(np.median(early)), float(np.median(late))
    size = before - after
    error = trend.spread(early) * math.sqrt(1.0 / early.size + 1.0 / late.size)
    scale = max(limits["lost"] * (before - floor), limits["material"] * abs(before), 1e-12)
    if size < max(scale, limits["z"] * error, 2.5 * trend.spread(early)):
        return None
    if float(np.quantile(late, 0.8)) > float(np.quantile(early, 0.1)):
        return None
    if _few_responses(series) and math.comb(early.size + late.size, late.size) < _ORDERS * splits.size:
        return None
    calm = trend.running_median(values, 3)
    begin = split
    while begin > _BEFORE and calm[begin - 1] < before - 0.3 * size:
        begin -= 1
    reached = begin + int(np.argmax(values[begin:] <= before - 0.8 * size))
    return (begin, reached, before, after) if reached - begin <= max(limits["within"] * n, 5) else None


def _few_responses(reward: Series) -> bool:
    return not logged(reward) and float(np.median(reward.counts)) < _FEW


def _reward_event(series: Series, begin: int, reached: int) -> Event:
    """The reward's break, no later than most of its fall is done."""
    upto = slice(0, min(reached + 3, len(series)))
    found = breaks.first_break(series.values[upto], 6.0)
    near = max(0.15 * len(series), 5)
    if found is not None and not found.rising and begin - near <= found.index <= reached:
        return Event(series, found)
    size = float(series.values[reached] - series.values[max(begin - 1, 0)])
    return Event(series, breaks.Break(begin, max(begin - 1, 0), begin, size, math.nan))


def _events(view: View, name: str, series: Series, fall: tuple[int, int], limits: Limits) -> tuple[Event, ...]:
    """Breaks of the metrics of a cause from half a run before the fall to shortly after it, by step."""
    measured, (begin, reached) = _measured(view, name), fall
    first = int(series.steps[max(begin - len(series) // 2, 0)])
    last = int(series.steps[min(reached + max(len(series) // 10, 5), len(series) - 1)])
    found = breaks.events(measured, first, last, factor=3.0 if name == "collapse-from-drift" else 1.5)
    if name == "collapse-from-drift":
        found = tuple(event for event in found if _level_after(event) >= limits["far"])
    return tuple(event for event in found if event.found.rising or name not in _UPWARDS)


def _level_after(event: Event) -> float:
    return float(np.median(np.abs(event.series.values[min(event.found.index, len(event.series) - 1) :])))


def _measured(view: View, name: str) -> tuple[Series, ...]:
    groups = _DRIFT if name == "collapse-from-drift" else (_KINDS[name],)
    return tuple(found for names in groups if (found := first_of(view, *names)) is not None)


def _evidence(event: Event) -> Evidence:
    index = min(event.found.index, len(event.series) - 1)
    return evidence(event.series, index, -1, baseline=float(np.median(event.series.values[max(index - 20, 0) : max(index, 1)])))
