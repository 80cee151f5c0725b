"""What the updates are driven by: shaping where nobody succeeds, and lengths that grow on one side only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import trend
from rl_doctor.rules.components import COMPONENT, components
from rl_doctor.rules.heldout import SHAPE, TASK
from rl_doctor.rules.reading import PROGRESS, evidence, lacking, progress, span, times, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.stretch import joined
from rl_doctor.rules.view import View

_MASS, _GROUPS = "signal.failed_mass.", "signal.failed_groups."
_RIGHT, _WRONG = "length.more_earned_mean", "length.less_earned_mean"
_BIASED: Final = (None, "seq-mean-token-mean")
"""Aggregations of the loss that divide it by the length of each response, or may do so."""
_SIDES: Final = ("adv.negative_mass_frac", "length.mean")


@rule(
    "RLD418", "signal-from-failures",
    severity="warning", since="0.2.0",
    optional=("signal.", COMPONENT, *PROGRESS),
    limits={"share": 0.5, "steps": 5, "groups": 40, "window": 0.2},
    cause="Most updates compare failures with failures: what decides between them is a shaped part of the reward, not the task.",
    advice=(
        "Leave out groups without a success, or give them no shaped reward, so that the task decides.",
        "Take easier prompts first, or more samples per prompt, until most groups hold both outcomes.",
        "Hold the policy near the reference meanwhile, and score held-out prompts: the training reward shows nothing of it.",
    ),
    avoids=(
        "A task that is being learned: its successes become more.",
        "Groups without variance: they weigh nothing.",
        "A component that only punishes.",
    ),
    source="A public post-mortem: all groups without a success had variance, and held-out success fell from 6 of 6 to 1 of 6",
)  # fmt: skip
def signal_from_failures(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Most of the advantage belongs to groups in which no response did the task.

    In such a group a shaped part of the reward (a format, a length, a partial score) alone says which response is better, and
    the standard deviation blows a small difference up to the size of a success. The policy moves, the reward may even rise, and
    the task is not what is learned.

    The component whose name says that it is the task is taken. Of the absolute advantage of all responses, the share of groups
    in which none earned it is averaged over the last `window` of the run, `steps` steps with `groups` groups or more. From
    `share` on it is a warning, unless the component's mean rises; with too few steps to see a course it is info.
    """
    masses = {name.removeprefix(_MASS): series for name, series in view.named(_MASS).items()}
    tasks = [name for name in masses if TASK.search(name) and not SHAPE.search(name)]
    if len(masses) < 2 or not tasks:
        yield Skip("data", "no component of the reward has a name that says that it is the task", ("reward/<component>",))
        return
    for name in tasks:
        found = joined(masses[name], view.get(f"{_GROUPS}{name}"))
        if found is None:
            continue
        mass, failed = found
        if len(mass) < limits["steps"] or int(failed.counts.sum()) < limits["groups"]:
            yield Skip("length", f"inconclusive: {int(failed.counts.sum())} groups, and {limits['groups']:.0f} are needed")
            continue
        last = trend.late(mass.values, limits["window"])
        share = float(np.average(mass.values[last.first :], weights=mass.counts[last.first :]))
        if share >= limits["share"]:
            yield from _driven(view, name, mass, failed, share, limits)


def _driven(view: View, name: str, mass: Series, failed: Series, share: float, limits: Limits) -> Iterator[Hit]:
    success = components(view).get(name, {}).get("mean")
    course = "unknown" if success is None else trend.course(success.values)
    if course == "rising":
        return
    severity: Severity = "info" if course == "unknown" else "warning"
    below = np.flatnonzero(trend.running_median(mass.values, 5) < limits["share"])
    first = min(int(below[-1]) + 1, len(mass) - 1) if below.size else 0
    groups = float(np.average(failed.values[first:], weights=failed.counts[first:]))
    yield Hit(
        f"{share:.0%} of the advantage belongs to groups in which no response earned {name} ({groups:.0%} of the groups), "
        f"{span(mass, first)}",
        severity,
        (evidence(mass, first, -1, value=share, limit=limits["share"], where={"component": name}),),
        ruled_out=(f"a task that is being learned: the mean of {name} has no rise",) if course != "unknown" else (),
        unchecked=(f"whether {name} becomes more frequent: too few steps",) if course == "unknown" else (),
        suspect="shaping-drives-the-update",
    )


