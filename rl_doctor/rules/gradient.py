"""What the logged gradient norm is: one number on all ranks, before or after clipping, and where it goes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules import trend
from rl_doctor.rules.reading import (
    PROGRESS,
    change_evidence,
    counted,
    evidence,
    lacking,
    positive,
    progress,
    span,
    times,
    too_short,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_BY_RANK = "optim.grad_norm_rank_ratio"


@rule(
    "RLD607", "grad-norm-differs-by-rank",
    severity="error", since="0.2.0",
    needs=(_BY_RANK,),
    limits={"ratio": 1.02, "steps": 2, "share": 0.5},
    cause="Each rank clips by the norm of its own shard, so that ranks scale their parts of one gradient differently.",
    advice=(
        "Sum the squares of the shards' norms over ranks before the root is taken; the trainer's own clipping function does.",
        "Compare the norm with that of one rank alone on the same batch.",
    ),
    avoids=("Differences below two per cent, which come from the order of sums.", "Single steps."),
    source="Public issues on clipping sharded parameters",
)  # fmt: skip
def grad_norm_differs_by_rank(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Ranks report different gradient norms for the same optimizer step.

    After gradients are summed over ranks there is one gradient, and it has one norm. Where each rank clips by that of its own
    shard, the direction of the update changes with the sharding, and with the number of ranks.

    It fires if the largest norm is `ratio` times the smallest at `share` of the steps and at `steps` steps or more.
    """
    series = view.series(_BY_RANK)
    bad = series.values >= limits["ratio"]
    if np.count_nonzero(bad) < limits["steps"] or float(np.mean(bad)) < limits["share"]:
        return
    first = int(np.flatnonzero(bad)[0])
    value = float(np.median(series.values[bad]))
    yield Hit(
        f"Gradient norms of one optimizer step differ by {times(value)} between ranks, at {int(bad.sum())} of "
        f"{counted(len(series), 'step')}, {span(series, first)}",
        "error",
        (evidence(series, first, -1, value=value, limit=limits["ratio"]),),
        ruled_out=("numerics: sums in another order differ by far less",),
    )


