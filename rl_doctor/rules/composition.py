"""The reward against what it is made of: the weighted sum of its components, and the score."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit
from rl_doctor.rules.components import COMPONENT, components
from rl_doctor.rules.reading import logged
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach
from rl_doctor.rules.stretch import joined, stretch
from rl_doctor.rules.view import View

_SUM = "composition.sum"
_WEIGHTED = "composition.weighted"


@rule(
    "RLD414", "reward-not-its-parts",
    severity="error", since="0.2.0",
    optional=("composition.", "reward.score_off", "reward.score_sorted_off", "reward.abs_deviation", "reward.mean", COMPONENT),
    limits={"exact": 1e-3, "off": 0.05, "steps": 3, "rows": 48, "before": 0.6, "logged": 0.02, "log_steps": 8},
    cause="What the advantage is computed from is not what the reward functions gave: weights that are left out, a part that is "
    "not recorded, or rows that were moved.",
    advice=(
        "Recompute the reward of one batch from its components and weights, row by row.",
        "Check every shuffle, filter and balance step between the reward functions and the advantage: all columns must move.",
        "Record every penalty that enters the reward as a component of its own.",
    ),
    avoids=(
        "A reward that never was the sum of what is recorded: a penalty, a KL term or a normaliser of its own.",
        "A log's last digit.",
        "A binary reward that has the same sum by chance: the rows decide, not the mean.",
    ),
    source="Public issue threads: rewards that keep the old order after a shuffle; logged rewards without their weights",
)  # fmt: skip
def reward_not_its_parts(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The reward is not the sum of its recorded components, though it should be.

    Three things show. The rewards are the right ones but stand in other rows: nothing in any mean changes, and every advantage
    is noise. The configured weights are left out: another objective is trained (or only logged). Or the reward was the sum of
    its components until some step and is not from then on: something entered that is not recorded.

    The mean difference of reward and sum (by the configured weights, where there are some), and of reward and score, is taken
    over the mean distance of the reward from its median, per step. Below `exact` they are equal, above `off` they are not. With
    both sides sorted, equal ones at `steps` steps with `rows` responses mean that rows were moved. A plain sum that is equal
    while the weighted one is not means that the weights are left out. A sum that was equal at `before` of the earlier steps and
    is not any more means a part that is not recorded. In a log the means are held against each other, over `log_steps` rows,
    within `logged`; there only left out weights are told.
    """
    measured = held_apart = False
    for name, metrics in _pairs(view):
        found = joined(*(view.get(metric) for metric in metrics))
        if found is None:
            continue
        measured = True
        off, ordered, size = found
        hit = _moved(name, off, ordered, size, limits) or _unweighted(view, off, limits) or _another(name, off, size, limits)
        if hit is not None:
            yield hit
            return
        held_apart = held_apart or float(np.median(_relative(found[0], found[2]))) > limits["exact"]
    if not measured:
        yield from _of_a_log(view, limits)
    elif held_apart and view.config.kl_in_reward:
        yield Skip("config", "the reward holds the KL penalty, which is none of its components")


def _pairs(view: View) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """What the reward is held against, and the metrics: the difference, the same sorted, and the spread of the reward."""
    stem = _WEIGHTED if view.get(f"{_WEIGHTED}_off") is not None else _SUM
    yield "the sum of its components", (f"{stem}_off", f"{stem}_sorted_off", "composition.spread")
    yield "the score", ("reward.score_off", "reward.score_sorted_off", "reward.abs_deviation")


def _relative(off: Series, size: Series) -> NDArray[np.float64]:
    """Difference over the spread of the reward; where it has none, over a millionth, so that only equal ones count."""
    usual = float(np.median(size.values)) or 1e-6
    return off.values / np.maximum(size.values, 1e-3 * usual)


