"""The reward as a series: sudden shifts of level and spread, and rewards that never differ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import fresh, trend, turning
from rl_doctor.rules.reading import (
    KL_REFERENCE,
    PROGRESS,
    REWARD,
    evidence,
    first_of,
    lacking,
    progress,
    too_short,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View
from rl_doctor.schema import PREFERENCE

_UNGROUPED = frozenset({"gae", "reinforce", "reinforce_plus_plus", "remax"})
_SOURCES = "data.source_change"
_EQUAL = "group.zero_std_frac"
_FILTERED = 0.02
"""Share of groups without variance that dynamic sampling leaves, at most."""
_SHORT = 100
_PAIRED = "pref.paired_frac"
_SPREAD = ("reward.std", "reward.spread", "group.std_mean")


def _of_preferences(view: View) -> Skip | None:
    """Why the mean reward of training on preferences is not judged; None where the policy's own samples are rewarded."""
    algorithm = (view.info.algorithm or "").lower()
    paired = view.get(_PAIRED)
    if algorithm in PREFERENCE or (not algorithm and paired is not None and float(np.median(paired.values)) > 0.5):
        return Skip("config", "the reward is that of both sides of a pair: training parts them, and their mean may go anywhere")
    return None


def _near(values: trend.Floats, index: int, threshold: float = 5.0) -> bool:
    """Whether a series jumps within two points of ``index``."""
    found = trend.jump(values, threshold)
    return found is not None and abs(found.index - index) <= 2


def _company(view: View, series: Series, index: int) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """What else changed at the same step: the policy (in words), or nothing; what is ruled out, and what could not be checked."""
    ruled_out: list[str] = []
    unchecked: list[str] = []
    step = int(series.steps[index])
    policy = [found for name in ("policy.entropy", *KL_REFERENCE[:1], "length.mean") if (found := view.get(name)) is not None]
    for found in policy:
        if len(found) >= trend.SHORTEST and _near(found.values, int(np.searchsorted(found.steps, step))):
            words = f"The policy changed at the same step ({found.metric} jumps too): weights that were reloaded, or "
            "a broken update."
            return words, (), ()
    if policy:
        ruled_out.append(f"a policy that changed at once: {', '.join(found.metric for found in policy)} does not jump there")
    else:
        unchecked.append("a policy that changed at once: entropy")
    if view.get(_SOURCES) is None:
        unchecked.append("other data from that step on: data_source")
    else:
        ruled_out.append("other data from that step on: the mixture of data sources is the same")
    return None, tuple(ruled_out), tuple(unchecked)


def _other_data(view: View, series: Series, index: int) -> bool:
    """Whether the mixture of data sources changes within two steps of ``index``."""
    found = view.get(_SOURCES)
    if found is None:
        return False
    low, high = series.steps[max(index - 2, 0)], series.steps[min(index + 2, len(series) - 1)]
    around = (found.steps >= low) & (found.steps <= high)
    return bool(np.any(found.values[around] > float(np.median(found.values)) + 0.3))


def _changed(view: View) -> str:
    """The cause of a reward that changed by itself: how bad it is depends on whether the baseline changes with it."""
    return "reward-shift-hits-baseline" if view.config.adv_estimator in _UNGROUPED else "reward-function-changed"


def _at_once(values: trend.Floats, z: float) -> trend.Jump | None:
    """A lasting jump, a fall in a short series, or a jump that is a few points old."""
    found = trend.jump(values, z)
    if found is None and len(values) < _SHORT:
        found = turning.abrupt_fall(values)
    return found or fresh.jump(values)


def _clear(values: trend.Floats, spread: float, limits: Limits) -> trend.Jump | None:
    """A jump that is larger than what single points scatter by; None if there is none."""
    found = _at_once(values, limits["z"])
    if found is None or len(values) >= _SHORT:
        return found
    apart = limits["apart"] * (2.0 / 3.0 if abs(found.size) >= limits["large"] * max(abs(found.before), spread) else 1.0)
    return found if turning.stands_out(values, found.index, apart) else None


def _rescaled(values: trend.Floats, limits: Limits) -> trend.Jump | None:
    """A jump by a factor, of a reward above 0 throughout whose scatter grows or shrinks with it; None if there is none."""
    if not values.size or values.min() <= 0.0:
        return None
    logs = np.log(values)
    found = trend.jump(logs, limits["z"]) or fresh.jump(logs)
    if found is None or abs(found.size) < max(math.log(limits["factor"]), limits["learning"] * trend.noise(logs)[0]):
        return None
    if len(values) < _SHORT and not turning.stands_out(logs, found.index, limits["apart"] * 2.0 / 3.0):
        return None
    return replace(found, before=math.exp(found.before), after=math.exp(found.after))


