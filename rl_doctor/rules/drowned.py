"""A component of the reward that decides alone which response of a group is reinforced, although others vary too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules.reading import logged, times
from rl_doctor.rules.registry import Limits
from rl_doctor.rules.spans import Breach, at, pooled
from rl_doctor.rules.stretch import stretch
from rl_doctor.rules.view import View

Stats = Mapping[str, Series]
_HELD: Final = 0.95
"""Share of the variance that a step of the stretch has to show; single steps are few groups."""
_STEPS: Final = 4
_OFF: Final = 0.05
_NOTHING: Final = 1e-8


def largest(stats: Stats) -> Series | None:
    """Largest absolute value per step, or the absolute mean."""
    low, high = stats.get("min"), stats.get("max")
    if low is not None and high is not None and len(low) == len(high):
        return Series(high.metric, high.unit, high.steps, np.maximum(np.abs(low.values), np.abs(high.values)), high.counts)
    mean = stats.get("mean")
    return None if mean is None else Series(mean.metric, mean.unit, mean.steps, np.abs(mean.values), mean.counts)


def drowned(view: View, found: Mapping[str, Stats], limits: Limits) -> Iterator[Hit]:
    """A component that holds nearly all the within-group variance of the reward although others vary too.

    Args:
        view: the run, for its weights.
        found: the components: component -> statistic -> series.
        limits: of the rule.
    """
    for name, stats in found.items():
        held = _held(name, stats, view, limits)
        if held is None:
            continue
        own = _spread(stats, held)
        others = {other: spread for other, theirs in found.items() if other != name and (spread := _alive(theirs, held, limits))}
        if not others or not own > 0.0:
            continue
        raw = min(_range(stats, held) / _range(found[other], held) for other in others)
        felt = min(_felt(view, held.value, (name, stats), (other, found[other]), held) for other in others)
        weighed = all(_weighed(view, name, other) for other in others)
        outside = not weighed and held.value > 1.0 - _NOTHING  # the others do not enter the reward at all: they are watched
        if outside or felt < limits["reach"] or (raw < limits["range"] and not (weighed and felt >= limits["scale"])):
            continue
        rest = ", ".join(f"{other} varies {times(own / spread)} less ({spread:.2g})" for other, spread in others.items())
        yield Hit(
            f"Reward component {name} holds {held.value:.1%} of the within-group variance, {held.when}: it varies by {own:.3g} "
            f"(standard deviation), and {rest}{_unlike_weights(view)}",
            "warning",
            (held.evidence(where={"component": name}),),
            ruled_out=("other components that are constant: they vary within the batch",),
            suspect="component-drowns-others",
        )


def _held(name: str, stats: Stats, view: View, limits: Limits) -> Breach | None:
    """The stretch over which a component has nearly all of what the advantage sees; None if it has not, or over too little."""
    share = stats.get("explained")
    weights = view.config.reward_weights or {}
    if share is None and (name in weights or view.get("reward.std") is None):
        share = stats.get("variance_share")
    if share is None:
        return None
    limit = limits["share"]
    steps, items = (limits["steps"], 0) if logged(share) else (_STEPS, limits["responses"])
    found = stretch(share, share.values >= _HELD, limit, steps=int(steps), items=int(items))
    return found if found is not None and found.last == int(share.steps[-1]) and found.value >= limit else None


def _spread(stats: Stats, held: Breach) -> float:
    spread = at(stats.get("std"), held.series.steps[held.marked])
    return math.nan if spread is None else pooled(spread)


def _range(stats: Stats, held: Breach) -> float:
    """From the smallest to the largest value over the stretch, or six standard deviations where they were not recorded."""
    low, high = (at(stats.get(end), held.series.steps[held.marked]) for end in ("min", "max"))
    if low is None or high is None:
        return 6.0 * _spread(stats, held)
    return float(high.values.max() - low.values.min())


def _alive(stats: Stats, held: Breach, limits: Limits) -> float:
    """Standard deviation of a component that varies at enough of the steps; 0 for another."""
    spread, size = at(stats.get("std"), held.series.steps[held.marked]), largest(stats)
    if spread is None:
        return 0.0
    rounding = 1e-6 * (0.0 if size is None else float(size.values.max()))
    return pooled(spread) if float(np.mean(spread.values > rounding)) >= limits["live"] else 0.0


def _felt(view: View, share: float, large: tuple[str, Stats], small: tuple[str, Stats], held: Breach) -> float:
    """How many times the range of one component in the reward is that of the other.

    By the configured weights, where the reward follows them. Else by what is left of the variance, which the other has at
    most, and by how large the range of each is against its standard deviation.
    """
    ranges = [_range(stats, held) for _, stats in (large, small)]
    if _weighed(view, large[0], small[0]):
        weights = view.config.reward_weights or {}
        mine, theirs = (abs(weights[name]) * reach for (name, _), reach in zip((large, small), ranges, strict=True))
        return mine / theirs if theirs > 0.0 else math.inf
    left = max(1.0 - share, 1e-12)
    shapes = [reach / _spread(stats, held) for (_, stats), reach in zip((large, small), ranges, strict=True)]
    return math.sqrt(share / left) * shapes[0] / shapes[1]


def _weighed(view: View, *names: str) -> bool:
    """Whether the weights of these components are configured, and the reward follows them as far as was recorded."""
    weights = view.config.reward_weights or {}
    return all(weights.get(name) for name in names) and not _unlike_weights(view)


def _unlike_weights(view: View) -> str:
    """Words for a reward that is not the sum of its components by the configured weights; "" where it is, or is not known."""
    off, size = view.get("composition.weighted_off"), view.get("composition.spread")
    if off is None or size is None or not pooled(off) > _OFF * pooled(size):
        return ""
    return f"; the recorded reward is not their sum by the configured weights ({pooled(off):.3g} away on average)"
