"""The value function of actor-critic methods."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import trend
from rl_doctor.rules.reading import PROGRESS, evidence, progress, span, times, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_EXPLAINED: Final = "value.explained_var"
_CRITIC: Final = (_EXPLAINED, "value.loss", "value.clip_frac")


@rule(
    "RLD420", "value-not-learning",
    severity="error",
    optional=(*_CRITIC, *PROGRESS, "reward.std", "return.max", "return.min"),
    limits={
        "steps": 40, "rows": 8, "explained": 0.05, "useless": -0.2, "long": 60, "z": 6.0, "grown": 4.0, "diverged": 30.0,
        "clipped": 0.4, "spread": 1.5,
    },
    cause="The value function does not fit the returns: its learning rate, clip range or inputs are wrong, or its loss has no "
    "weight.",
    advice=(
        "Raise the critic's learning rate or its number of updates, and train it alone for some steps first.",
        "Widen the clip range of the values to the scale of the returns, or normalise the returns.",
        "Check that values are read at the tokens whose returns they predict (last token, padding side).",
        "If it cannot be made to learn, a baseline from groups of samples costs less and does no harm.",
    ),
    avoids=(
        "A critic that starts badly and learns: the first part of the run does not count.",
        "A solved task: where returns hardly differ there is nothing to explain.",
        "A loss that grows with the scale of the returns.",
        "Short runs, and methods without a critic.",
    ),
    source="PPO, arXiv:1707.06347; explained variance as logged by most implementations of it",
)  # fmt: skip
def value_not_learning(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The value function explains nothing of the returns, diverges, or cannot move.

    A critic that predicts no better than a constant leaves the advantages as noisy as raw returns; one that predicts worse adds
    noise of its own.

    The later half of the run counts. An explained variance of at most `explained` at three of four of its steps is a warning,
    and from `long` steps on an error if the median is below `useless`; at least `steps` steps are needed. Where it was not
    logged, a value loss that grows `grown` times by `z` standard errors is a warning, and an error from `diverged` times on,
    unless rewards or their spread grew along; of fewer than `steps` steps only that much counts. A share of clipped values of at
    least `clipped` over the later half, of `rows` rows or more, is a warning. Near the reward's ceiling, where
    little is left to explain, it is info.
    """
    explained, loss, clipped = (view.get(name) for name in _CRITIC)
    if explained is None and loss is None and clipped is None:
        yield Skip("data", "no value function was logged", (_EXPLAINED,))
        return
    skips: list[Skip] = []
    hits: list[Hit] = []
    for made in (_explains(view, explained, limits), _grows(view, loss, explained, limits), _bound(clipped, limits)):
        if isinstance(made, Hit):
            hits.append(made)
        elif made is not None:
            skips.append(made)
    yield from hits or skips


def _varies(view: View) -> bool:
    """Whether the rewards of the later half differ at all, as far as was recorded."""
    std = view.get("reward.std")
    low, high = view.get("reward.min"), view.get("reward.max")
    if std is not None:
        return float(np.median(std.values[len(std) // 2 :])) > 0.0
    if low is not None and high is not None and len(low) == len(high):
        return float(np.median((high.values - low.values)[len(high) // 2 :])) > 0.0
    return True


def _explains(view: View, series: Series | None, limits: Limits) -> Hit | Skip | None:
    if series is None:
        return None
    if skip := too_short(series, int(limits["steps"])):
        return skip
    if not _varies(view):
        return Skip("data", "rewards do not differ in the later half: there is no variance to explain")
    half = len(series) // 2
    part = series.values[half:]
    level = float(np.median(part))
    if float(np.quantile(part, 0.75)) > limits["explained"]:
        return None
    reward = progress(view)
    best = float(np.max(trend.running_median(series.values, 5)))
    severity: Severity = "error" if level <= limits["useless"] and len(series) >= limits["long"] else "warning"
    if reward.at_ceiling and reward.course != "falling":
        severity = "info"
    lost = f", after {best:.2g} at its best" if best >= 0.3 else ""
    return Hit(
        f"Explained variance of the value function is {level:.2g}, {span(series, half)}{lost}; {reward.words()}",
        severity,
        (evidence(series, half, -1, value=level, limit=limits["explained"]),),
        cause="It predicts worse than a constant would, and adds noise to every advantage."
        if level < limits["useless"]
        else None,
        ruled_out=("a critic that still learns: the first half of the run is left out", "returns that do not differ: rewards do")
        if view.get("reward.std") is not None
        else ("a critic that still learns: the first half of the run is left out",),
        unchecked=() if view.get("value.clip_frac") is not None else ("whether clipping holds it: value.clip_frac",),
        suspect="value-worse-than-constant" if level < limits["useless"] else "",
    )


def _scale_grew(view: View, limits: Limits) -> bool:
    """Whether rewards became larger or more spread, so that a loss in their square must grow."""
    for name in ("reward.std", "return.max", "reward.max"):
        series = view.get(name)
        if series is not None and len(series) >= trend.SHORTEST:
            first, last = trend.early(np.abs(series.values)).center, trend.late(np.abs(series.values)).center
            if last > limits["spread"] * first:
                return True
    return progress(view).course == "rising"


def _grows(view: View, loss: Series | None, explained: Series | None, limits: Limits) -> Hit | Skip | None:
    if loss is None or (explained is not None and len(explained) >= limits["steps"]):
        return None
    if skip := too_short(loss):
        return skip
    if not (loss.values > 0.0).all():
        return Skip("data", "the value loss is not positive at every step")
    values = np.log(loss.values)
    moved = trend.change(values)
    factor = math.exp(min(moved.difference, 50.0))
    doubtful = len(loss) < limits["steps"] or _scale_grew(view, limits)
    if factor < limits["diverged" if doubtful else "grown"] or moved.z < limits["z"]:
        return None
    begin = trend.onset(values, moved.early, rising=True, share=0.3)
    start, end = math.exp(moved.early.center), math.exp(moved.late.center)
    reward = progress(view)
    return Hit(
        f"Value loss grew {times(factor)}, from {start:.3g} to {end:.3g}, since step {loss.steps[begin]}; {reward.words()}",
        "error" if factor >= limits["diverged"] and not _scale_grew(view, limits) else "warning",
        (evidence(loss, begin, -1, value=end, baseline=start, limit=limits["grown"] * start),),
        cause="The value function diverges.",
        ruled_out=("returns on a larger scale: the rewards' spread did not grow",) if view.get("reward.std") is not None else (),
        unchecked=("how much of the returns it explains: value.explained_var",),
        suspect="value-diverges",
    )


def _bound(clipped: Series | None, limits: Limits) -> Hit | Skip | None:
    if clipped is None:
        return None
    if skip := too_short(clipped, int(limits["rows"])):
        return skip
    first = max(len(clipped) - max(len(clipped) // 2, int(limits["rows"])), 0)
    level = float(np.median(clipped.values[first:]))
    if not limits["clipped"] <= level <= 1.0:
        return None
    return Hit(
        f"{level:.0%} of the values are clipped, {span(clipped, first)}: the value function cannot follow the returns",
        "warning",
        (evidence(clipped, first, -1, value=level, limit=limits["clipped"]),),
        cause="The clip range of the values is narrow against the scale of the returns.",
        suspect="value-clip-too-narrow",
    )
