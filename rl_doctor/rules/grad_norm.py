"""Optimiser: the gradient norm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import breaks, trend
from rl_doctor.rules.reading import (
    COARSE,
    PROGRESS,
    evidence,
    first_of,
    lacking,
    positive,
    progress,
    rounding,
    span,
    times,
    too_short,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import at
from rl_doctor.rules.view import View

_STRETCH = 4
"""Steps in a row without gradient, up to the last, that are told before they are most of the run."""
_CHANCE = 1e-4


@rule(
    "RLD602", "grad-norm-spike",
    severity="warning",
    optional=("optim.grad_norm", "group.zero_std_frac"),
    limits={"factor": 10.0, "sigmas": 6.0, "lasting": 0.05, "large": 50.0, "recent": 0.1, "above_start": 2.0},
    cause="An outlier batch or a learning rate at the edge of stability.",
    advice=(
        "Look at the batch of that step: extreme advantages, very small probabilities, one very long response.",
        "Set max_grad_norm if it is not set; it bounds what one batch can do.",
    ),
    avoids=("A norm above max_grad_norm: it is logged before clipping.", "A single spike that recovers: info.", "Steady growth."),
    source="Public issue threads; the norm that trainers log is that before clipping",
)  # fmt: skip
def grad_norm_spike(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The gradient norm stands a multiple above its own level for a few steps.

    The norm is judged against a running median of the run itself, never against max_grad_norm: trainers log it before
    clipping, and a clipped spike does little harm.

    A point is part of a spike if it exceeds the level `factor` times and by `sigmas` robust standard deviations of the
    logarithm, and `above_start` times the early window. Steps without any signal are left out: those with a norm of exactly 0,
    and those at which no group's rewards differ, whose small norm is that of the other terms of the loss.
    Recovered is info. It is a warning if it lasts for `lasting` of the run and has not recovered, or is `large` times and
    within the last `recent` share; so is a sudden jump by `factor` that lasts to the end.
    """
    series = view.get("optim.grad_norm")
    if series is None:
        yield lacking(view, "optim.grad_norm")
        return
    if skip := too_short(series, 12):
        yield skip
        return
    series = _with_signal(view, series)
    if len(series) < 12:
        yield Skip("data", f"the gradient norm is above 0, with a group that has a signal, at {len(series)} steps only")
        return
    usual = trend.early(series.values).center
    found = [
        item
        for item in trend.excursions(series.values, limits["factor"], limits["sigmas"])
        if item.first > 0 and item.value > limits["above_start"] * usual
    ]
    if all(item.recovered for item in found) and (hit := _lasting_jump(series, limits)) is not None:
        yield hit
        return
    if not found:
        return
    n = len(series)
    worst = max(found, key=lambda item: (not item.recovered and item.n > 1, item.factor))
    ongoing = not worst.recovered and worst.n >= max(3, round(limits["lasting"] * n))
    recent = worst.last >= n - max(round(limits["recent"] * n), 3)
    severity: Severity = "warning" if ongoing or (worst.factor >= limits["large"] and recent) else "info"
    bound = view.config.max_grad_norm
    post = bound is not None and float(np.mean(np.isclose(series.values, bound, rtol=1e-3))) > 0.5
    yield Hit(
        f"Gradient norm reached {worst.value:.3g}, {times(worst.factor)} its level of {worst.level:.3g}, at "
        f"{span(series, worst.first, worst.last)} {worst.outcome}",
        severity,
        tuple(
            evidence(series, e.first, e.last, value=e.value, baseline=e.level, limit=limits["factor"] * e.level)
            for e in sorted(found, key=lambda e: -e.factor)[:3]
        ),
        ruled_out=("a norm that is high all the time: the level is the run's own",),
        unchecked=("spikes hidden by clipping: the logged norm equals max_grad_norm at most steps",) if post else (),
        suspect="outlier-batch" if worst.recovered else "",
    )