def _climb(values: trend.Floats) -> float:
    """The rise of a straight line through all points, in standard errors that allow for autocorrelation."""
    time = np.arange(values.size)
    slope, start = np.polyfit(time, values, 1)
    rest = values - start - slope * time
    sigma, rho = max(trend.noise(values)[0], float(np.std(rest))), trend.noise(values)[1]
    error = sigma * float(np.sqrt(12.0 / values.size * trend.inflation(max(rho, 0.0))))
    return float(slope) * (values.size - 1) / error if error > 0.0 else 0.0


@rule(
    "RLD424", "wrong-answers-grow",
    severity="warning", since="0.2.0",
    optional=(_RIGHT, _WRONG, *_SIDES, *PROGRESS),
    limits={"grown": 1.3, "apart": 0.5, "z": 3.5, "lead": 1.1},
    cause="Long wrong answers are discouraged less per token than short ones, or long right ones encouraged more.",
    advice=(
        "Divide the loss by a constant instead of by the length of each response (seq-mean-token-sum-norm), and compare.",
        "Read long wrong answers: loops and padding need a penalty or a shorter limit.",
        "Watch the length of right and wrong answers apart; their sum hides it.",
    ),
    avoids=("Growth of right and wrong answers together.", "Growth that pays.", "Wrong answers that are shorter."),
    source="Dr. GRPO, arXiv:2503.20783, section 3.1; public issue threads disagree on how much it matters",
)  # fmt: skip
def wrong_answers_grow(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Responses that earn less than the others of their group become longer, and those that earn more do not.

    Where each response's loss is divided by its own length, a long wrong answer costs less per token than a short one, so that
    being wrong at length is the cheaper way of being wrong. This is consistent with such a bias; it does not prove it.

    The mean lengths of responses above and below the mean reward of their group are followed over the run. It fires if the
    latter ends `grown` times its start, by `z` standard errors (of the ends, or of a line through all steps), and at least
    `lead` times as long as the former, whose own growth is less than `apart` of that (both in logarithms), while the reward
    does not rise.
    """
    found = joined(view.get(_RIGHT), view.get(_WRONG))
    if found is None:
        yield lacking(view, _RIGHT)
        return
    right, wrong = found
    if skip := too_short(wrong):
        yield skip
        return
    if float(min(right.values.min(), wrong.values.min())) <= 0.0:
        yield Skip("data", "lengths of 0 carry no trend")
        return
    mine, theirs = trend.change(np.log(wrong.values)), trend.change(np.log(right.values))
    longer = mine.late.center >= theirs.late.center + np.log(limits["lead"])
    if max(mine.z, _climb(np.log(wrong.values))) < limits["z"] or mine.difference < np.log(limits["grown"]) or not longer:
        return
    reward = progress(view)
    if theirs.difference > limits["apart"] * mine.difference or reward.course == "rising":
        return
    begin = trend.onset(np.log(wrong.values), mine.early, rising=True, share=0.3)
    start, end = float(np.exp(mine.early.center)), float(np.exp(mine.late.center))
    shown = [evidence(wrong, begin, -1, value=end, baseline=start, limit=limits["grown"] * start)]
    shown.append(evidence(right, begin, -1, value=float(np.exp(theirs.late.center)), baseline=float(np.exp(theirs.early.center))))
    mass = view.get(_SIDES[0])
    if mass is not None:
        shown.append(evidence(mass, trend.late(mass.values).first, -1))
    yield Hit(
        f"Responses that earn less than their group grow {times(end / start)} ({start:.0f} to {end:.0f} tokens), those that earn "
        f"more go from {np.exp(theirs.early.center):.0f} to {np.exp(theirs.late.center):.0f}, since step "
        f"{wrong.steps[begin]}; {reward.words()}",
        "info" if view.config.loss_agg not in _BIASED else "warning",
        tuple(shown),
        cause=None
        if view.config.loss_agg in _BIASED
        else "Wrong answers grow; the loss is not divided by the length of each "
        f"response ({view.config.loss_agg}), so that its bias is not the reason.",
        ruled_out=(
            "growth that pays: the reward does not rise",
            "growth of all responses: those above the mean stay as they are",
        ),
        suspect="length-bias" if view.config.loss_agg in _BIASED else "",
    )