def _moved(name: str, off: Series, ordered: Series, size: Series, limits: Limits) -> Hit | None:
    marked = (_relative(off, size) > limits["off"]) & (_relative(ordered, size) <= limits["exact"])
    found = stretch(off, marked, limits["off"], steps=int(limits["steps"]), items=int(limits["rows"]))
    if found is None:
        return None
    return Hit(
        f"The rewards are those of other rows, {found.when}: row by row the reward differs from {name} by {found.value:.3g} on "
        "average, and all the same values occur in the batch",
        "error",
        (found.evidence(),),
        cause="Rewards and the rest of the row were ordered differently: a shuffle, filter or balance step moved one of the two.",
        ruled_out=("another reward: the same values occur, in other rows",),
        suspect="rewards-of-other-rows",
    )


def _unweighted(view: View, off: Series, limits: Limits) -> Hit | None:
    if off.metric != f"{_WEIGHTED}_off":
        return None
    both = joined(off, view.get(f"{_SUM}_off"), view.get("composition.spread"))
    if both is None or len(both) < 3:
        return None
    off, plain, size = both
    marked = (_relative(off, size) > limits["off"]) & (_relative(plain, size) <= limits["exact"])
    found = stretch(off, marked, limits["off"], steps=int(limits["steps"]), items=int(limits["rows"]))
    return None if found is None else _weights(view, found, found.value)


def _weights(view: View, found: Breach, value: float) -> Hit:
    told = ", ".join(f"{name} {weight:g}" for name, weight in sorted((view.config.reward_weights or {}).items()))
    return Hit(
        f"The reward is the plain sum of its components, {found.when}; by the configured weights ({told}) it would be "
        f"{value:.3g} away",
        "error" if not logged(found.series) else "warning",
        (found.evidence(value=value),),
        cause="reward_weights are left out of the reward.",
        unchecked=("whether only the logged number lacks them: reward",) if logged(found.series) else (),
        suspect="reward-weights-ignored",
    )


def _another(name: str, off: Series, size: Series, limits: Limits) -> Hit | None:
    share = _relative(off, size)
    marked = share > limits["off"]
    found = stretch(off, marked, limits["off"], steps=int(limits["steps"]), items=int(limits["rows"]))
    if found is None:
        return None
    before = share[off.steps < found.first]
    if before.size < limits["steps"] or float(np.mean(before <= limits["exact"])) < limits["before"]:
        return None
    return Hit(
        f"The reward is no longer {name}, {found.when}: they differ by {found.value:.3g} on average, and not at all before",
        "warning",
        (found.evidence(),),
        cause="Something entered the reward that is not recorded as a part of it.",
        ruled_out=("rows that were moved: sorted they differ as well",),
        suspect="reward-has-unrecorded-part",
    )


def _of_a_log(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    reward, weights = view.get("reward.mean"), view.config.reward_weights
    means = {name: stats["mean"] for name, stats in components(view).items() if "mean" in stats}
    if reward is None or not means:
        yield Skip("column", "no reward components are recorded", ("reward/<component>",))
        return
    if not weights or not all(name in weights for name in means) or len(means) < len(weights):
        yield Skip("config", "the weights of the components are not known", ("config.reward_weights",))
        return
    found = joined(reward, *means.values())
    if found is None or len(found[0]) < limits["log_steps"]:
        yield Skip("length", "inconclusive: too few rows have the reward and all of its components")
        return
    whole, parts = found[0], found[1:]
    plain = np.sum([part.values for part in parts], axis=0)
    summed = np.sum([weights[name] * part.values for name, part in zip(means, parts, strict=True)], axis=0)
    gap = np.abs(summed - plain)
    plainly = np.abs(whole.values - plain) <= limits["logged"] * gap
    marked = plainly & (gap > 0.1 * max(float(np.median(gap)), 1e-12))
    told = stretch(whole, marked, limits["logged"], steps=int(limits["log_steps"]), items=0)
    if told is not None:
        yield _weights(view, told, float(np.mean(np.abs(whole.values - summed)[told.marked])))
