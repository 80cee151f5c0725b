"""What the reward pays for against what was meant: held-out scores, and components that are bought with one another."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules import trend, turning
from rl_doctor.rules.components import COMPONENT, components
from rl_doctor.rules.reading import (
    KL_REFERENCE,
    REWARD,
    TRUNCATION,
    VALIDATION,
    counted,
    evidence,
    first_of,
    lacking,
    span,
    times,
)
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

TASK: Final = re.compile(r"correct|accura|acc\b|success|solve|answer|task|exact|pass|outcome|verif|match|goal|win", re.IGNORECASE)
SHAPE: Final = re.compile(r"format|length|len\b|tag|xml|style|structure|lang|brev|concise|repet|tool|think|penalt", re.IGNORECASE)
_COMPANY: Final = (*KL_REFERENCE, "length.mean", "policy.entropy")


@frozen
class _Stretch:
    """From the best stretch of a score to the end, in steps: first and last of the best, first of the end."""

    first: int
    last: int
    end: int

    @classmethod
    def of(cls, series: Series, fall: turning.Decline) -> _Stretch:
        return cls(*(int(series.steps[index]) for index in (fall.best.first, fall.best.last, fall.late.first)))

    def levels(self, series: Series) -> tuple[float, float] | None:
        """Median of another series around the best stretch and at the end; None with too few points."""
        steps, values = series.steps, series.values
        middle = int(np.searchsorted(steps, (self.first + self.last) // 2))
        near = values[(steps >= self.first) & (steps <= self.last)]
        if near.size < 5:
            near = values[max(middle - 2, 0) : middle + 3]
        late = values[steps >= self.end]
        if late.size < 5:
            late = values[-min(5, max(values.size // 4, 1)) :]
        return (float(np.median(near)), float(np.median(late))) if near.size and late.size else None


@rule(
    "RLD411", "reward-hacking-suspected",
    severity="error",
    optional=(*REWARD, *VALIDATION, *_COMPANY, *TRUNCATION, COMPONENT),
    limits={
        "evaluations": 6, "certain": 12, "z": 4.0, "lost": 0.2, "much": 0.3, "gain": 0.2, "kept": 0.25, "component_z": 4.0,
        "traded": 0.5, "gone": 0.4, "standing": 16, "cut": 0.5,
    },
    cause="The policy has found what the reward pays for beside the task: the reward can be earned without being right.",
    advice=(
        "Read responses with a high reward from the end of the run, and score them by other means (a person, another verifier).",
        "Go back to the checkpoint with the best held-out score, and close what is exploited before training on.",
        "Hold the policy nearer to the reference (a higher kl_coef, a lower learning rate, fewer steps).",
    ),
    avoids=(
        "A few evaluations that scatter: a fall counts by the noise of the evaluations themselves.",
        "A score that dips early, rises slower than the reward, or stands near its ceiling.",
        "Held-out scores in other units: a fall is a share of the score's own best level.",
        "A length penalty or a format score that gives way to success.",
        "A reward that falls together with the held-out score: that is no hacking.",
    ),
    source="arXiv:2210.10760 (over-optimisation of a proxy); public runs whose format score rises while accuracy falls",
)  # fmt: skip
def reward_hacking_suspected(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The training reward rises or holds while what it stands for falls.

    A reward is a stand-in. Optimised for long enough it comes apart from what was meant, and the training reward is the last
    place where this shows.

    Three signs. First: the held-out score ends `lost` of its best level below its best stretch, by `z` standard errors of
    the evaluations' own noise (three, if `much` was lost), while the training reward does not fall with it. With `certain` or
    more evaluations and a reward that rises over the run it is an error if `much` was lost, else a warning; below
    `evaluations` it is inconclusive. Second: the held-out score has moved by less than `kept` of a gain of the training reward
    of at least `gain`, both being shares of comparable size and the score below .9: a warning, info below `standing`
    evaluations. Third: one component of the reward has lost `lost` of its best level by `component_z` standard errors, and
    another has gained at least `traded` of that, while the whole does not fall: an error if the name of the component that was
    lost says that it is the task and `gone` of it is, a warning if it may be, nothing if its name says that it is the shape.
    Where at least `cut` of the responses are cut at the length limit in the end, it is info: what a cut response can earn is
    decided by the limit, which length-truncation tells.

    Limits: without held-out scores or components nothing can be said. A score on other tasks than those trained on can fall
    by forgetting.
    """
    reward, score = first_of(view, *REWARD), first_of(view, *VALIDATION)
    bought = _bought(view, reward, limits)
    if bought is not None:
        yield bought
    if reward is None:
        yield lacking(view, *REWARD)
        return
    if score is None:
        if bought is None and not components(view):
            yield Skip("data", "no held-out score and no reward components were logged", ("val.mean_at_n",))
        return
    if len(score) < limits["evaluations"]:
        if bought is None:
            yield Skip("length", f"inconclusive: {counted(len(score), 'evaluation')}, and {limits['evaluations']:.0f} are needed")
        return
    found = _parted(view, reward, score, limits) or _left_behind(reward, score, limits)
    if found is not None:
        yield found


