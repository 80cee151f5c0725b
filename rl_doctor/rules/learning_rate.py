"""Optimiser: the learning rate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules import trend
from rl_doctor.rules.reading import (
    COARSE,
    KL_OLD,
    REWARD,
    evidence,
    lacking,
    rounding,
    span,
    too_short,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_MOTION = (*KL_OLD, "policy.clip_frac", "ref.kl_k3", "ref.kl_k2", "ref.kl_abs", "ref.kl")
"""What is 0 throughout where no step changes the policy."""
_COURSES = (*REWARD, "policy.entropy", "length.mean")


@rule(
    "RLD605", "learning-rate-zero",
    severity="error",
    optional=("optim.learning_rate", *_MOTION, *_COURSES, "optim.grad_norm"),
    limits={"steps": 2, "error_share": 0.05, "error_steps": 10, "still": 8},
    cause="The schedule has run out (too few total steps), or the optimizer was set up with a learning rate of 0.",
    advice=(
        "Compare the total number of steps that the scheduler was given with the number of steps of the run.",
        "If the log rounds to three decimals, log the learning rate in full precision.",
    ),
    avoids=("The first step of a warm-up.", "The last step of a decay.", "A log that rounds 1e-6 to 0.000."),
    source="Public issue threads on warm-up steps and on rounded console output",
)  # fmt: skip
def learning_rate_zero(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The learning rate is zero for longer than a warm-up or a decay explains.

    Generation goes on, time is spent, and nothing is learned.

    Steps with a learning rate of exactly 0 are counted, leaving out the first step and the last. More than `steps` in a row
    is a warning, and an error from `error_share` of the run or `error_steps` on. If the log says 0 everywhere it may be
    rounded: it is an error only if the policy does not move either (the KL to the old policy, that to the reference and the
    share of clipped tokens are exactly 0, over `still` steps), and info if it moves. If that is not known and other numbers of
    the log have more digits than a rounding to 0 allows, it is a warning where reward, length and entropy go nowhere, else info.
    """
    series = view.get("optim.learning_rate")
    if series is None:
        yield lacking(view, "optim.learning_rate")
        return
    zero = series.values == 0.0
    n = len(series)
    if n < 4:
        yield too_short(series, 4) or Skip("length", "inconclusive")
        return
    if zero.all():
        yield _all_zero(view, series, limits)
        return
    step, rest = rounding(series), series.values[~zero]
    if (step >= COARSE or np.ptp(rest) > 0.0) and float(np.min(rest)) <= 1.5 * step:
        yield Skip("data", f"the log rounds the learning rate to {step:g}, which is too coarse to tell 0 from small")
        return
    inner = zero.copy()
    inner[0] = inner[-1] = False
    stretches = [(a, b) for a, b in trend.run_lengths(inner) if b - a + 1 >= limits["steps"]]
    if not stretches:
        return
    first, last = max(stretches, key=lambda item: item[1] - item[0])
    first, last = (0 if first == 1 and zero[0] else first), (n - 1 if last == n - 2 and zero[-1] else last)
    count = last - first + 1
    severe = count >= max(limits["error_share"] * n, 2) and count >= limits["error_steps"]
    usual = float(np.median(series.values[~zero]))
    yield Hit(
        f"Learning rate is exactly 0 at {span(series, first, last)} ({count} of {n} steps); elsewhere its median is {usual:.2g}",
        "error" if severe else "warning",
        (evidence(series, first, last, value=0.0, baseline=usual, limit=0.0),),
        ruled_out=("the first step of a warm-up, the last of a decay", "rounding: other steps show small values"),
        suspect="learning-rate-ran-out" if last == n - 1 else "learning-rate-starts-late" if first == 0 else "",
    )


def _all_zero(view: View, series: Series, limits: Limits) -> Hit:
    moved = [found for name in _MOTION if (found := view.get(name)) is not None]
    moves = any(float(np.abs(found.values).max()) > 1e-9 for found in moved)
    still = bool(moved) and not moves and len(series) >= limits["still"]
    fine = _finer(view)
    courses = [found for name in _COURSES if (found := view.get(name)) is not None and len(found) >= trend.SHORTEST]
    idle = not moved and fine is not None and bool(courses) and all(abs(trend.change(item.values).z) < 6.0 for item in courses)
    if still:
        cause = None
        ruled_out = tuple(f"rounding: {found.metric} stays 0" for found in moved[:1])
    elif fine is None:
        cause, ruled_out = "The log rounds small numbers to 0.", ()
    else:
        cause = (
            "It is not the rate that trains: that of another parameter group, or a number that was never filled in."
            if moves
            else None
        )
        ruled_out = (f"a log that rounds small numbers to 0: {fine.metric} has more digits",)
    return Hit(
        f"Learning rate is logged as 0 at all {len(series)} steps"
        + ("; the policy moves all the same" if moves else "; the policy does not move" if still else ""),
        "error" if still else "warning" if idle else "info",
        (evidence(series, 0, -1, value=0.0, limit=0.0),),
        cause=cause,
        ruled_out=ruled_out,
        unchecked=()
        if moved
        else ("whether the policy moves: the KL to the old policy or to the reference (in a recording: logprob, old_logprob)",),
        suspect="learning-rate-never-set" if still else "learning-rate-rounded" if fine is None or moves else "",
    )


def _finer(view: View) -> Series | None:
    """A number of the log that has more digits than one that is rounded to a power of ten."""
    names = (*_COURSES, *_MOTION, "optim.grad_norm")
    return next(
        (found for name in names if (found := view.get(name)) is not None and found.values.any() and rounding(found) == 0.0), None
    )
