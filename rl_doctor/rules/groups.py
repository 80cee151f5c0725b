"""Groups of samples of one prompt: signal, structure, advantages."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules import trend
from rl_doctor.rules.advantage import GROUPED
from rl_doctor.rules.reading import (
    PROGRESS,
    REWARD,
    TRUNCATION,
    counted,
    evidence,
    first_of,
    items,
    lacking,
    logged,
    progress,
    span,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_SPREADS = ("group.std_mean", "reward.spread", "reward.std")
_BROKEN_REWARDS = ("numerics.missing_reward_frac", "numerics.infinite_reward_frac")
_CUT = "length-limit-too-short"
_WITHOUT_STD = frozenset({"dr_grpo", "rloo", "gae", "reinforce", "remax"})


def _few(series: Series, groups: float, steps: int = 16) -> Skip | None:
    """A skip for too few groups; a logged share counts one per step, so that many steps will do as well."""
    total = int(series.counts.sum())
    if total >= groups or len(series) >= steps:
        return None
    needed = counted(steps, "row") if logged(series) else f"{groups:.0f} groups"
    return Skip("length", f"inconclusive: {items(series, 'group')}, and {needed} are needed")


def _late_mean(series: Series) -> float:
    last = trend.late(series.values)
    part = slice(last.first, None)
    return float(np.average(series.values[part], weights=series.counts[part]))


@rule(
    "RLD407", "zero-variance-groups",
    severity="error",
    optional=("group.zero_std_frac", *_SPREADS, "group.all_max_frac", "group.all_min_frac", *PROGRESS, *TRUNCATION),
    limits={"nearly_all": 0.9, "standing": 0.75, "half": 0.5, "long": 100, "groups": 40, "cut": 0.5},
    cause="The prompts are too easy or too hard for this policy: all samples of a group are right, or all are wrong.",
    advice=(
        "Filter or resample prompts by their success rate (dynamic sampling), so that groups hold both outcomes.",
        "Raise group_size, or use partial credit, so that rare successes are seen.",
        "If nearly all are wrong, check length limit and reward function first.",
    ),
    avoids=("A run that solved its prompts: info.", "A share that eases.", "A single prompt per step."),
    source="arXiv:2503.14476, section 3.2; public runs whose gradient is exactly 0 on most steps",
)  # fmt: skip
def zero_variance_groups(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """All samples of a group have the same reward, in most groups.

    Group-relative advantages are 0 there: the compute for these groups is spent for nothing, and the effective batch shrinks
    to the rest.

    The share of such groups, each generation batch once, is an error if it is at least `nearly_all` over the whole run and
    the late window, and a warning if it is `standing` in the late window (and there or over the run by three standard errors), or
    `half` all along in a run of `long` steps whose reward does not rise. If most of them are all right and the reward rose to its
    ceiling, it is info; so it is where the mean reward is one value, which reward-flatline tells. The split into all right (the
    largest reward of the batch) and all wrong (the smallest) names the cause;
    in a batch whose rewards all lie in one half of the run's range, that half decides. Where at least `cut` of the responses are
    cut at the length limit, that is the cause. At least `groups` groups are needed.

    Where the share was not recorded but a standard deviation of the rewards was (that of the batch, or the mean of the groups'
    own), the steps at which it is 0 are those without any signal, and count only towards `nearly_all`.
    """
    series, told = view.get("group.zero_std_frac"), True
    if series is None:
        series, told = _silent_steps(view), False
    if series is None:
        yield lacking(view, "group.zero_std_frac")
        return
    if skip := _few(series, limits["groups"], 8 if (series.values >= limits["nearly_all"]).all() else 16):
        yield skip
        return
    last = trend.late(series.values)
    late_share = _late_mean(series)
    whole = float(np.average(series.values, weights=series.counts))
    reward = progress(view)
    wasted = late_share >= limits["half"] and whole >= limits["half"] and len(series) >= limits["long"]
    standing = late_share >= limits["standing"] and _surely(series, last.first, late_share, whole) >= limits["standing"]
    if not standing and not (told and wasted and reward.course != "unknown" and not reward.good):
        return
    if not told and (min(late_share, whole) < limits["nearly_all"] or _one_value(reward.series)):
        return
    right, wrong = _sides(view)
    mostly_right = right is not None and _late_mean(right) >= 0.6 * late_share
    solved = reward.good and (mostly_right or (right is None and reward.at_ceiling)) and whole < limits["nearly_all"]
    severity: Severity = "error" if whole >= limits["nearly_all"] and late_share >= limits["nearly_all"] else "warning"
    if solved or (severity == "warning" and trend.course(series.values, 0.1) == "falling"):
        severity = "info"
    cause, suspect, ruled_out, unchecked = _why_idle(view, late_share, right, wrong, limits)
    if whole >= limits["nearly_all"] and _one_value(first_of(view, *REWARD)):
        severity, cause = "info", "Every response has the same reward, in every group: reward-flatline tells."
        suspect = ""
    split = "" if right is None or wrong is None else f": {_late_mean(right):.0%} all right, {_late_mean(wrong):.0%} all wrong"
    what = "groups have no variance in their rewards" if told else f"steps have no variance in any group ({series.metric} is 0)"
    since = f"; from step {series.steps[0]} on" if severity == "error" else ""
    early_share = float(np.mean(series.values[: trend.early(series.values).n]))
    bar = "nearly_all" if severity == "error" else "standing" if standing else "half"
    yield Hit(
        f"{late_share:.0%} of the {what} ({whole:.0%} over the run, {early_share:.0%} at the start){split}; "
        f"{reward.words()}{since}",
        severity,
        (
            evidence(
                series, 0 if severity == "error" else min(_begins(series, 0.8 * late_share), last.first), -1,
                value=whole if severity == "error" else late_share, baseline=early_share, limit=limits[bar],
                share_of_steps=None if told else "0",
            ),
        ),
        cause=cause,
        ruled_out=ruled_out,
        unchecked=unchecked,
        suspect=suspect,
    )  # fmt: skip


def _surely(series: Series, first: int, late: float, whole: float) -> float:
    """The larger of the late share (from point ``first`` on) and that over the run, each less its uncertainty.

    That is three standard errors; two for a logged share, whose number of groups is not known.
    """
    one_group = bool(np.isin(series.values, (0.0, 1.0)).all())
    if logged(series) and not one_group:
        return max(whole, late - 2.0 * trend.noise(series.values)[0] / math.sqrt(len(series) - first))
    return max(_lower(late, int(series.counts[first:].sum())), _lower(whole, int(series.counts.sum())))


def _lower(share: float, number: int) -> float:
    """Lower end of Wilson's interval of three standard errors for a share of ``number`` groups."""
    squared = 9.0 / number
    return (share + squared / 2.0 - math.sqrt(squared * (share * (1.0 - share) + squared / 4.0))) / (1.0 + squared)