def _level(values: trend.Floats, t: float) -> trend.Jump | None:
    """A fall of the level that many points together show; of a long run its end is looked at, with a larger margin."""
    if len(values) < _SHORT:
        return turning.level_fall(values, t)
    skipped = len(values) - _SHORT // 2
    found = turning.level_fall(values[skipped:], 1.5 * t)
    return None if found is None else replace(found, index=found.index + skipped)


def _other_prompts(view: View, series: Series, index: int) -> bool:
    """Whether data sources or the choice of prompts change within two steps of ``index``."""
    return _other_data(view, series, index) or _other_groups(view, series, index)


def _other_groups(view: View, series: Series, index: int) -> bool:
    """Whether groups without variance come or go at ``index`` while rewards keep their range: another choice of prompts."""
    equal, low, high = view.get(_EQUAL), view.get("reward.min"), view.get("reward.max")
    if equal is None or low is None or high is None:
        return False
    step = int(series.steps[index])
    sides = []
    for found, take in ((equal, np.mean), (low, np.min), (high, np.max)):
        before, after = found.values[found.steps < step][-10:], found.values[found.steps >= step][:10]
        if before.size < 3 or after.size < 3:
            return False
        sides.append((float(take(before)), float(take(after))))
    few, many = sorted(sides[0])
    return few <= _FILTERED and many >= 10.0 * _FILTERED and all(was == now for was, now in sides[1:])