def _with_signal(view: View, series: Series) -> Series:
    """The points with a gradient above 0 at which the rewards of some group differ, as far as that is known."""
    series = positive(series)
    idle = view.get("group.zero_std_frac")
    if idle is None:
        return series
    return series.where(~np.isin(series.steps, idle.steps[idle.values >= 1.0]))


def _lasting_jump(series: Series, limits: Limits) -> Hit | None:
    """A level that rose at once by the factor of a spike, and is still there at the end."""
    values = np.log(series.values)
    shift = trend.jump(values)
    if shift is None or shift.recovered or shift.size < np.log(limits["factor"]):
        shift = breaks.fresh(values, float(np.log(limits["factor"])))
    if shift is None or shift.size < 0.0:
        return None
    before, after = float(np.exp(shift.before)), float(np.exp(shift.after))
    return Hit(
        f"Gradient norm rose at once {times(after / before)}, from {before:.3g} to {after:.3g}, at step "
        f"{series.steps[shift.index]} and stays there",
        "warning",
        (evidence(series, shift.index, -1, value=after, baseline=before, limit=limits["factor"] * before),),
        cause="The scale of the loss changed, or one update left the policy where its gradient is large: a restart with other "
        "settings, another normaliser, other rewards.",
        ruled_out=("a spike that recovers: the last points are still there",),
        suspect="loss-scale-changed",
    )


