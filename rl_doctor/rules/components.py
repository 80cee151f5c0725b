"""Parts of the reward: those that drown the others, change their scale, or never change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules import trend
from rl_doctor.rules.drowned import Stats, drowned, largest
from rl_doctor.rules.reading import counted, evidence, items, times
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.stopped import stopped_at
from rl_doctor.rules.view import View

COMPONENT: Final = "reward.component."
_FEW: Final = 2
_STATS = frozenset({"mean", "std", "min", "max", "variance_share", "explained"})


def components(view: View) -> Mapping[str, Stats]:
    """Measured series of each reward component: component -> statistic -> series. A name without statistic is a mean."""
    found: dict[str, dict[str, Series]] = {}
    for name, series in view.named(COMPONENT).items():
        stem, _, stat = name.removeprefix(COMPONENT).rpartition(".")
        if stat in _STATS and stem:
            found.setdefault(stem, {})[stat] = series
        else:
            found.setdefault(name.removeprefix(COMPONENT), {})["mean"] = series
    return found


def _unjudged(found: Mapping[str, Stats], limits: Limits) -> Skip | None:
    """Why components cannot be judged: there are none, or too few steps of them."""
    if not found:
        return Skip("column", "no reward components are recorded", ("reward/<component>",))
    longest = max((len(series) for stats in found.values() for series in stats.values()), default=0)
    if longest < limits["steps"]:
        return Skip("length", f"inconclusive: components are measured at {counted(longest, 'step')}")
    return None


@rule(
    "RLD404", "reward-component-imbalance",
    severity="error",
    optional=(COMPONENT, "reward.std", "composition.weighted_off", "composition.spread"),
    limits={
        "share": 0.98, "range": 50.0, "reach": 12.0, "responses": 64, "scale": 100.0, "unseen": 20.0, "grown": 8.0,
        "sudden": 15.0, "jump": 50.0, "above": 4.0, "live": 0.5, "steps": 5, "constant": 50.0,
    },
    cause="One reward component is on another scale than the rest, so that the others decide nothing.",
    advice=(
        "Bring components to the same scale before they are added, or set their weights accordingly.",
        "If the scale changed in mid-run, look for a changed weight, unit or normaliser of that component.",
    ),
    avoids=(
        "A single component.",
        "A component that is large and constant: it cancels against the baseline, and is info.",
        "A component that the configuration's weights scale down, or that hardly enters the whole reward.",
        "A component that is learned: its largest value stays what it was, or it stays within the size of the others.",
    ),
    source="Public post-mortems in which a shaped component drives the update; reproduced by scaling one component",
)  # fmt: skip
def reward_component_imbalance(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """One component of the reward drowns the others.

    Components are added, so that the one with the largest spread within groups decides which samples are reinforced. The
    others can then rise or fall without any effect.

    It fires as a warning if one component explains at least `share` of the within-group variance of the reward, which is what
    advantages see, up to the last step, over `responses` responses or more, although every other that varies at `live` of the
    steps comes to nothing beside it: the range of its values is `range` times that of any other as recorded and `reach` times
    as it enters the reward, or `scale` times by configured weights. Nothing about time is claimed, so that two steps can be
    enough. A log has no variance within groups: there it is a warning if the standard deviation over the batch (or else what
    its mean varies by from step to step) is `scale` times that of every other component that varies, at the start and at the
    end of the run. Weights of the configuration count; if they are not known and the standard deviation of the whole reward
    is `unseen` times smaller, the component does not enter it as it is logged, and nothing is said.

    A component whose own size grows in mid-run is a warning from `grown` times on, and an error from `jump` times on if it
    grew at once. Size is its largest absolute value, where that was recorded, or else its mean; a mean can also grow by
    learning, and counts if it grew `sudden` times from one step to the next, or ends `above` times beyond the largest of the
    others. One that is constant at four of five steps is a warning if it is `constant` times what any other component
    reaches, and info if it is the same at every step.
    """
    found = components(view)
    if skip := _unjudged(found, limits):
        yield from drowned(view, found, limits)
        yield skip
        return
    grown = [hit for name, stats in found.items() if (hit := _grown(name, stats, _others(found, name), limits)) is not None]
    yield from grown
    if not grown and len(found) > 1:
        yield from (
            drowned(view, found, limits)
            if any("variance_share" in stats for stats in found.values())
            else _outsized(view, found, limits)
        )
    for name, stats in found.items():
        if (hit := _towering(name, stats, _others(found, name), limits)) is not None:
            yield hit
            return


def _grown(name: str, stats: Stats, others: float, limits: Limits) -> Hit | None:
    series = largest(stats)
    if series is None or len(series) < trend.SHORTEST:
        return None
    before, after = trend.early(series.values).center, trend.late(series.values).center
    if before <= 0.0:
        return None
    values = np.log(np.maximum(series.values, 0.05 * before))
    jump = trend.jump(values)
    sudden = jump is not None and not jump.recovered and jump.size >= math.log(limits["grown"])
    if sudden and jump is not None:
        before, after = math.exp(jump.before), math.exp(jump.after)
    factor = after / before
    bounded = series.metric.endswith(".max")
    beyond = 0.0 < others < after / limits["above"]
    if factor < limits["grown"] or not (bounded or beyond or (sudden and factor >= limits["sudden"])):
        return None
    if not sudden and trend.change(values).z < 6.0:
        return None
    begin = jump.index if sudden and jump is not None else trend.onset(values, trend.early(values), rising=True, share=0.5)
    return Hit(
        f"Reward component {name} grew {times(factor)}, from {before:.3g} to {after:.3g}, at step {series.steps[begin]}",
        "error" if factor >= limits["jump"] and (sudden or bounded) else "warning",
        (evidence(series, begin, -1, value=after, baseline=before, limit=limits["grown"] * before, where={"component": name}),),
        cause=f"The scale of {name} changed: another weight, unit or normaliser from that step on.",
        ruled_out=("learning: it does not change the size of a component so much",) if bounded else (),
        unchecked=() if bounded else (f"whether its values grew or only came more often: the largest value of {name}",),
        suspect="component-scale-changed",
    )


def _outsized(view: View, found: Mapping[str, Stats], limits: Limits) -> Iterator[Hit]:
    """A component that varies far more than all others that vary, where only statistics over batches were logged."""
    moving = {name: series for name, stats in found.items() if (series := _movement(stats, limits)) is not None}
    weights = view.config.reward_weights or {}
    known = all(name in weights for name in moving)
    factors = {name: abs(weights[name]) if known else 1.0 for name in moving}
    sizes = {name: [factors[name] * size for size in _ends(series)] for name, series in moving.items()}
    for name, (first, last) in sizes.items():
        others = [size for other, size in sizes.items() if other != name and max(size) > 0.0]
        if not others:
            continue
        before, after = (max(size[end] for size in others) for end in (0, 1))
        if first < limits["scale"] * before or last < limits["scale"] * after or last <= 0.0 or after <= 0.0:
            continue
        whole = view.get("reward.std")
        if not known and whole is not None and last > limits["unseen"] * trend.late(whole.values).center:
            continue
        spread = found[name].get("std")
        shown = moving[name] if spread is None else spread
        how = "varies by" if spread is not None else "moves from step to step by"
        yield Hit(
            f"Reward component {name} {how} {last:.3g}, {times(last / after)} what any other does ({after:.2g} at most)",
            "warning",
            (evidence(shown, 0, -1, value=last, baseline=after, limit=limits["scale"] * after, where={"component": name}),),
            ruled_out=("other components that are constant: they vary too",),
            unchecked=(
                "how much of it is within groups: a log has the spread over the batch only",
                *(() if known else ("the weights with which components are added: config.reward_weights",)),
            ),
            suspect="component-drowns-others",
        )


def _movement(stats: Stats, limits: Limits) -> Series | None:
    """The standard deviation over the batch per step, or the sizes of the steps of the mean; None if it hardly ever varies."""
    spread, mean = stats.get("std"), stats.get("mean")
    if spread is None:
        if mean is None or len(mean) <= 2 * limits["steps"]:
            return None
        steps = np.abs(np.diff(mean.values)) / math.sqrt(2.0)
        spread = Series(mean.metric, mean.unit, mean.steps[1:], steps, mean.counts[1:])
    if len(spread) < limits["steps"]:
        return None
    size = largest(stats)
    rounding = 1e-6 * (0.0 if size is None else float(size.values.max()))
    return spread if float(np.mean(spread.values > rounding)) >= limits["live"] else None


def _ends(series: Series) -> tuple[float, float]:
    """Mean of the first and of the last half."""
    half = len(series) // 2
    return float(np.mean(series.values[:half])), float(np.mean(series.values[half:]))


def _others(found: Mapping[str, Stats], name: str) -> float:
    """Largest absolute value that any other component reaches; 0 without another."""
    sizes = [size for other, stats in found.items() if other != name and (size := largest(stats)) is not None]
    return max((float(size.values.max()) for size in sizes), default=0.0)


def _towering(name: str, stats: Stats, others: float, limits: Limits) -> Hit | None:
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
    always = share == 1.0
    return Hit(
        f"Reward component {name} is {value:g} at {counts.max()} of {len(mean)} steps; no other component exceeds {others:.3g}",
        "info" if always else "warning",
        (evidence(mean, 0, -1, value=value, where={"component": name}),),
        cause="The component is constant: it makes the reward look large, and cancels against any baseline."
        if always
        else "The component is constant at most steps, and so large that what varies hardly shows in the reward.",
        suspect="component-constant-and-large",
    )


@rule(
    "RLD413", "reward-component-idle",
    severity="error",
    optional=(COMPONENT, "reward.mean", "reward.std"),
    limits={
        "rows": 0.9, "near": 0.02, "steps": 5, "responses": 128, "weight": 0.2, "certain": 24, "certain_responses": 512,
        "since": 3, "chance": 1e-4, "fall": 0.1,
    },
    cause="A component at 0 is dead: never earned, or never computed. Another value is saturated: earned by every response, or "
    "constant by design.",
    advice=(
        "Score by hand a few stored responses that should earn the component.",
        "Drop a component that is always earned, or ask more for it; give partial credit for one that is never earned.",
    ),
    avoids=(
        "A component that is rarely, but sometimes earned.",
        "All components at once: rule reward-flatline.",
        "A component whose weight is not known to matter: info.",
    ),
    source="Public runs in which one or two of five format rewards are 0 at every step",
)  # fmt: skip
def reward_component_idle(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """A component of the reward never changes, so that nothing is learned from it.

    Often it does not matter: a strict format that no response meets, or one that every response meets. But a component that
    was meant to teach something and is 0 at every step (a parser that never matches, an exception that is swallowed) is a
    hole that the sum of the others hides.

    A component is dead if its mean is 0 at every step, and saturated if it is one value at `rows` of the steps and at no
    step further below it than `near` of it; over at least `steps` steps, or two with `responses` responses. It is info; a dead
    component is a warning if its weight is configured and at least `weight` of all weights, over `certain` steps or
    `certain_responses` responses or more. If all components stand still, the reward does: rule reward-flatline.

    A component that varied within steps and is one value for every response of the last `since` steps or more, though that is
    less likely than `chance` by the steps before, stopped being computed. It is an error if the mean reward falls with it by at
    least `fall` of its spread within a step, else a warning. One that came near its largest value before is saturated.
    """
    found = components(view)
    if (skip := _unjudged(found, limits)) and not _many(found, limits):
        yield skip
        return
    stopped = [hit for name, stats in found.items() if (hit := stopped_at(view, name, stats, limits)) is not None]
    yield from stopped
    idle = {name: level for name, stats in found.items() if (level := _idle(stats, limits)) is not None}
    if not idle or len(idle) == len(found):
        return
    missed = {name: level for name, level in idle.items() if level == 0.0 and _counts(view, name, found[name], limits)}
    for names, severity in ((missed, "warning"), ({name: idle[name] for name in idle if name not in missed}, "info")):
        if names:
            yield _told(found, names, weighed=severity == "warning")


def _many(found: Mapping[str, Stats], limits: Limits) -> bool:
    """Whether every component was recorded for enough responses at two steps or more."""
    means = [stats.get("mean") for stats in found.values()]
    return bool(means) and all(mean is not None and _enough(mean, limits) for mean in means)


def _enough(mean: Series, limits: Limits) -> bool:
    return len(mean) >= limits["steps"] or (len(mean) >= _FEW and int(mean.counts.sum()) >= limits["responses"])


def _idle(stats: Stats, limits: Limits) -> float | None:
    """The value of a component that is (nearly) the same for every response of the run; None if it varies."""
    mean, spread = stats.get("mean"), stats.get("std")
    if mean is None or not _enough(mean, limits):
        return None
    if not mean.values.any():
        return None if spread is not None and float(spread.values.max()) > 0.0 else 0.0
    values, counts = np.unique(mean.values, return_counts=True)
    level = float(values[np.argmax(counts)])
    if counts.max() < limits["rows"] * len(mean) or float(np.max(np.abs(mean.values - level))) > limits["near"] * abs(level):
        return None
    constant = counts.max() == len(mean)
    if spread is not None and float(np.median(spread.values)) > 0.0:
        return None
    return level if constant or level == float(values[-1]) else None


def _counts(view: View, name: str, stats: Stats, limits: Limits) -> bool:
    """Whether the configuration gives the component a weight that matters, and it was seen for long enough."""
    weights = view.config.reward_weights or {}
    total = sum(abs(weight) for weight in weights.values())
    mean = stats["mean"]
    certain = len(mean) >= limits["certain"] or int(mean.counts.sum()) >= limits["certain_responses"]
    return total > 0 and abs(weights.get(name, 0.0)) >= limits["weight"] * total and certain


def _told(found: Mapping[str, Stats], names: Mapping[str, float], *, weighed: bool) -> Hit:
    named = ", ".join(f"{name} ({value:g})" for name, value in names.items())
    weight = " although the configuration gives it weight" if weighed else ""
    return Hit(
        f"Reward component{'s' if len(names) > 1 else ''} {named} never change{'' if len(names) > 1 else 's'}{weight}",
        "warning" if weighed else "info",
        tuple(evidence(found[name]["mean"], 0, -1, value=value, where={"component": name}) for name, value in names.items()),
        cause=_dead(found, names) if not any(names.values()) else None,
        unchecked=() if weighed or all(names.values()) else ("whether it should be earned: config.reward_weights",),
        suspect="component-saturated" if all(names.values()) else "component-dead",
    )


def _dead(found: Mapping[str, Stats], names: Mapping[str, float]) -> str:
    listed, means = ", ".join(names), [found[name]["mean"] for name in names]
    return f"{listed} is 0 for {items(means[0], 'response')}: never earned, or never computed."