def _silent_steps(view: View) -> Series | None:
    """1 at each step at which no group tells its responses apart, as a standard deviation of the rewards shows; else 0."""
    found = first_of(view, *_SPREADS)
    if found is None:
        return None
    return Series(found.metric, found.unit, found.steps, (found.values == 0.0).astype(np.float64), np.ones(len(found), np.int64))


def _one_value(reward: Series | None) -> bool:
    """Whether even the mean reward never changes, which rule reward-flatline tells."""
    return reward is not None and float(np.mean(reward.values == np.median(reward.values))) >= 0.9


def _begins(series: Series, bar: float) -> int:
    """First point of the final stretch above ``bar``, single points below it left out."""
    below = np.flatnonzero(trend.running_median(series.values, 5) < bar)
    return min(int(below[-1]) + 1, len(series) - 1) if below.size else 0


def _sides(view: View) -> tuple[Series | None, Series | None]:
    """Shares of groups that are all right and all wrong, as the range of the run's rewards tells; None where nothing does."""
    right, wrong = view.get("group.all_max_frac"), view.get("group.all_min_frac")
    low, high = view.get("reward.min"), view.get("reward.max")
    if right is None or wrong is None or low is None or high is None or len(right) != len(wrong):
        return right, wrong
    floor, top = float(low.values.min()), float(high.values.max())
    if floor == top:
        return None, None
    none_right = np.isin(right.steps, high.steps[high.values < (floor + top) / 2])
    none_wrong = np.isin(right.steps, low.steps[low.values > (floor + top) / 2])
    both = right.values + wrong.values
    all_right = np.where(none_wrong, both, np.where(none_right, 0.0, right.values))
    return (
        Series(right.metric, right.unit, right.steps, all_right, right.counts),
        Series(wrong.metric, wrong.unit, right.steps, both - all_right, wrong.counts),
    )


