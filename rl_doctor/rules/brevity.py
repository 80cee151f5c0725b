"""Lengths that shrink, that are logged of something else, and that training does not see."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules import breaks, trend
from rl_doctor.rules.reading import PROGRESS, TRUNCATION, change_evidence, evidence, first_of, lacking, progress, span, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_DUPLICATES = ("data.duplicate_between_frac", "data.duplicate_frac")


@rule(
    "RLD504", "length-collapse",
    severity="error", since="0.2.0",
    optional=("length.mean", *PROGRESS, *_DUPLICATES),
    limits={"left": 0.4, "z": 6.0, "alike": 0.02, "more": 0.1},
    cause="The policy found a short answer: one that the reward is content with, or one that ends before anything can go wrong.",
    advice=(
        "Read a few responses from before and after the onset.",
        "Score an empty answer with the reward function; if it earns anything, that is what is learned.",
    ),
    avoids=(
        "Length that halves while the reward rises and responses differ: info.",
        "Prompts of another kind: the level before is that of the same run's start.",
    ),
    source="Public issue threads: a matcher of parts of the answer that is content with an empty one",
)  # fmt: skip
def length_collapse(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Responses shrink to a small share of their early length.

    Answers get shorter where reasoning does not pay, which may be right. They also do where the reward can be had without an
    answer, and where the policy closes up. What else happens tells: the same text for different prompts, or a reward that falls.

    It fires if the late mean length is at most `left` of that of the early window and the difference of logarithms is `z`
    standard errors (on a short run more), or if it fell that far at once, from the fourth step after it on. A warning if the
    reward falls, or if pairs of responses to different prompts that are identical grow to a share of `alike` (identical
    samples of a group by `more`); else info.
    """
    series = view.get("length.mean")
    if series is None:
        yield lacking(view, "length.mean")
        return
    if skip := too_short(series, 16):
        yield skip
        return
    values = np.log(np.maximum(series.values, 1.0))
    moved = trend.change(values)
    least = math.log(limits["left"])
    item = None
    if len(series) >= trend.SHORTEST and moved.difference <= least and moved.z <= -trend.least_z(limits["z"], len(series)):
        begin = trend.onset(values, moved.early, rising=False, share=0.3)
        before, after = math.exp(moved.early.center), math.exp(moved.late.center)
        item = change_evidence(series, begin, moved, limits["left"])
    elif (shift := breaks.fresh(values, -least)) is not None and shift.size < 0.0:
        begin, before, after = shift.index, math.exp(shift.before), math.exp(shift.after)
        item = evidence(series, begin, -1, value=after, baseline=before, limit=limits["left"] * before)
    if item is None:
        return
    reward = progress(view, int(series.steps[begin]))
    alike = _alike(view, limits)
    severity: Severity = "warning" if alike or reward.course == "falling" else "info"
    told = first_of(view, *_DUPLICATES) is not None
    yield Hit(
        f"Responses shrank to {after / before:.0%}, from {before:.0f} to {after:.0f} tokens, {span(series, begin)}; "
        f"{reward.words()}" + ("; more and more of them are the same text" if alike else ""),
        severity,
        (item,),
        ruled_out=("one text for all prompts: responses do not repeat each other",) if told and not alike else (),
        unchecked=() if told else ("whether responses repeat each other: token_id and group",),
    )


def _alike(view: View, limits: Limits) -> bool:
    """Whether identical responses become more than chance explains."""
    for name, least in zip(_DUPLICATES, (limits["alike"], limits["more"]), strict=True):
        series = view.get(name)
        if series is None or len(series) < 8:
            continue
        first, last = trend.early(series.values), trend.late(series.values)
        if last.center >= max(least, first.center + least):
            return True
    return False