@rule(
    "RLD603", "grad-vanished",
    severity="error",
    optional=("optim.grad_norm", "group.zero_std_frac", *PROGRESS),
    limits={"left": 0.01, "z": 6.0},
    cause="The loss no longer depends on the policy: advantages became (almost) 0, the ratio is clipped everywhere, "
    "or a graph is detached.",
    advice=(
        "Look at zero-variance-groups and ratio-saturation at the same steps: each stops the gradient.",
        "If neither fires, check for detached logprobs and for a loss scale that underflows.",
    ),
    avoids=("A run whose groups are solved.", "Gradients that shrink by less than a hundred times.", ("Exact zeros: "
    "rule grad-zero.")),
    source="Reproduced by detaching logprobs in mid-run",
)  # fmt: skip
def grad_vanished(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The gradient norm falls to a tiny share of the run's own early window and stays there.

    Gradients shrink as a policy improves, but not by orders of magnitude while there is still something to learn.

    It fires if the late level is at most `left` of the early window and the difference of logarithms is `z` standard errors.
    A warning if the reward stands at its ceiling or most groups had no variance at the steps that are so low (info if it rose
    there), else an error. Nothing is said where such steps alternate with others that have a gradient.
    """
    series = view.get("optim.grad_norm")
    if series is None:
        yield lacking(view, "optim.grad_norm")
        return
    if skip := too_short(series):
        yield skip
        return
    if len(positive(series)) < 0.5 * len(series):
        return
    values = np.log(np.maximum(series.values, float(np.max(series.values)) * 1e-9))
    moved = trend.change(values)
    left = float(np.exp(moved.difference))
    if left > limits["left"] or moved.z > -limits["z"]:
        yield from _vanished_just_now(view, series, values, limits)
        return
    begin = trend.onset(values, moved.early, rising=False, share=0.5)
    reward = progress(view, int(series.steps[begin]))
    idle = view.get("group.zero_std_frac")
    gone = series.steps[begin:][values[begin:] <= moved.early.center + np.log(limits["left"])]
    within = at(idle, gone)
    idle_there = within is not None and float(np.median(within.values)) >= 0.8
    if idle_there and gone.size < len(series) - begin:
        return  # where groups differ, the gradient is there
    solved = reward.at_ceiling or idle_there
    yield Hit(
        f"Gradient norm fell to {left:.2g} of its start ({np.exp(moved.early.center):.3g} to "
        f"{np.exp(moved.late.center):.3g}) since step "
        f"{series.steps[begin]}; {reward.words()}",
        "info" if solved and reward.good else "warning" if solved else "error",
        (
            evidence(
                series,
                begin,
                -1,
                baseline=float(np.exp(moved.early.center)),
                limit=limits["left"] * float(np.exp(moved.early.center)),
            ),
        ),
        cause="Almost no group has any variance left, so that there is nothing to learn from." if solved else None,
        unchecked=("groups without variance: group and reward",) if idle is None else (),
    )


def _vanished_just_now(view: View, series: Series, values: trend.Floats, limits: Limits) -> Iterator[Hit]:
    """A fall at once that is too recent for a comparison of windows."""
    shift = breaks.fresh(values, -float(np.log(limits["left"])))
    if shift is None or shift.size > 0.0 or series.values[shift.index :].max() == 0.0:
        return
    before, after = float(np.exp(shift.before)), float(np.exp(shift.after))
    idle = view.get("group.zero_std_frac")
    solved = idle is not None and float(np.median(idle.values[idle.steps >= series.steps[shift.index]])) >= 0.8
    yield Hit(
        f"Gradient norm fell at once to {after / before:.2g} of what it was ({before:.3g} to {after:.3g}) at step "
        f"{series.steps[shift.index]}",
        "warning" if solved else "error",
        (evidence(series, shift.index, -1, value=after, baseline=before, limit=limits["left"] * before),),
        unchecked=("groups without variance: group and reward",) if idle is None else (),
    )


@rule(
    "RLD604", "grad-zero",
    severity="error",
    optional=("optim.grad_norm", "group.zero_std_frac", "reward.std", "reward.spread", *PROGRESS),
    limits={"nearly_all": 0.9, "most": 0.5, "steps": 8, "idle": 0.95},
    cause="The loss has no gradient on these steps: every advantage is 0, everything is masked, or the logprobs are detached.",
    advice=(
        "If groups have no variance: filter prompts that are always or never solved, raise group_size, or use finer rewards.",
        "Otherwise check that the loss carries a gradient and that the mask is not empty.",
    ),
    avoids=(
        "Single steps without signal.", "Steps of so few groups that none has a variance.",
        "A run at its reward ceiling (a warning at most).",
    ),
    source="Public runs with a gradient of exactly 0 on most steps, and a reward that never moves",
)  # fmt: skip
def grad_zero(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The gradient norm is exactly zero on most steps.

    A step with a gradient of exactly 0 teaches nothing. In group-relative training it usually means that all samples of
    every group had the same reward.

    The share of steps with a norm of exactly 0 is an error from `nearly_all` on and a warning from `most` on, over at least
    `steps` steps; at the reward ceiling it is a warning at most. The share of groups without variance on the same steps
    tells the cause. Where the reward is one constant at `nearly_all` steps, or the median share of groups without variance is
    `idle`, the gradient follows from that, reward-flatline or zero-variance-groups reports it, and this is info; so it is
    below `nearly_all` where no group had a variance at any of these steps, as in steps of few groups. A stretch of zeros up
    to the last step is a warning from four steps on, once the share of zeros before it explains it with a probability below
    1e-4. A log that rounds the norm to two or three decimals cannot show an exact 0.
    """
    series = view.get("optim.grad_norm")
    if series is None:
        yield lacking(view, "optim.grad_norm")
        return
    if skip := too_short(series, int(limits["steps"])):
        yield skip
        return
    zero = series.values == 0.0
    share = float(np.mean(zero))
    if share < limits["most"]:
        yield from _zero_just_now(view, series, zero)
        return
    step = rounding(series)
    if step >= COARSE and float(np.min(series.values[~zero], initial=np.inf)) <= 5.0 * step:
        yield Skip("data", f"the log rounds the gradient norm to {step:g}, which is too coarse to tell 0 from small")
        return
    reward = progress(view)
    learned = reward.at_ceiling and reward.course == "rising"
    told = _told_elsewhere(view, limits) or _groups_alike(view, series, zero, limits)
    cause, ruled_out, unchecked = _why_zero(view, series, zero)
    yield Hit(
        f"Gradient norm is exactly 0 on {int(zero.sum())} of {len(series)} steps ({share:.0%}); {reward.words()}",
        "info" if learned or told else "error" if share >= limits["nearly_all"] else "warning",
        (evidence(series, int(np.argmax(zero)), -1, value=share, limit=limits["most"], share_of_steps="exactly 0"),),
        cause=told or cause,
        ruled_out=ruled_out,
        unchecked=unchecked,
    )


def _zero_just_now(view: View, series: Series, zero: NDArray[np.bool_]) -> Iterator[Hit]:
    """A stretch of zeros that goes on to the end, longer than the share of zeros before it explains."""
    last = trend.run_lengths(zero)
    if not last or last[-1][1] != len(series) - 1 or rounding(series) >= COARSE:
        return
    first, number = last[-1][0], last[-1][1] - last[-1][0] + 1
    usual = (float(np.count_nonzero(zero[:first])) + 1.0) / (first + 2.0)
    if first < 8 or number < _STRETCH or usual**number > _CHANCE:
        return
    cause, ruled_out, unchecked = _why_zero(view, series, np.arange(len(series)) >= first)
    yield Hit(
        f"Gradient norm is exactly 0 at the last {number} steps, from step {series.steps[first]} on; before that it was so at "
        f"{int(zero[:first].sum())} of {first}",
        "warning",
        (evidence(series, first, -1, value=0.0, baseline=float(np.median(series.values[:first])), limit=0.0),),
        cause=cause,
        ruled_out=ruled_out,
        unchecked=unchecked,
    )


def _told_elsewhere(view: View, limits: Limits) -> str | None:
    """The cause, where another rule reports it: rewards that never differ."""
    low, high, idle = view.get("reward.min"), view.get("reward.max"), view.get("group.zero_std_frac")
    spread = first_of(view, "reward.std", "reward.spread")
    if low is not None and high is not None and len(low) == len(high):
        constant = float(np.mean(low.values == high.values))
    else:
        constant = 0.0 if spread is None else float(np.mean(spread.values == 0.0))
    if constant >= limits["nearly_all"]:
        return "The reward does not differ between responses, so that every advantage is 0: reward-flatline tells."
    if idle is not None and float(np.median(idle.values)) >= limits["idle"]:
        return "In nearly every group all samples have the same reward, so that advantages are 0: zero-variance-groups tells."
    return None


def _groups_alike(view: View, series: Series, zero: NDArray[np.bool_], limits: Limits) -> str | None:
    """The cause, where no group had a variance at any step without a gradient: with few groups a step that is chance."""
    idle = view.get("group.zero_std_frac")
    if idle is None or float(np.mean(zero)) >= limits["nearly_all"]:
        return None
    inside = idle.values[np.isin(idle.steps, series.steps[zero])]
    if inside.size < np.count_nonzero(zero) or float(np.min(inside)) < 1.0:
        return None
    return "On these steps all samples of each group have the same reward, as happens with few groups in a step."


def _why_zero(view: View, series: Series, zero: NDArray[np.bool_]) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    idle = view.get("group.zero_std_frac")
    spread = view.get("reward.std")
    steps = series.steps[zero]
    for found, words, level in (
        (idle, "the share of groups without variance", 0.95),
        (spread, "the standard deviation of the reward", 0.0),
    ):
        if found is None:
            continue
        inside = found.values[np.isin(found.steps, steps)]
        if inside.size == 0:
            continue
        typical = float(np.median(inside))
        if (found is idle and typical >= level) or (found is spread and typical == level):
            return f"All samples of a group have the same reward: {words} is {typical:.2g} on these steps.", (), ()
        if found is idle:
            return (
                "The loss carries no gradient although groups differ: detached logprobs or an empty mask.",
                (f"groups without variance: their share is {typical:.2g} on these steps",),
                (),
            )
    return None, (), ("groups without variance: group and reward",)
