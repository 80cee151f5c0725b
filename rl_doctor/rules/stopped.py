"""A component of the reward that varied and is one value for every response from some step on."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.report.model import Hit
from rl_doctor.rules.drowned import Stats
from rl_doctor.rules.registry import Limits
from rl_doctor.rules.spans import Breach
from rl_doctor.rules.stretch import joined
from rl_doctor.rules.view import View

_BEFORE: Final = 8
"""Steps before, at least, and for the level that it had."""
_NEAR: Final = 0.7
"""How much of the way from its smallest to its largest value a component may be for what comes next to be learned."""


def stopped_at(view: View, name: str, stats: Stats, limits: Limits) -> Hit | None:
    """The finding that a component stopped being computed; None if it goes on, or has reached its end by learning.

    Args:
        view: the run, for its reward.
        name: of the component.
        stats: its series: statistic -> series.
        limits: of the rule.
    """
    pair = joined(stats.get("mean"), stats.get("std"))
    if pair is None:
        return None
    mean, spread = pair
    last = float(mean.values[-1])
    flat = (spread.values == 0.0) & (mean.values == last)
    start = len(mean) - int(np.argmin(flat[::-1])) if not flat.all() else 0
    before, since = slice(max(start - _BEFORE, 0), start), len(mean) - start
    if start < _BEFORE or since < limits["since"]:
        return None
    earlier = spread.values[:start]
    usual = (float(np.count_nonzero(earlier == 0.0)) + 1.0) / (start + 2.0)
    if math.log(usual) * since > math.log(limits["chance"]) or _learned(stats, float(np.mean(mean.values[before])), last):
        return None
    level = float(np.mean(mean.values[before]))
    found = Breach(mean, np.arange(len(mean)) >= start, level)
    step = int(mean.steps[start])
    fall = _fall(view, step)
    told = "" if fall is None else f"; the mean reward goes from {fall[0]:.3g} to {fall[1]:.3g}"
    falls = fall is not None and fall[0] - fall[1] >= limits["fall"] * fall[2] > 0.0
    return Hit(
        f"Reward component {name} is {last:g} for every response since step {step}, {found.n} of them; it varied before, with a "
        f"mean of {level:.3g}{told}",
        "error" if falls else "warning",
        (found.evidence(value=last, where={"component": name}),),
        cause=f"{name} is no longer computed from step {step} on ({level:.3g} before, {last:g} for every response since): its "
        "verifier fails, and the failure counts as a verdict.",
        ruled_out=("prompts that are too hard: the component varied until the step before",),
        suspect="verifier-of-component-fails",
    )


def _learned(stats: Stats, level: float, last: float) -> bool:
    """Whether the component stands at an end of its range that it was near already."""
    low, high = stats.get("min"), stats.get("max")
    if low is None or high is None:
        return False
    floor, top = float(low.values.min()), float(high.values.max())
    return top > floor and abs(level - last) < (1.0 - _NEAR) * (top - floor) and last in (floor, top)


def _fall(view: View, step: int) -> tuple[float, float, float] | None:
    """Mean reward before and since a step, and its spread within a step before."""
    reward, spread = view.get("reward.mean"), view.get("reward.std")
    if reward is None or spread is None:
        return None
    before, since = reward.values[reward.steps < step][-_BEFORE:], reward.values[reward.steps >= step]
    inside = spread.values[spread.steps < step]
    if not before.size or not since.size or not inside.size:
        return None
    return float(np.mean(before)), float(np.mean(since)), float(np.median(inside))