@rule(
    "RLD401", "reward-drift",
    severity="error",
    optional=(
        *REWARD, "reward.std", "reward.max", "reward.min", _EQUAL, _SOURCES, "policy.entropy", *KL_REFERENCE[:1], "length.mean",
        "reward.component.", _PAIRED,
    ),
    limits={"z": 7.0, "material": 0.2, "learning": 10.0, "apart": 3.0, "large": 0.5, "levels": 3.9, "factor": 4.0},
    cause="The reward function or its server changed (new version, other scale, a fallback value), or other prompts came in.",
    advice=(
        "Compare the reward of a few stored responses from before the step with what the reward function gives them now.",
        "Look for a restart of the reward server, a new version of it, or a change of the prompt mixture at that step.",
        "With a learned or global baseline, pause until it is explained: every advantage carries the shift.",
    ),
    avoids=(
        "Learning, however fast, that takes more than a few steps.",
        "A spike that is over after a few steps.",
        "A shift that coincides with a change of data source, or with the begin or end of dynamic sampling.",
        "Training on preferences, in which the implicit reward of both sides may fall.",
    ),
    source="Public reports on reward servers replaced in mid-run; no peer tool reports it",
)  # fmt: skip
def reward_drift(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The mean reward jumps from one step to the next and stays there, or falls over the run.

    Policies improve over many steps. A level that is another from one step on is usually another reward. Advantages that are
    normalised within groups do not feel a common shift, but everything else that is read from the reward does; with a fixed
    or learned baseline the shift goes straight into every advantage.

    Two lines are fitted before and after every step; their distance is the jump, whatever the trend is. It fires if it is `z`
    times the run's own typical jump, done within three steps, kept, and at least `material` of the larger of the level before
    and the standard deviation of the reward within a step. Below 100 steps a fall also counts that is done in one step and
    stays, and the jump must be `apart` times any difference of neighbours elsewhere (two thirds of that if it is `large` on the
    same scale). A fall that single steps hide counts if the means of up to 24 steps before and of those after it, 4 at least,
    lie `levels` standard errors apart, and two levels fit clearly better than a line. A rise may be fast learning, unless it
    is known to lead beyond what single responses earned before, and must be `learning` times the noise of the mean. A reward
    above 0 throughout is looked at on the logarithm too, where a jump by `factor` counts whose noise is of another size after
    it: another unit. A warning
    where the baseline is the group's, an error where it is not (gae, reinforce and the like); info once the level is back.

    A reward that falls over many steps is no jump, but as little what training is for: it is a warning if the late window is
    below the early one by `z` standard errors and by twice as much as is material, and the mixture of data sources never
    changed.
    """
    series = first_of(view, *REWARD)
    if series is None:
        yield lacking(view, *REWARD)
        return
    if skip := _of_preferences(view) or too_short(series):
        yield skip
        return
    inside = view.get("reward.std")
    spread = 0.0 if inside is None else float(np.median(inside.values))
    rescaled = _rescaled(series.values, limits)
    sharp = rescaled or _clear(series.values, spread, limits)
    found = sharp or _level(series.values, limits["levels"])
    if found is None:
        yield from _falls(view, series, spread, limits)
        return
    scale = max(abs(found.before), spread)
    if abs(found.size) < limits["material"] * scale or _other_prompts(view, series, found.index):
        return
    scatter = max(trend.noise(part)[0] for part in (series.values, series.values[: found.index]))
    if rescaled is None and _may_be_learned(view, series, found) and found.size < limits["learning"] * scatter:
        return
    cause, ruled_out, unchecked = _company(view, series, found.index)
    estimator = view.config.adv_estimator
    severity: Severity = "error" if estimator in _UNGROUPED else "warning"
    if found.recovered:
        severity = "info"
    moved = _component(view, series, found)
    lost = "" if moved is None or cause else _lost(view, moved, series, found)
    if estimator is None:
        unchecked = (*unchecked, "whether the baseline is the group's: config.adv_estimator")
    elif estimator not in _UNGROUPED:
        ruled_out = (*ruled_out, f"a shift in the advantages: {estimator} subtracts the group's own mean")
    yield Hit(
        f"Mean reward {'rose' if found.size > 0 else 'fell'} at once from {found.before:.3g} to {found.after:.3g} at step "
        f"{series.steps[found.index]}, {found.z:.0f} times "
        + ("the typical step of this run" if sharp else "its standard error")
        + (f"; the component {moved} moves with it" if moved else "")
        + (", and came back" if found.recovered else ""),
        severity,
        (
            evidence(
                series, found.index, -1, value=found.after, baseline=found.before,
                limit=found.before + math.copysign(limits["material"] * scale, found.size),
                where={"component": moved} if moved else None,
            ),
        ),
        cause=lost or cause,
        ruled_out=("learning: the change is done within three steps", *ruled_out),
        unchecked=unchecked,
        suspect="policy-changed-at-once" if cause else "component-earned-less" if lost else _changed(view),
    )  # fmt: skip


def _lost(view: View, name: str, series: Series, found: trend.Jump) -> str:
    """Words for a component that is earned less often from the fall on, at the values it had before; "" for another."""
    if found.size > 0 or view.config.adv_estimator in _UNGROUPED:
        return ""
    step = series.steps[found.index]
    sides = []
    for stat, take in (("mean", np.mean), ("max", np.max), ("min", np.min)):
        part = view.get(f"reward.component.{name}.{stat}")
        if part is None:
            return ""
        sides.append([float(take(values)) for values in (part.values[part.steps < step], part.values[part.steps >= step])])
    (before, after), *ends = sides
    if after >= before or any(abs(was - now) > 1e-9 * max(abs(was), 1.0) for was, now in ends):
        return ""
    return (
        f"{name} is earned less often from step {step} on ({before:.3g} before, {after:.3g} since), at the same values: its "
        "verifier loses verdicts, or is another one."
    )


def _may_be_learned(view: View, series: Series, found: trend.Jump) -> bool:
    """Whether the reward rose, and to a level that single responses reached before, as far as was recorded."""
    high = view.get("reward.max")
    if high is None or found.size < 0:
        return found.size > 0
    earlier = high.values[high.steps < series.steps[found.index]]
    return earlier.size > 0 and float(earlier.max()) >= found.after


def _falls(view: View, series: Series, spread: float, limits: Limits) -> Iterator[Hit]:
    """A reward that ends far below its start, without a jump."""
    moved = trend.change(series.values)
    scale = max(abs(moved.early.center), spread)
    if moved.z > -limits["z"] or moved.difference > -2.0 * limits["material"] * scale:
        return
    begin = trend.onset(series.values, moved.early, rising=False, share=0.3)
    sources = view.get(_SOURCES)
    if sources is not None and bool(np.any(sources.values > float(np.median(sources.values)) + 0.3)):
        return
    yield Hit(
        f"Mean reward falls from {moved.early.center:.3g} to {moved.late.center:.3g}, over many steps, since step "
        f"{series.steps[begin]}",
        "warning",
        (
            evidence(
                series, begin, -1, value=moved.late.center, baseline=moved.early.center,
                limit=moved.early.center - 2.0 * limits["material"] * scale,
            ),
        ),
        cause="The policy gets worse at what it is rewarded for: updates that are too large, advantages of the wrong sign or of "
        "other rows, a KL or entropy term that outweighs the reward, or prompts that get harder.",
        ruled_out=("a reward function that was replaced: the change takes many steps",),
        unchecked=("other data: data_source",) if sources is None else (),
        suspect="policy-gets-worse",
    )  # fmt: skip


def _component(view: View, series: Series, found: trend.Jump) -> str | None:
    """The reward component that jumps at the same step, if one does."""
    for name, part in view.named("reward.component.").items():
        stem, _, stat = name.removeprefix("reward.component.").rpartition(".")
        if stat != "mean" or len(part) < trend.SHORTEST:
            continue
        own = trend.jump(part.values) or turning.level_fall(part.values)
        if own is not None and abs(int(part.steps[own.index]) - int(series.steps[found.index])) <= 2:
            return stem
    return None


@rule(
    "RLD402", "reward-variance-shift",
    severity="error",
    optional=(*_SPREAD, *PROGRESS, _SOURCES, _PAIRED),
    limits={"factor": 2.0, "z": 7.0, "binary": 1.3},
    cause="The reward was rescaled, a component was switched on or off, or other prompts came in.",
    advice=(
        "Compare the reward of a few stored responses from before the step with what the reward function gives them now.",
        "With a fixed clip range of rewards or values, check that the new scale fits into it.",
    ),
    avoids=("A 0/1 reward, whose spread follows from its mean.", "Spread that shrinks as the reward reaches its ceiling."),
    source="Reproduced by rescaling the reward in mid-run",
)  # fmt: skip
def reward_variance_shift(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The spread of the reward within a step jumps by a factor and stays there.

    Normalised advantages hide a new scale of the reward, values and unnormalised advantages do not.

    The logarithm of the standard deviation of the reward over a generation batch (or, where that was not logged, of its mean over
    groups) is searched for a sudden lasting jump (as
    in rule reward-drift, `z` times what the series shows elsewhere) of at least `factor`.
    Where the reward has two values, the spread follows from the mean; a jump that the mean explains within `binary` times is
    left out. A warning where the baseline is the group's, an error where it is not; info once the spread is back.
    """
    series = first_of(view, *_SPREAD)
    if series is None:
        yield lacking(view, *_SPREAD)
        return
    if skip := _of_preferences(view) or too_short(series):
        yield skip
        return
    usual = float(np.median(series.values))
    if usual <= 0.0:
        yield Skip("data", "the reward has no spread at most steps")
        return
    values = np.log(np.maximum(series.values, 0.05 * usual))
    found = trend.jump(values, limits["z"]) or fresh.jump(values)
    if found is None or abs(found.size) < math.log(limits["factor"]) or _other_data(view, series, found.index):
        return
    if _follows_mean(view, series, found, limits["binary"]) or (found.size < 0 and progress(view).good):
        return
    before, after = math.exp(found.before), math.exp(found.after)
    where = " within groups" if series.metric == _SPREAD[-1] else ""
    yield Hit(
        f"Standard deviation of the reward{where} {'grew' if found.size > 0 else 'fell'} at once from {before:.3g} to "
        f"{after:.3g} at step "
        f"{series.steps[found.index]}" + (", and came back" if found.recovered else ""),
        "info" if found.recovered else "error" if view.config.adv_estimator in _UNGROUPED else "warning",
        (
            evidence(
                series,
                found.index,
                -1,
                value=after,
                baseline=before,
                limit=before * limits["factor"] ** math.copysign(1, found.size),
            ),
        ),
        ruled_out=(
            "convergence: the change is done within three steps",
            "a 0/1 reward whose mean moved: the mean does not explain it",
        ),
        unchecked=("other data from that step on: data_source",) if view.get(_SOURCES) is None else (),
        suspect=_changed(view),
    )


def _follows_mean(view: View, series: Series, found: trend.Jump, tolerance: float) -> bool:
    """Whether a two-valued reward with the run's means would have the same spread before and after.

    Its values are 0 and 1 where they are not known. A mean over groups is smaller than the spread of all by a factor that is the
    same on both sides.
    """
    mean, low, high = view.get("reward.mean"), view.get("reward.min"), view.get("reward.max")
    if mean is None:
        return False
    floor, top = (0.0, 1.0) if low is None or high is None else (float(low.values.min()), float(high.values.max()))
    if float(mean.values.min()) < floor or float(mean.values.max()) > top:
        return False
    expected = np.sqrt(np.maximum((mean.values - floor) * (top - mean.values), 0.0))
    _, here, there = np.intersect1d(series.steps, mean.steps, return_indices=True)
    split = here < found.index
    if not split.any() or split.all():
        return False
    before, after = (
        float(np.median(series.values[here][side])) / max(float(np.median(expected[there][side])), 1e-12)
        for side in (split, ~split)
    )
    ratios = (before, after) if series.metric == _SPREAD[0] else (after / max(before, 1e-12),)
    return all(1 / tolerance <= ratio <= tolerance for ratio in ratios)