def _why_idle(
    view: View, share: float, right: Series | None, wrong: Series | None, limits: Limits
) -> tuple[str | None, str, tuple[str, ...], tuple[str, ...]]:
    """The cause in words, its name, what is ruled out, and what could not be looked at."""
    cut = first_of(view, *TRUNCATION)
    if cut is not None and _late_mean(cut) >= limits["cut"] and (right is None or _late_mean(right) < 0.5 * share):
        return (
            f"{_late_mean(cut):.0%} of the responses are cut at the length limit, so that whole groups fail alike.",
            _CUT,
            (),
            (),
        )
    unchecked = () if cut is not None else ("responses cut at the length limit: finish_reason",)
    if right is None or wrong is None:
        if view.get("group.all_max_frac") is not None:
            return "Every response of the run has the same reward, so that no group can differ.", "", (), unchecked
        return None, "", (), ("whether these groups are all right or all wrong: reward and group", *unchecked)
    if _late_mean(right) >= 0.6 * share:
        return "The prompts are too easy for this policy: most of these groups are all right.", "prompts-too-easy", (), unchecked
    if _late_mean(wrong) >= 0.6 * share:
        out = () if cut is None else (f"responses cut at the length limit: {_late_mean(cut):.0%} are",)
        words = "The prompts are too hard, or the reward function fails: most of these groups are all wrong."
        return words, "prompts-too-hard", out, unchecked
    return None, "", (), unchecked


