"""Rewards that never differ, or hardly move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules import trend
from rl_doctor.rules.reading import REWARD, TRUNCATION, evidence, first_of, items, lacking, span
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_LEAST: Final = 4
_FEW: Final = 2
_CHANCE: Final = 1e-4
"""Constant steps that end a run: the least number, and how unlikely they must be by what was before."""
_CUT: Final = "length-limit-too-short"
_CONTRADICTING: Final = ("optim.grad_norm", "adv.max", "adv.std", "group.zero_std_frac", "group.std_mean", "reward.spread")


@rule(
    "RLD403", "reward-flatline",
    severity="error",
    optional=(*REWARD, "reward.std", "reward.max", "reward.min", *_CONTRADICTING, *TRUNCATION),
    limits={
        "share": 0.9, "steps": 5, "sequences": 64, "tail": 0.1, "cut": 0.5, "gradient": 0.01, "still": 0.01, "long": 100,
        "solved": 0.9, "certain": 128,
    },
    cause="The reward function returns a constant: an exception that is swallowed, a parser that never matches, or "
    "prompts that are all too hard or all too easy.",
    advice=(
        "Score a few stored responses by hand; check that the reward function does not turn exceptions into 0.",
        "Check that responses end before the length limit and contain what the parser looks for.",
        "If the rewards are right, take prompts that are neither all failed nor all solved, or give partial credit.",
    ),
    avoids=("A run that solved its prompts.", "Runs of a few responses.", ("Truncated responses: the length limit is "
    "named instead.")),
    source="Public runs with all rewards 0 for 49 steps and a gradient of exactly 0",
)  # fmt: skip
def reward_flatline(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Every response gets the same reward: there is nothing to learn from.

    A constant reward gives advantages of 0 in every group-relative method, whatever the responses say.

    It fires if the reward is one constant on at least `share` of the steps (over `steps` steps or more and `sequences`
    responses; or a warning at 2 steps with `certain` responses), or on all steps of a final stretch of `tail` of the run or
    of 4 steps, if so few were constant before that this is not chance. If at least `cut` of the responses hit the length
    limit, the limit is named as the cause first. A constant at the top of a run that learned before is info.

    A mean that is not constant but stays within `still` of its level (by the spread of the steps) over `long` steps or more,
    without a trend, is a warning, unless it is a share of at least `solved` or within a tenth of the largest reward.

    A mean that is 0 at every step, in a log without any other number of the reward, while the gradient is above `gradient` at
    half of the steps, was perhaps never filled in: that is not judged.
    """
    series = first_of(view, *REWARD)
    if series is None:
        yield lacking(view, *REWARD)
        return
    if _never_filled(view, series, limits["gradient"]):
        yield Skip("data", f"{series.metric} is 0 at every step although there is a gradient: it may never have been measured")
        return
    flat = _constant(view, series)
    n = len(series)
    level = float(np.median(series.values[flat])) if flat.any() else math.nan
    same = flat & (np.abs(series.values - level) <= 1e-9 * max(abs(level), 1.0)) if flat.any() else flat
    share = float(np.mean(same))
    seen = int(series.counts.sum())
    short = n < limits["steps"] and not (n >= _FEW and share == 1.0 and seen >= limits["certain"])
    if share >= limits["share"] and (short or (seen < limits["sequences"] and n < 8)):
        yield Skip("length", f"inconclusive: the reward is {level:g} so far, over {items(series, 'response')}")
        return
    tail = trend.run_lengths(same)
    length = n - tail[-1][0] if tail and tail[-1][1] == n - 1 else 0
    if share >= limits["share"]:
        first = 0
    elif _unlikely(same[: n - length], length, limits):
        first = n - length
    else:
        yield from _stands_still(view, limits)
        return
    cause, ruled_out, unchecked = _why_flat(view, limits)
    top = float(np.max(series.values))
    solved = first > 0 and level >= top - 1e-9 * max(abs(top), 1.0) and float(np.median(series.values[: max(first, 1)])) < level
    yield Hit(
        f"The reward is {level:g} for every response, {span(series, first)} ({share:.0%} of the steps)",
        "info" if solved else "error" if n >= limits["steps"] else "warning",
        (
            evidence(series, first, -1, value=level),
            evidence(series, first, -1, value=share, limit=limits["share" if first == 0 else "tail"], share_of_steps="constant"),
        ),
        cause="Every prompt is solved: nothing is left to learn." if solved else cause,
        ruled_out=ruled_out,
        unchecked=unchecked,
        suspect="task-solved" if solved else _CUT if cause else "",
    )


