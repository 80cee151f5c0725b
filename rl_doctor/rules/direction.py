"""Advantages against the rewards that they are made of, whatever the formula: their direction, and groups of equal rewards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.advantage import GROUPED
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.stretch import joined, stretch
from rl_doctor.rules.view import View

_CORR, _EQUAL = "advantage.reward_corr", "advantage.equal_groups_abs_mean"


@rule(
    "RLD417", "advantage-reversed",
    severity="error", since="0.2.0",
    optional=(_CORR,),
    limits={"reversed": -0.5, "rows": 8, "steps": 3, "total": 48},
    cause="The advantage has the opposite sign: the policy is trained towards what is rewarded least.",
    advice=(
        "Compare reward and advantage of a few rows: the better response of a group must have the larger advantage.",
        "Look for a loss that is negated twice, a reward of which less is better, or ranks taken in the wrong order.",
    ),
    avoids=("A critic whose advantages hardly follow the reward of a single response.", "Groups whose rewards are all equal."),
    source="Reproduced by turning the sign; a reward that falls in public runs with a negated loss",
)  # fmt: skip
def advantage_reversed(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Better responses have smaller advantages.

    Whatever the estimator, within a group the response with the larger reward has to get the larger advantage. Turned round,
    training works against its own reward, at full strength.

    Over the groups whose rewards differ, the correlation of the advantage with the reward less the mean of its group is taken
    per step, of at least `rows` responses. It fires if it is below `reversed` at a stretch of `steps` steps with `total`
    responses.
    """
    series = view.get(_CORR)
    if series is None:
        yield lacking(view, _CORR)
        return
    marked = (series.values < limits["reversed"]) & (series.counts >= limits["rows"])
    found = stretch(series, marked, limits["reversed"], steps=int(limits["steps"]), items=int(limits["total"]))
    if found is None:
        return
    value = found.value
    error = 1.96 * (1.0 - value * value) / max(found.n - 3, 1) ** 0.5
    shown = found.evidence()
    interval = (max(value - error, -1.0), min(value + error, 1.0))
    yield Hit(
        f"Advantages fall as rewards rise: their correlation is {value:.2f} over {found.n} responses, {found.when}",
        "error",
        (_with_interval(shown, interval),),
        ruled_out=(f"advantages of other rows: the correlation would be about 0, and is {value:.2f}",),
        unchecked=("a reward of which less is better",),
        suspect="advantage-sign-turned",
    )


def _with_interval(shown: Evidence, interval: tuple[float, float]) -> Evidence:
    return replace(shown, interval=interval)


@rule(
    "RLD419", "advantage-without-difference",
    severity="error", since="0.2.0",
    optional=(_EQUAL, "adv.abs_mean"),
    limits={"share": 0.05, "steps": 3, "rows": 24},
    cause="Responses are not compared within the groups that are recorded: a baseline of the whole batch, advantages of other "
    "rows, or other groups.",
    advice=(
        "Compute the advantages of a group with equal rewards by hand: every one of them is 0.",
        "Check what is done where groups are of different sizes: a fallback to one group of all is a common one.",
    ),
    avoids=("Estimators that do not compare within groups.", "Rewards that nearly agree: rule near-zero-variance-groups."),
    source="Public issue threads: groups of uneven size fall back to one global group",
)  # fmt: skip
def advantage_without_difference(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Responses whose group has one reward get advantages all the same.

    An estimator that compares the responses to one prompt has nothing to say where all of them earn the same. An advantage
    other than 0 there pushes every response of the prompt in one direction.

    The mean absolute advantage of these responses is held against that of all: it fires above `share` of it at a stretch of at
    least `steps` steps with `rows` such responses. An error where the configuration names an estimator that compares within
    groups, else info; others are skipped.
    """
    declared = view.config.adv_estimator
    if declared is not None and declared not in GROUPED:
        yield Skip("config", f"{declared} does not compare samples of a group")
        return
    found = joined(view.get(_EQUAL), view.get("adv.abs_mean"))
    if found is None:
        yield lacking(view, _EQUAL)
        return
    series, scale = found
    marked = series.values > limits["share"] * np.maximum(scale.values, 1e-9)
    breach = stretch(series, marked, limits["share"], steps=int(limits["steps"]), items=int(limits["rows"]))
    if breach is None:
        return
    yield Hit(
        f"{breach.n} responses of groups with one reward have advantages of {breach.value:.3g} on average, {breach.when}",
        "info" if declared is None else "error",
        (breach.evidence(),),
        ruled_out=("rewards that differ by little: they are equal to the bit",),
        unchecked=("what the estimator compares: config.adv_estimator",) if declared is None else (),
    )