@rule(
    "RLD408", "near-zero-variance-groups",
    severity="warning",
    optional=("group.near_zero_std_frac",),
    limits={"share": 0.3, "groups": 40},
    cause="The rewards of a group differ by almost nothing (a length term, a rounding, a reward model's noise), and "
    "dividing by their "
    "standard deviation blows that up to advantages of ordinary size.",
    advice=(
        "Round the reward, or drop groups whose standard deviation is below the noise of the reward.",
        "Do not divide by the standard deviation (Dr. GRPO), or raise the epsilon in the denominator.",
    ),
    avoids=("Groups with exactly equal rewards: rule zero-variance-groups.", ("Estimators that do not divide by a "
    "standard deviation.")),
    source="arXiv:2503.20783, section 3.1 (difficulty bias of the standard deviation)",
)  # fmt: skip
def near_zero_variance_groups(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Rewards differ within a group, but by next to nothing.

    Rewards of .61, .60, .62 and .61 do not give advantages near 0: divided by their own standard deviation they give
    advantages of about 1. Noise is then trained on with the weight of a success.

    It fires if, in the late window, at least `share` of the groups have a standard deviation that is positive but below a
    thousandth of the range of the batch's rewards. At least `groups` groups are needed. Estimators without a standard
    deviation are skipped.
    """
    if view.config.adv_estimator in _WITHOUT_STD or view.config.adv_norm in ("none", "mean"):
        yield Skip("config", "the advantage is not divided by the group's standard deviation")
        return
    series = view.get("group.near_zero_std_frac")
    if series is None:
        yield lacking(view, "group.near_zero_std_frac")
        return
    if skip := _few(series, limits["groups"]):
        yield skip
        return
    share = _late_mean(series)
    if share < limits["share"]:
        return
    last = trend.late(series.values)
    known = view.config.adv_estimator is not None
    yield Hit(
        f"{share:.0%} of the groups have rewards that differ by less than a thousandth of the batch's range",
        "warning",
        (evidence(series, last.first, -1, value=share, limit=limits["share"]),),
        unchecked=() if known else ("whether advantages are divided by the standard deviation: config.adv_estimator",),
    )


@rule(
    "RLD409", "broken-groups",
    severity="error",
    optional=("group.size_min", "group.size_max", "group.singleton_frac", "length.aborted_frac", *_BROKEN_REWARDS),
    limits={"singletons": 0.5, "some": 0.05, "mixed": 0.5},
    cause="The group identity is not that of the prompt: an id per trajectory, or prompts and samples that were tiled "
    "in different orders.",
    advice=(
        "Give every sample of a prompt the same group id, and compute advantages by it, never by position.",
        "Check how the batch is filtered, padded and split between sampling and advantage computation.",
    ),
    avoids=("Estimators that need no groups.", "Order within the batch: groups are found by id.", ("A few groups that "
    "lost a sample.")),
    source="Public issue threads: a unique id per trajectory makes every group a group of one",
)  # fmt: skip
def broken_groups(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Groups do not have the size that they should have.

    In a group of one there is no comparison: the advantage is 0 or the raw reward, depending on the trainer. In a group that
    mixes two prompts the harder one is always wrong.

    Over all steps: a share of `singletons` groups of one sequence is an error, `some` a warning. Groups larger than
    config.group_size at `mixed` of the steps are a warning, and an error if the largest is a multiple of it; groups that are
    all smaller, or of different sizes, are a warning, or info where aborted responses explain it. Groups are counted by their
    finite rewards: steps at which a reward is NaN or infinite are left out, and non-finite tells; so is a generation batch
    within whose steps the run ends.
    """
    if view.config.adv_estimator is not None and view.config.adv_estimator not in GROUPED:
        yield Skip("config", f"{view.config.adv_estimator} does not compare samples of a group")
        return
    if view.config.group_size == 1 and view.config.adv_estimator in GROUPED:
        yield _of_one(view)
        return
    low, high, single = view.get("group.size_min"), view.get("group.size_max"), view.get("group.singleton_frac")
    if low is None or high is None or single is None:
        yield lacking(view, "group.size_min")
        return
    whole = _whole_steps(view, low)
    if not whole.any():
        if _stopped_within(view, low):
            yield Skip("length", "inconclusive: the run ends within its generation batch")
        else:
            yield Skip("data", "a reward is NaN or infinite at every step, so that groups cannot be counted")
        return
    low, high, single = (_at(series, low.steps[whole]) for series in (low, high, single))
    if view.config.group_size == 1:
        yield Skip("config", "group_size is 1")
        return
    share = float(np.average(single.values, weights=single.counts))
    if share >= limits["some"]:
        every = share >= 0.999
        yield Hit(
            f"{share:.0%} of the groups have one sequence only",
            "error" if share >= limits["singletons"] else "warning",
            (evidence(single, 0, -1, value=share, limit=limits["some"]),),
            cause="Every sequence has a group id of its own, so that nothing is compared." if every else None,
            suspect="group-id-per-response" if share >= limits["singletons"] else "samples-lost",
            unchecked=("the size that groups should have: config.group_size",) if view.config.group_size is None else (),
        )
        return
    yield from _sizes(view, low, high, limits)


def _stopped_within(view: View, low: Series) -> bool:
    """Whether the last generation batch is there in part: it is spread over several steps, and the run ends before its last."""
    minibatches, last = view.config.minibatches, view.facts.last_step
    if minibatches is None or last is None or (view.info.trainer or "custom").lower() not in {"trl", "custom"}:
        return False
    if len(low) > 1 and int(np.diff(low.steps).min()) < minibatches:  # each step holds a generation batch as a whole
        return False
    return last - int(low.steps[-1]) + 1 < minibatches


def _of_one(view: View) -> Hit:
    """What the configuration alone tells: an estimator that compares, and one sample per prompt."""
    return Hit(
        f"group_size is 1, and {view.config.adv_estimator} compares the responses to one prompt",
        "error",
        (Evidence("config.group_size", None, None, 1.0, limit=2.0, unit="sequences"),),
        cause="One response is sampled per prompt: there is nothing to compare it with.",
        suspect="one-sample-per-prompt",
    )


def _whole_steps(view: View, series: Series) -> NDArray[np.bool_]:
    """Bool per point of a series: no reward is NaN or infinite at its step, and the generation batch is there as a whole."""
    broken = [found.steps[found.values > 0] for name in _BROKEN_REWARDS if (found := view.get(name)) is not None]
    whole = ~np.isin(series.steps, np.concatenate(broken)) if broken else np.ones(len(series), np.bool_)
    if _stopped_within(view, series):
        whole[-1] = False
    return whole


def _at(series: Series, steps: NDArray[np.int64]) -> Series:
    kept = np.isin(series.steps, steps)
    return Series(series.metric, series.unit, series.steps[kept], series.values[kept], series.counts[kept])


def _sizes(view: View, low: Series, high: Series, limits: Limits) -> Iterator[Hit]:
    """Sizes against the configuration and against each other."""
    expected = view.config.group_size
    smallest, largest = float(np.median(low.values)), float(np.median(high.values))
    if expected is not None and float(np.mean(high.values > expected)) >= limits["mixed"]:
        merged = largest % expected == 0 and smallest % expected == 0
        yield Hit(
            f"Groups have up to {largest:.0f} sequences, and group_size is {expected}",
            "warning" if merged and smallest == expected else "error",
            (evidence(high, 0, -1, limit=float(expected)),),
            cause="Several prompts, or the same prompt drawn several times, share one group id." if merged else None,
            suspect="groups-merged",
        )
        return
    uneven = low.values < high.values
    small = np.zeros(len(high), np.bool_) if expected is None else high.values < expected
    if float(np.mean(uneven | small)) >= limits["mixed"]:
        yield _lacking_some(view, low, high, uneven, small)


def _lacking_some(view: View, low: Series, high: Series, uneven: NDArray[np.bool_], small: NDArray[np.bool_]) -> Hit:
    """Groups that differ in size, or are all smaller than they should be, told from the step on from which they are."""
    expected, lost = view.config.group_size, view.get("length.aborted_frac")
    explained = lost is not None and float(np.mean(lost.values)) > 0
    marked = uneven | small
    places = np.flatnonzero(marked)
    first = next((int(place) for place in places if np.mean(marked[place:]) >= 0.9), int(places[0]))
    told = marked & (np.arange(len(marked)) >= first)
    smallest, largest = int(low.values[told].min()), int(high.values[told].max())
    few = expected is not None and largest < expected
    known = f", and group_size is {expected}" if few else ""
    sizes = f"{smallest}-{largest}" if smallest < largest else f"{largest}"
    share = "" if told[first:].all() else f" ({np.count_nonzero(told)} of {len(told) - first} steps)"
    ranks = view.info.world_size is not None and view.info.writing_ranks is not None
    partial = few and ranks and len(view.info.writing_ranks or ()) < (view.info.world_size or 1)
    cause = "Samples are lost between sampling and training, or the ids of groups are mixed up."
    if partial:
        cause = "Not every rank writes, so that part of each group is missing."
    elif few:
        cause = "Samples are lost between sampling and training."
    return Hit(
        f"Groups have {sizes} sequences, {span(low, first)}{share}{known}",
        "info" if partial or explained else "warning",
        (evidence(low, first, -1, baseline=float(largest), limit=None if expected is None else float(expected)),),
        cause=cause,
        unchecked=() if lost is not None else ("aborted responses that were dropped: finish_reason",),
        suspect="" if partial else "samples-lost",
    )
