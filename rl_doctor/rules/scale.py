"""Scales against each other: reward components, the KL penalty and the reward, the reward and its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules import trend
from rl_doctor.rules.reading import KL_REFERENCE, PROGRESS, evidence, first_of, lacking, progress, times, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_PREFIX = "reward.component."
_STATS = frozenset({"mean", "std", "min", "max", "variance_share"})
_SHAPE = ("reward.max", "reward.min", "reward.at_max_frac", "reward.at_min_frac")


def components(view: View) -> Mapping[str, Mapping[str, Series]]:
    """Measured series of each reward component: component -> statistic -> series. A name without statistic is a mean."""
    found: dict[str, dict[str, Series]] = {}
    for name, series in view.named(_PREFIX).items():
        stem, _, stat = name.removeprefix(_PREFIX).rpartition(".")
        if stat in _STATS and stem:
            found.setdefault(stem, {})[stat] = series
        else:
            found.setdefault(name.removeprefix(_PREFIX), {})["mean"] = series
    return found


@rule(
    "RLD404", "reward-component-imbalance",
    severity="error",
    optional=(_PREFIX,),
    limits={"share": 0.99, "scale": 100.0, "jump": 20.0, "live": 0.5, "steps": 5, "constant": 50.0},
    cause="One reward component is on another scale than the rest, so that the others decide nothing.",
    advice=(
        "Bring components to the same scale before they are added, or set their weights accordingly.",
        "If the scale changed in mid-run, look for a changed weight, unit or normaliser of that component.",
    ),
    avoids=(
        "A single component.",
        "Components that are constant: one that never changes in the whole run is info.",
        "A component that is learned: its largest value stays what it was.",
    ),
    source="Public post-mortems in which a shaped component drives the update; reproduced by scaling one component",
)  # fmt: skip
def reward_component_imbalance(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """One component of the reward drowns the others.

    Components are added, so that the one with the largest spread within groups decides which samples are reinforced. The
    others can then rise or fall without any effect.

    It fires as a warning if one component holds at least `share` of the within-group variance although another varies too
    and its standard deviation is `scale` times smaller, at `live` of the late steps; as an error if the size of a component
    grew `jump` times, suddenly and lastingly, or between the early and the late window of its largest absolute value.
    Components that are the same for every response of the run are info. One that is constant at four of five steps is a
    warning if it is `constant` times what any other component reaches.
    """
    found = components(view)
    if not found:
        yield Skip("column", "no reward components are recorded", ("reward/<component>",))
        return
    longest = max((len(series) for stats in found.values() for series in stats.values()), default=0)
    if longest < limits["steps"]:
        yield Skip("length", f"inconclusive: components are measured at {longest} steps")
        return
    grown = [hit for name, stats in found.items() if (hit := _grown(name, stats, limits)) is not None]
    yield from grown
    if not grown and len(found) > 1:
        yield from _drowned(found, limits)
    for name, stats in found.items():
        if (hit := _towering(name, stats, _others(found, name), limits)) is not None:
            yield hit
            return
    dead = {name: level for name, stats in found.items() if (level := _dead(stats)) is not None}
    if dead and len(dead) < len(found):
        yield _told_dead(found, dead)


def _size(stats: Mapping[str, Series]) -> Series | None:
    """Largest absolute value per step, or the absolute mean."""
    low, high = stats.get("min"), stats.get("max")
    if low is not None and high is not None and len(low) == len(high):
        return Series(high.metric, high.unit, high.steps, np.maximum(np.abs(low.values), np.abs(high.values)), high.counts)
    mean = stats.get("mean")
    return None if mean is None else Series(mean.metric, mean.unit, mean.steps, np.abs(mean.values), mean.counts)


def _grown(name: str, stats: Mapping[str, Series], limits: Limits) -> Hit | None:
    series = _size(stats)
    if series is None or len(series) < trend.SHORTEST:
        return None
    before = trend.early(series.values).center
    after = trend.late(series.values).center
    if before <= 0.0:
        return None
    values = np.log(np.maximum(series.values, 0.05 * before))
    jump = trend.jump(values)
    sudden = jump is not None and not jump.recovered and jump.size >= math.log(limits["jump"])
    bounded = series.metric.endswith(".max")
    if not sudden and not (bounded and after >= limits["jump"] * before):
        return None
    begin = jump.index if sudden and jump is not None else trend.onset(values, trend.early(values), rising=True, share=0.5)
    if sudden and jump is not None:
        before, after = math.exp(jump.before), math.exp(jump.after)
    return Hit(
        f"Reward component {name} grew {times(after / before)}, from {before:.3g} to {after:.3g}, at step {series.steps[begin]}",
        "error",
        (evidence(series, begin, -1, value=after, baseline=before, limit=limits["jump"] * before, where={"component": name}),),
        cause=f"The scale of {name} changed: another weight, unit or normaliser from that step on.",
        ruled_out=("learning: it does not change the size of a component so much",) if bounded else (),
    )


def _drowned(found: Mapping[str, Mapping[str, Series]], limits: Limits) -> Iterator[Hit]:
    """A component that holds all the within-group variance although others vary too."""
    for name, stats in found.items():
        share, spread = stats.get("variance_share"), stats.get("std")
        if share is None or spread is None:
            continue
        last = trend.late(share.values, 0.3)
        level = float(np.median(share.values[last.first :]))
        if level < limits["share"]:
            continue
        own = float(np.median(spread.values[trend.late(spread.values, 0.3).first :]))
        small = [
            other for other, theirs in found.items() if other != name and _alive(theirs, own / limits["scale"], limits["live"])
        ]
        if small:
            yield Hit(
                f"Reward component {name} holds {level:.1%} of the within-group variance; {', '.join(small)}: some too, but "
                f"{limits['scale']:.0f} times smaller",
                "warning",
                (evidence(share, last.first, -1, value=level, limit=limits["share"], where={"component": name}),),
                ruled_out=("other components that are constant: they vary within the batch",),
            )


def _alive(stats: Mapping[str, Series], below: float, share: float) -> bool:
    """Whether a component varies at a share of the late steps, but less than ``below``."""
    spread = stats.get("std")
    if spread is None:
        return False
    part = spread.values[trend.late(spread.values, 0.3).first :]
    size = _size(stats)
    rounding = 1e-6 * (0.0 if size is None else float(size.values.max()))
    return float(np.mean(part > rounding)) >= share and float(np.median(part)) <= below


def _others(found: Mapping[str, Mapping[str, Series]], name: str) -> float:
    """Largest absolute value that any other component reaches; 0 without another."""
    sizes = [size for other, stats in found.items() if other != name and (size := _size(stats)) is not None]
    return max((float(size.values.max()) for size in sizes), default=0.0)


def _towering(name: str, stats: Mapping[str, Series], others: float, limits: Limits) -> Hit | None:
    """A component that has one value at nearly all steps, far above what the others reach."""
    mean, spread = stats.get("mean"), stats.get("std")
    if mean is None or len(mean) < limits["steps"]:
        return None
    values, counts = np.unique(mean.values, return_counts=True)
    share, value = float(counts.max()) / len(mean), float(values[np.argmax(counts)])
    if share < 0.8 or (share == 1.0 and spread is not None and float(spread.values.max()) > 0):
        return None
    if not 0.0 < others < abs(value) / limits["constant"]:
        return None
    return Hit(
        f"Reward component {name} is {value:g} at {counts.max()} of {len(mean)} steps; no other component exceeds {others:.3g}",
        "warning",
        (evidence(mean, 0, -1, value=value, where={"component": name}),),
        cause="The component is constant, and so large that what varies hardly shows in the reward.",
    )


def _dead(stats: Mapping[str, Series]) -> float | None:
    """The value of a component that is the same for every response of the run; None if it varies."""
    mean, spread = stats.get("mean"), stats.get("std")
    if mean is None or (spread is not None and float(spread.values.max()) > 0):
        return None
    return float(mean.values[0]) if bool(np.all(mean.values == mean.values[0])) else None


def _told_dead(found: Mapping[str, Mapping[str, Series]], dead: Mapping[str, float]) -> Hit:
    several = len(dead) > 1
    named = ", ".join(f"{name} ({value:g})" for name, value in dead.items())
    return Hit(
        f"Reward component{'s' if several else ''} {named} never change{'' if several else 's'}",
        "info",
        tuple(evidence(found[name]["mean"], 0, -1, value=value, where={"component": name}) for name, value in dead.items()),
        cause="A component at 0 is dead: never earned or never computed. Another value is saturated, or constant by design.",
    )


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
            (evidence(kl, trend.late(kl.values, 0.3).first, -1, value=penalty, baseline=size, limit=limits["ratio"] * size),),
        )


def _against(view: View, kl: Series, coefficient: float) -> tuple[float, Series, str] | Skip:
    """The penalty at the end of the run, the series to hold it against, and what it is counted per."""
    level = float(np.median(np.abs(kl.values[trend.late(kl.values, 0.3).first :])))
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
    `share` of the responses have it.
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
        yield Hit(
            f"{level:.0%} of the responses have exactly the {'largest' if bound == 'reward.max' else 'smallest'} "
            f"reward, {value:g}, at "
            f"{counts.max()} of {len(ends) - half} steps",
            "warning",
            (evidence(at, half, -1, value=level, limit=limits["share"]),),
            ruled_out=("a reward with few values: away from the bound most values occur once",),
        )
