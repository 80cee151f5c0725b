"""Scales against each other: the KL penalty and the reward, the reward and its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules import trend
from rl_doctor.rules.reading import KL_REFERENCE, PROGRESS, evidence, first_of, lacking, progress, times, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_SHAPE = ("reward.max", "reward.min", "reward.at_max_frac", "reward.at_min_frac")


@rule(
    "RLD405", "kl-penalty-dominates",
    severity="warning",
    optional=(*KL_REFERENCE, "adv.std", "adv.abs_mean", "reward.std", "group.std_mean", "length.mean", *PROGRESS),
    limits={"ratio": 1.0, "steps": 8, "far": 3.0, "signal": 1e-6},
    cause="kl_coef is too large for the scale of the reward, so that staying at the reference pays more than earning reward.",
    advice=(
        "Lower kl_coef until the penalty is well below the spread of the reward.",
        "Check that the KL is not counted twice, in the reward and in the loss, and that it is masked like the loss.",
    ),
    avoids=("A KL term of ordinary size.", "The loss value itself as a scale: it is near 0 on-policy.", "The first steps."),
    source="Closed form: gradient weight of the KL term against that of the advantage",
)  # fmt: skip
def kl_penalty_dominates(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL penalty outweighs the reward.

    The policy is then trained to stay where it is, and the reward stops moving.

    In the loss, a token's KL term pulls with about kl_coef * sqrt(2 * KL), the policy term with the advantage; in the
    reward, the penalty of a response is kl_coef * KL * length, against the spread of the reward. The median over the late
    window is held against `ratio`, over at least `steps` steps; steps on which the advantages (or rewards) differ by less
    than `signal` have no policy term and are left out. While the reward rises it is info, up to `far` times.
    """
    coefficient = view.config.kl_coef
    if not coefficient:
        yield Skip(
            "config",
            "there is no KL term" if coefficient == 0 else "the weight of the KL term is not known",
            ("config.kl_coef",) if coefficient is None else (),
        )
        return
    kl = first_of(view, *KL_REFERENCE)
    if kl is None:
        yield lacking(view, *KL_REFERENCE)
        return
    if skip := too_short(kl, int(limits["steps"])):
        yield skip
        return
    against = _against(view, kl, coefficient)
    if isinstance(against, Skip):
        yield against
        return
    penalty, scale, words = against
    recent = scale.values[trend.late(scale.values, 0.3).first :]
    recent = recent[recent > limits["signal"]]
    if recent.size == 0:
        yield Skip("data", f"{scale.metric} is 0 at the end of the run: nothing to hold the penalty against")
    elif penalty >= limits["ratio"] * (size := float(np.quantile(recent, 0.75))):
        reward = progress(view)
        yield Hit(
            f"KL penalty {words} is {penalty:.3g}, {times(penalty / size)} {scale.metric} ({size:.3g}), with kl_coef "
            f"{coefficient:g}; {reward.words()}",
            "info" if reward.course == "rising" and penalty < limits["far"] * size else "warning",
            (
                evidence(kl, trend.late(kl.values, 0.3).first, -1, value=_level(kl)),
                evidence(scale, trend.late(scale.values, 0.3).first, -1, value=size),
            ),
        )


def _level(kl: Series) -> float:
    """Size of the KL at the end of the run."""
    return float(np.median(np.abs(kl.values[trend.late(kl.values, 0.3).first :])))


def _against(view: View, kl: Series, coefficient: float) -> tuple[float, Series, str] | Skip:
    """The penalty at the end of the run, the series to hold it against, and what it is counted per."""
    level = _level(kl)
    if not view.config.kl_in_reward:
        scale = first_of(view, "adv.std", "adv.abs_mean")
        return (
            lacking(view, "adv.std", "adv.abs_mean")
            if scale is None
            else (coefficient * math.sqrt(2 * level), scale, "per token")
        )
    scale, length = first_of(view, "group.std_mean", "reward.std"), view.get("length.mean")
    if scale is None or length is None:
        return lacking(view, "reward.std" if scale is None else "length.mean")
    return coefficient * level * trend.late(length.values).center, scale, "per response"


@rule(
    "RLD406", "reward-at-bound",
    severity="warning",
    optional=("reward.distinct_frac", *_SHAPE, "reward.mean"),
    limits={"share": 0.3, "continuous": 0.2, "same": 0.9, "steps": 8},
    cause="The reward model's output is clamped, and the policy has reached the clamp: better answers earn no more.",
    advice=(
        "Widen or remove the clamp, or rescale the reward so that its values fall inside.",
        "Read responses at the bound: a reward model that is certain of many answers may be exploited.",
    ),
    avoids=("Rewards with few values (right or wrong, with or without format).", "A maximum that differs from step to step."),
    source="Public reports on reward models clamped at 3 in absolute value",
)  # fmt: skip
def reward_at_bound(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Many responses have exactly the largest (or smallest) reward, of a reward that is otherwise continuous.

    At the bound there is no difference between good and better, and groups lose their variance.

    The reward counts as continuous if, away from the bounds, at least `continuous` of the responses of a step have a value
    of their own. It fires if the same largest or smallest value occurs at `same` of the steps of the late half and at least
    `share` of the responses have it. A smallest of 0 or a largest of 1, where many rewards end by nature, is info.
    """
    distinct, mean = view.get("reward.distinct_frac"), view.get("reward.mean")
    if distinct is None or mean is None:
        yield lacking(view, "reward.distinct_frac")
        return
    if skip := too_short(mean, int(limits["steps"])):
        yield skip
        return
    if float(np.median(distinct.values)) < limits["continuous"]:
        yield Skip("data", "the reward has few values: there is no bound to judge")
        return
    for bound, share in (("reward.max", "reward.at_max_frac"), ("reward.min", "reward.at_min_frac")):
        ends, at = view.get(bound), view.get(share)
        if ends is None or at is None:
            continue
        half = len(ends) // 2
        values, counts = np.unique(ends.values[half:], return_counts=True)
        if counts.max() < limits["same"] * (len(ends) - half):
            continue
        level = float(np.median(at.values[half:]))
        if level < limits["share"]:
            continue
        value = float(values[np.argmax(counts)])
        natural = value == (1.0 if bound == "reward.max" else 0.0)
        yield Hit(
            f"{level:.0%} of the responses have exactly the {'largest' if bound == 'reward.max' else 'smallest'} "
            f"reward, {value:g}, at "
            f"{counts.max()} of {len(ends) - half} steps",
            "info" if natural else "warning",
            (evidence(at, half, -1, value=level, limit=limits["share"]),),
            cause="All is earned there is, or nothing: 0 and 1 are where many rewards end." if natural else None,
            ruled_out=("a reward with few values: away from the bound most values occur once",),
        )