def _rises(series: Series) -> bool:
    """Whether it ends above its start by three standard errors, also of few points."""
    if len(series) >= trend.SHORTEST:
        return trend.course(series.values) == "rising"
    size = max(len(series) // 5, 2)
    sigma, _ = turning.local_noise(series.values)
    return float(np.median(series.values[-size:]) - np.median(series.values[:size])) > 3.0 * sigma * math.sqrt(2.0 / size)


def _parted(view: View, reward: Series, score: Series, limits: Limits) -> Hit | None:
    """A held-out score that falls from its best while the training reward does not."""
    fall = turning.decline(score.values)
    if fall is None or fall.share < limits["lost"]:
        return None
    much = fall.share >= limits["much"]
    if fall.z < (0.75 * limits["z"] if much else limits["z"]):
        return None
    stretch = _Stretch.of(score, fall)
    levels = stretch.levels(reward)
    if levels is None:
        return None
    before, after = levels
    sigma, _ = turning.local_noise(reward.values)
    if len(reward) >= trend.SHORTEST and trend.course(reward.values) == "falling":
        return None
    if after < before - max(2.0 * sigma, 0.1 * fall.share * max(abs(before), abs(after))):
        return None
    rises = _rises(reward)
    certain = len(score) >= limits["certain"] and rises and much and fall.z >= limits["z"]
    words, shown, unchecked = _company(view, stretch)
    course = "rises" if after > before + sigma else "holds"
    return Hit(
        f"The held-out score falls from {fall.best.center:.3g} to {fall.late.center:.3g} since step {stretch.last} while the "
        f"training reward {course} ({before:.3g} to {after:.3g}){words}",
        "error" if certain else "warning",
        (
            evidence(
                score, fall.late.first, -1, value=fall.late.center, baseline=fall.best.center,
                limit=fall.best.center - limits["lost"] * abs(fall.best.center),
            ),
            evidence(reward, max(int(np.searchsorted(reward.steps, stretch.end)) - 1, 0), -1, value=after, baseline=before),
            *shown,
        ),
        ruled_out=(
            f"scatter of the evaluations: the fall is {fall.z:.0f} times its standard error",
            "a policy that gets worse at everything: the training reward does not fall",
        ),
        suspect="reward-hacked",
        unchecked=unchecked,
    )  # fmt: skip


def _company(view: View, stretch: _Stretch) -> tuple[str, tuple[Evidence, ...], tuple[str, ...]]:
    """What else moved meanwhile, in words and as evidence, and what was not recorded."""
    kl = first_of(view, *KL_REFERENCE)
    words, shown = [], []
    for series, name in ((kl, "the KL to the reference"), (view.get("length.mean"), "the length of responses")):
        levels = None if series is None else stretch.levels(series)
        if series is None or levels is None or levels[0] <= 0.0 or levels[1] < 1.5 * levels[0]:
            continue
        words.append(f"{name} grew {times(levels[1] / levels[0])}")
        shown.append(evidence(series, len(series) - 1, -1, value=levels[1], baseline=levels[0]))
    entropy = view.get("policy.entropy")
    levels = None if entropy is None else stretch.levels(entropy)
    if entropy is not None and levels is not None and levels[0] > 0.0 and levels[1] < 0.5 * levels[0]:
        words.append(f"the entropy fell to {levels[1] / levels[0]:.0%}")
        shown.append(evidence(entropy, len(entropy) - 1, -1, value=levels[1], baseline=levels[0]))
    unchecked = ("how far the policy has moved: KL to the reference",) if kl is None else ()
    return ("; " + ", ".join(words) if words else ""), tuple(shown), unchecked


def _left_behind(reward: Series, score: Series, limits: Limits) -> Hit | None:
    """A held-out score that stands while the training reward, a share of about the same level, gains much."""
    if len(score) < 8 or not _rises(reward) or not (_is_share(reward) and _is_share(score)):
        return None
    size = max(len(score) // 5, 2)
    first, last = float(np.median(score.values[:size])), float(np.median(score.values[-size:]))
    begin = reward.values[reward.steps <= score.steps[size - 1]]
    begin = begin if begin.size >= 5 else reward.values[:5]
    start, end = float(np.median(begin)), trend.late(reward.values).center
    if end - start < limits["gain"] or last > 0.9 or abs(first - start) > 0.2:
        return None
    sigma, rho = turning.local_noise(score.values)
    time = np.arange(len(score))
    around = score.values - np.polyval(np.polyfit(time, score.values, 1), time)
    error = max(sigma, float(np.std(around))) * math.sqrt(2.0 * min(trend.inflation(max(rho, 0.6)) / size, 1.0))
    best = float(np.max(trend.running_median(score.values, 3)))
    if max(last, best - 2.0 * sigma) - first + 3.0 * error > limits["kept"] * (end - start):
        return None
    return Hit(
        f"The training reward rises from {start:.3g} to {end:.3g} and the held-out score stays where it was "
        f"({first:.3g} to {last:.3g})",
        "warning" if len(score) >= limits["standing"] else "info",
        (
            evidence(score, len(score) - size, -1, value=last, baseline=first, limit=first + limits["kept"] * (end - start)),
            evidence(reward, trend.late(reward.values).first, -1, value=end, baseline=start),
        ),
        cause="What is learned pays in training only: prompts that are memorised, or a reward (such as for the format) that the "
        "held-out score does not count.",
        ruled_out=(f"a score near its ceiling: it stands at {last:.3g}",),
        unchecked=("whether both score the same thing: the names do not say",),
        suspect="learned-for-training-only",
    )


def _is_share(series: Series) -> bool:
    return float(series.values.min()) >= -1e-6 and float(series.values.max()) <= 1.0 + 1e-6


def _bought(view: View, reward: Series | None, limits: Limits) -> Hit | None:
    """A component that falls while another rises by about as much, and the whole does not fall."""
    means = {name: stats["mean"] for name, stats in components(view).items() if "mean" in stats}
    means = {name: series for name, series in means.items() if len(series) >= trend.SHORTEST}
    lost: list[tuple[str, turning.Decline]] = []
    for name, series in means.items():
        fall = turning.decline(series.values)
        if fall is None or fall.best.center <= 0.0 or (SHAPE.search(name) and not TASK.search(name)):
            continue
        if fall.z >= limits["component_z"] and fall.share >= limits["lost"]:
            lost.append((name, fall))
    for name, fall in sorted(lost, key=lambda item: -item[1].share):
        stretch = _Stretch.of(means[name], fall)
        gained = _gainers(means, name, stretch, fall, limits)
        whole = None if reward is None else stretch.levels(reward)
        if not gained or (
            whole is not None and reward is not None and whole[1] < whole[0] - turning.local_noise(reward.values)[0]
        ):
            continue
        return _trade(view, means, name, fall, gained, stretch, whole, limits)
    return None


def _gainers(
    means: Mapping[str, Series], name: str, stretch: _Stretch, fall: turning.Decline, limits: Limits
) -> dict[str, tuple[float, float]]:
    """Components that rose meanwhile by at least a part of what ``name`` lost; none if one of them is the task and it is not."""
    found: dict[str, tuple[float, float]] = {}
    for other, series in means.items():
        levels = None if other == name else stretch.levels(series)
        if levels is None or levels[1] - levels[0] < limits["traded"] * fall.size:
            continue
        moved = trend.change(series.values)
        if moved.difference > 0 and moved.z >= 0.6 * limits["component_z"]:
            found[other] = levels
    if any(TASK.search(other) for other in found) and not TASK.search(name):
        return {}
    return found


def _trade(
    view: View, means: Mapping[str, Series], name: str, fall: turning.Decline, gained: Mapping[str, tuple[float, float]],
    stretch: _Stretch, whole: tuple[float, float] | None, limits: Limits,
) -> Hit:  # fmt: skip
    series = means[name]
    named = bool(TASK.search(name))
    cut = first_of(view, *TRUNCATION)
    share = 0.0 if cut is None else float(np.mean(cut.values[trend.late(cut.values).first :]))
    severity: Severity = "error" if named and fall.share >= limits["gone"] else "warning"
    severity = "info" if share >= limits["cut"] else severity
    listed = ", ".join(f"{other} rises from {levels[0]:.3g} to {levels[1]:.3g}" for other, levels in gained.items())
    words, shown, unchecked = _company(view, stretch)
    if share >= limits["cut"]:
        words += f"; {share:.0%} of the responses are cut at the length limit"
        unchecked = ("what these responses earn where they are not cut: length-truncation", *unchecked)
    total = "" if whole is None else f"; the whole goes from {whole[0]:.3g} to {whole[1]:.3g}"
    unnamed = () if named else (f"whether {name} is the task: its name does not say",)
    recorded = () if whole is not None else ("the whole reward: it was not recorded",)
    bought = [
        evidence(means[other], len(means[other]) - 1, -1, value=levels[1], baseline=levels[0], where={"component": other})
        for other, levels in gained.items()
    ]
    return Hit(
        f"Reward component {name} falls from {fall.best.center:.3g} to {fall.late.center:.3g}, {span(series, fall.best.last)}, "
        f"while {listed}{total}{words}",
        severity,
        (
            evidence(
                series, fall.late.first, -1, value=fall.late.center, baseline=fall.best.center,
                limit=(1.0 - limits["lost"]) * fall.best.center, where={"component": name},
            ),
            *bought,
            *shown,
        ),
        cause=f"{name} is given up for {', '.join(gained)}: together they pay at least as much.",
        suspect="component-bought-with-another",
        ruled_out=(f"scatter of {name}: the fall is {min(fall.z, 1e3):.0f} times its standard error",),
        unchecked=(*unnamed, *recorded, *unchecked),
    )  # fmt: skip