def _unlikely(before: NDArray[np.bool_], length: int, limits: Limits) -> bool:
    """Whether so many constant steps in a row are not to be expected of steps of which so few were constant before."""
    n = before.size + length
    long = length >= max(limits["tail"] * n, limits["steps"]) and n >= trend.SHORTEST
    if not long and (length < _LEAST or before.size < trend.SHORTEST // 2):
        return False
    usual = (float(np.count_nonzero(before)) + 1.0) / (before.size + 2.0)
    return bool(usual**length < _CHANCE)


def _stands_still(view: View, limits: Limits) -> Iterator[Hit]:
    """A reward (with or without the KL) that moves by next to nothing over a long run."""
    top = view.get("reward.max")
    for name in REWARD:
        series = view.get(name)
        if series is None or len(series) < limits["long"]:
            continue
        level, spread = float(np.median(series.values)), trend.spread(series.values)
        moved = abs(trend.late(series.values).center - trend.early(series.values).center)
        still = limits["still"] * abs(level)
        if level == 0.0 or spread > still or moved > 3.0 * still or trend.course(series.values) != "flat":
            continue
        share = float(series.values.min()) >= 0.0 and float(series.values.max()) <= 1.0 and level >= limits["solved"]
        if share or (top is not None and level >= limits["solved"] * float(np.max(top.values)) > 0.0):
            continue
        cause, ruled_out, unchecked = _why_flat(view, limits)
        yield Hit(
            f"The reward stands at {level:.4g}, {span(series, 0)}: half of the steps lie within {spread / abs(level):.1%} of it",
            "warning",
            (evidence(series, 0, -1, value=level),),
            cause=cause or "Nothing is learned: hardly any response earns anything else, or the update does nothing.",
            ruled_out=ruled_out,
            unchecked=unchecked
            if top is not None
            else (*unchecked, "whether that is the most that can be earned: the largest reward"),
            suspect=_CUT if cause else "reward-stands-still",
        )
        return


def _never_filled(view: View, series: Series, gradient: float) -> bool:
    """Whether the mean is 0 throughout, nothing else tells of rewards, and there is a gradient all the same."""
    norm = view.get("optim.grad_norm")
    if series.values.any() or norm is None or float(np.median(norm.values)) <= gradient:
        return False
    others = [
        found for name in (*_CONTRADICTING, "reward.std", "reward.max", "reward.min") if (found := view.get(name)) is not None
    ]
    return all(found.metric == norm.metric for found in others) or any(
        bool(np.mean(found.values != 0.0) >= 0.5) for found in others if found.metric.startswith("adv.")
    )


def _constant(view: View, series: Series) -> NDArray[np.bool_]:
    """Per point of the mean: whether all rewards of that step were equal, as far as was recorded."""
    spread, low, high = view.get("reward.std"), view.get("reward.min"), view.get("reward.max")
    if low is not None and high is not None and len(low) == len(series) == len(high):
        return np.asarray(low.values == high.values, np.bool_)
    if spread is not None and len(spread) == len(series):
        return np.asarray(spread.values == 0.0, np.bool_)
    values, counts = np.unique(series.values, return_counts=True)
    same: NDArray[np.bool_] = series.values == values[np.argmax(counts)]
    return same if counts.max() > 1 else np.zeros(len(series), np.bool_)


def _why_flat(view: View, limits: Limits) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    cut = first_of(view, *TRUNCATION)
    if cut is None:
        return None, (), ("responses cut at the length limit: finish_reason",)
    share = float(np.median(cut.values))
    if share >= limits["cut"]:
        return f"{share:.0%} of the responses are cut at the length limit before they can earn a reward.", (), ()
    return None, (f"responses cut at the length limit: {share:.0%} are",), ()