@rule(
    "RLD608", "grad-norm-logged-clipped",
    severity="info", since="0.2.0",
    optional=("optim.grad_norm",),
    limits={"share": 0.5, "steps": 10},
    cause="The gradient norm is taken after clipping.",
    advice=("Log what the clipping function returns, which is the norm before clipping.",),
    avoids=("A norm above max_grad_norm, which is that before clipping.", "A log that rounds to one or two digits."),
    source="Public reports: a norm of exactly 1.000 at most steps",
)  # fmt: skip
def grad_norm_logged_clipped(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The gradient norm is exactly the clip bound on most steps and never above it, so that spikes are invisible.

    Trainers log the norm before clipping; then it exceeds max_grad_norm now and then, and that is no fault. A norm that equals
    one number at `share` of at least `steps` steps and is never larger has been clipped already.
    """
    series = view.get("optim.grad_norm")
    if series is None:
        yield lacking(view, "optim.grad_norm")
        return
    if skip := too_short(series, int(limits["steps"])):
        yield skip
        return
    top = float(np.max(series.values))
    bound = view.config.max_grad_norm or top
    if top <= 0.0 or abs(top - bound) > 2e-3 * bound:
        return
    same = np.abs(series.values - top) <= 1e-3 * top
    rest = series.values[~same]
    share = float(np.mean(same))
    if share < limits["share"] or (view.config.max_grad_norm is None and (not rest.size or np.ptp(series.values) == 0.0)):
        return
    if len(np.unique(np.round(series.values, 3))) < 3 and view.config.max_grad_norm is None:
        return
    yield Hit(
        f"Gradient norm is {top:.4g} at {share:.0%} of {len(series)} steps and never above: it is logged after clipping, and "
        "spikes cannot be seen",
        "info",
        (evidence(series, 0, -1, value=share, limit=limits["share"], share_of_steps="at the bound"),),
        unchecked=("spikes of the gradient: the norm before clipping",),
    )


@rule(
    "RLD614", "grad-clipped-always",
    severity="info", since="0.2.0",
    optional=("optim.grad_norm",),
    limits={"share": 0.95, "steps": 10, "factor": 2.0},
    cause="max_grad_norm is small against the gradient: every update is cut, not the outliers alone.",
    advice=(
        "Set max_grad_norm to a few times the usual norm, so that outliers alone are cut, or leave it if that is meant.",
        "Without Adam read the learning rate as divided by the factor; with it steps keep their size, and batches weigh alike.",
    ),
    avoids=("A norm that is above the bound now and then.", "A log of the norm after clipping."),
    source="Arithmetic: a clipped gradient is multiplied by max_grad_norm / norm",
)  # fmt: skip
def grad_clipped_always(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The gradient norm is above max_grad_norm at nearly every step.

    Clipping is there for outliers. Where it acts always, every gradient has the same norm, whatever the batch says.

    It is info if the norm, as it was before clipping, is above the bound at `share` of at least `steps` steps, and its median is
    `factor` times the bound or more.
    """
    series, bound = view.get("optim.grad_norm"), view.config.max_grad_norm
    if series is None:
        yield lacking(view, "optim.grad_norm")
        return
    if bound is None or not bound > 0.0:
        yield Skip("config", "no bound of the gradient norm is known", ("config.max_grad_norm",))
        return
    if skip := too_short(series, int(limits["steps"])):
        yield skip
        return
    share, level = float(np.mean(series.values > bound)), float(np.median(series.values))
    if share < limits["share"] or level < limits["factor"] * bound:
        return
    yield Hit(
        f"Gradient norm is above max_grad_norm ({bound:g}) at {share:.0%} of {len(series)} steps, {level / bound:.3g} times "
        "in the median: all updates are scaled down by that",
        "info",
        (evidence(series, 0, -1, value=level, limit=bound),),
    )


@rule(
    "RLD613", "grad-norm-growth",
    severity="error", since="0.2.0",
    optional=("optim.grad_norm", *PROGRESS),
    limits={"growth": 10.0, "z": 4.0},
    cause="Updates become too large step by step: the learning rate is too high, the policy drifts from what sampled, or the "
    "scale of rewards grows.",
    advice=(
        "Lower the learning rate, and go back to a checkpoint from before the onset.",
        "Look at what grows with it: mismatch, KL, length and the spread of rewards.",
    ),
    avoids=("Growth while the reward rises: info.", "Spikes and jumps: rule grad-norm-spike."),
    source="Public reports on late collapse: the gradient explodes before the reward falls",
)  # fmt: skip
def grad_norm_growth(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The gradient norm grows to a multiple of the run's own start.

    Gradients shrink as a policy becomes sure of itself. Where they grow by an order of magnitude the updates no longer fit the
    policy. Clipping bounds each of them, but not their direction.

    It fires if the late level is `growth` times that of the early window and the difference of logarithms is `z` standard
    errors (on a short run more). An error if the reward falls; info otherwise.
    """
    series = view.get("optim.grad_norm")
    if series is None:
        yield lacking(view, "optim.grad_norm")
        return
    series = positive(series)
    if skip := too_short(series):
        yield skip
        return
    values = np.log(series.values)
    moved = trend.change(values)
    growth = math.exp(moved.difference)
    if growth < limits["growth"] or moved.z < trend.least_z(limits["z"], len(series)):
        return
    begin = trend.onset(values, moved.early, rising=True, share=0.3)
    reward = progress(view, int(series.steps[begin]))
    severity: Severity = "error" if reward.course == "falling" else "info"
    items: tuple[Evidence, ...] = (change_evidence(series, begin, moved, limits["growth"]),)
    yield Hit(
        f"Gradient norm grew {times(growth)} ({math.exp(moved.early.center):.3g} to {math.exp(moved.late.center):.3g}), "
        f"{span(series, begin)}; {reward.words()}",
        severity,
        items,
        unchecked=() if reward.series is not None else ("whether the reward falls: reward",),
    )