@rule(
    "RLD505", "length-logged-of-mask",
    severity="info", since="0.2.0",
    needs=("length.min", "length.max"),
    optional=("length.mean", "length.ended_max", "length.aborted_frac", *TRUNCATION),
    limits={"steps": 0.8, "rows": 5},
    cause="Lengths are counted on the mask, which is zeroed for cut responses.",
    advice=("Take lengths from the attention mask, before cut responses are masked.",),
    avoids=("Responses that really are empty: recorded lengths tell.", "Runs in which no response is cut."),
    source="A public issue thread on masking truncated completions",
)  # fmt: skip
def length_logged_of_mask(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The log's smallest length is 0 and its largest is that of the responses that ended by themselves.

    Cut responses that are masked out of the loss are often masked before their lengths are taken: they count as 0 tokens. Mean
    length then falls as more responses are cut, which reads as the reverse of what happens.

    Only lengths that the trainer logged are looked at. It fires where the smallest is 0 at `steps` of at least `rows` steps at
    which some responses are cut, while the largest equals that of the ended ones.
    """
    low, high, ended = view.series("length.min"), view.series("length.max"), view.get("length.ended_max")
    cut = first_of(view, *TRUNCATION)
    if not _logged(low) or ended is None or cut is None:
        yield Skip("data", "lengths were recorded, or the log does not tell ended responses apart")
        return
    steps = np.intersect1d(np.intersect1d(low.steps, high.steps), np.intersect1d(ended.steps, cut.steps[cut.values > 0.0]))
    if len(steps) < limits["rows"]:
        yield Skip("length", "inconclusive: hardly any step has a response that is cut")
        return
    least, most, finished = (one.values[np.isin(one.steps, steps)] for one in (low, high, ended))
    share = float(np.mean((least == 0.0) & (np.abs(most - finished) < 0.5)))
    if share >= limits["steps"]:
        yield Hit(
            f"The shortest response is logged as 0 tokens and the longest as that of the finished ones at {share:.0%} of the "
            f"{len(steps)} steps with cut responses: lengths are those of the mask",
            "info",
            (evidence(low, 0, -1, value=share, limit=limits["steps"], share_of_steps="0 while some are cut"),),
        )


def _logged(series: Series) -> bool:
    return bool(np.all(series.counts <= 1))


@rule(
    "RLD506", "long-samples-left-out",
    severity="warning", since="0.2.0",
    needs=("length.trained_mean", "length.untrained_mean"),
    limits={"ratio": 1.3, "share": 0.05, "sequences": 64, "steps": 3},
    cause="Responses are left out of the loss for what comes with their length: they finish late, or they are cut.",
    advice=(
        "Look at why they are left out: stale groups that are dropped, a filter of overlong responses, a time-out.",
        "Compare the accuracy of long and short responses: what is never trained on is never unlearned.",
    ),
    avoids=("A few rows.", "Rows that are left out whatever their length.", "Empty responses, which have nothing to train on."),
    source="A public report on discarding stale groups, which made the batch a sample of short answers",
)  # fmt: skip
def long_samples_left_out(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """What is trained on is shorter than what was generated.

    A sample that depends on the length of its items is no sample of the policy. The gradient favours what is quick.

    It compares the mean length of responses of which no token is trained on with that of the others. It fires if the former is
    `ratio` times the latter, at `steps` steps or more by 2 standard errors over steps, and they are at least `share` of at
    least `sequences` responses.
    """
    kept, left = view.series("length.trained_mean"), view.series("length.untrained_mean")
    steps = np.intersect1d(kept.steps, left.steps)
    total = int(kept.counts.sum() + left.counts.sum())
    if total < limits["sequences"] or len(steps) < limits["steps"]:
        yield Skip("length", f"inconclusive: {total} responses at {len(steps)} steps with some left out")
        return
    share = int(left.counts.sum()) / total
    inside, outside = kept.values[np.isin(kept.steps, steps)], left.values[np.isin(left.steps, steps)]
    ratios = np.log(np.maximum(outside, 1.0)) - np.log(np.maximum(inside, 1.0))
    error = float(np.std(ratios, ddof=1)) / math.sqrt(len(steps))
    ratio = float(np.average(left.values, weights=left.counts)) / float(np.average(kept.values, weights=kept.counts))
    if ratio < limits["ratio"] or share < limits["share"] or float(np.mean(ratios)) < 2.0 * error:
        return
    yield Hit(
        f"{share:.0%} of the responses are not trained on, and they are {ratio:.2g} times as long as the others "
        f"({float(np.average(left.values, weights=left.counts)):.0f} against "
        f"{float(np.average(kept.values, weights=kept.counts)):.0f} tokens)",
        "warning",
        (evidence(left, 0, -1, baseline=float(np.median(kept.values)), limit=limits["ratio"] * float(np.median(kept.values))),),
    )


@rule(
    "RLD507", "truncation-logged-zero",
    severity="info", since="0.2.0",
    optional=(*TRUNCATION, "length.max"),
    limits={"steps": 0.5, "rows": 8},
    cause="The share of cut responses was never counted.",
    advice=("Take the share from finish_reason or from the lengths.",),
    avoids=("Runs in which no response comes near the limit.",),
    source="A public fix of a clip ratio that was logged as 0 always",
)  # fmt: skip
def truncation_logged_zero(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The share of cut responses is 0 at every step, while the longest response is as long as the limit at most of them.

    It needs the longest response and max_response_length; where the limit is not known, a longest response that is the same
    number at `steps` of at least `rows` steps counts as one. Single responses may end by themselves just there, and so it is
    info.
    """
    cut, high = first_of(view, *TRUNCATION), view.get("length.max")
    if cut is None or high is None:
        yield lacking(view, *(TRUNCATION if cut is None else ("length.max",)))
        return
    if len(high) < limits["rows"]:
        yield Skip("length", f"inconclusive: {len(high)} steps")
        return
    if float(np.max(cut.values)) > 0.0:
        return
    longest = float(np.max(high.values))
    limit = view.config.max_response_length or longest
    share = float(np.mean(high.values >= min(limit, longest)))
    if longest >= limit and share >= limits["steps"]:
        yield Hit(
            f"No response is logged as cut, and the longest has exactly {longest:.0f} tokens at {share:.0%} of {len(high)} steps",
            "info",
            (evidence(high, 0, -1, value=share, limit=limits["steps"], share_of_steps="at the limit"),),
        )
