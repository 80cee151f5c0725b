"""Rollout against trainer where only the size of the difference speaks, and logprobs that are not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.alignment import ALIGNMENT, SHORT, shift_of
from rl_doctor.rules.logged_gap import LOGGED_GAP, gap_level, only_logged
from rl_doctor.rules.masks import AGREEMENT, in_observations, inverted
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import ROLLOUT, ROLLOUT_METRICS, Bins, bins, kinds, unrelated_rows
from rl_doctor.rules.spans import Breach, above, at, offset_by_constant, pooled
from rl_doctor.rules.staleness import (
    ENTROPY,
    FIRST_GRADE,
    LAGGING,
    NEAREST,
    OLD_REFERENCE,
    REFERENCE,
    VERSIONS,
    corrected,
    outdated_engine,
    outdated_side,
    unrecorded,
)
from rl_doctor.rules.view import View


@rule(
    "RLD106",
    "missing-rollout-logprob",
    severity="error",
    needs=("mismatch.zero_fill_frac", "mismatch.zero_frac", "mismatch.nan_frac"),
    optional=(
        "mask.unsampled_hard_frac",
        "mismatch.shifted_frac",
        "mismatch.lag_corr",
        "mismatch.abs",
        "mismatch.rows_off_frac",
        "mismatch.off_corr",
        *AGREEMENT,
    ),
    limits={"tokens": 3, "share": 0.01, "greedy": 0.99, "unrelated": 0.2},
    cause="Logprobs that the engine did not return were filled with 0, which is probability 1.",
    advice=(
        "Ask the engine for the logprob of every generated token, also of the last one and of continued or aborted responses.",
        "Fill gaps with NaN and leave those tokens out of importance weights.",
    ),
    avoids=(
        "tokens that are certain: the trainer's logprob there is near 0 too",
        "0 at tokens that are not trained, such as observations and padding",
    ),
    source="public trainer issues: zero-filled logprobs give importance weights equal to the trainer's probability",
)
def missing_rollout_logprob(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Trained tokens without a rollout logprob.

    A placeholder of 0 claims that the engine was certain. The importance weight then is the trainer's probability of the token:
    far below 1 where it matters, so the token's gradient all but vanishes, and every mismatch statistic is off.

    Counted are trained tokens whose rollout_logprob is exactly 0 where the trainer's is below -1 (at a certain token it would
    be near 0 too), and NaN. At least ``tokens`` of the first kind are an error, above ``share`` NaN a warning. If more than
    ``greedy`` of all tokens of those steps are 0 the engine samples greedily or returns no logprobs at all.

    In rows in which engine and trainer are unrelated anyway, zeros at fewer tokens than half of these rows' share say nothing.
    Below a share of ``share``, in steps whose mean difference is above ``unrelated`` nat, zeros prove nothing: engine and
    trainer then disagree about certain tokens too.

    Limits: runs of such tokens inside a response are taken for observations unless the role says otherwise:
    observation-in-loss.
    """
    if inverted(view):
        return
    if shift_of(view, ROLLOUT, ALIGNMENT) is not None:
        return
    if not _in_unrelated_rows(view):
        yield from _filled(view, limits)


def _in_unrelated_rows(view: View) -> bool:
    """Whether rows are unrelated anyway, and twice as many as zeros could make so: these fill rows longer than their numbers."""
    zeros = view.get("mismatch.zero_frac")
    return zeros is not None and pooled(zeros) < 0.5 * unrelated_rows(view)


def _filled(view: View, limits: Limits) -> Iterator[Hit]:
    zeros, nans = above(view.series("mismatch.zero_fill_frac"), 0.0), above(view.series("mismatch.nan_frac"), 0.0)
    taken = in_observations(view)
    if zeros is not None and _by_chance(view, zeros, limits):
        zeros = None
    if zeros is not None and zeros.items - taken >= limits["tokens"]:
        message = f"{zeros.items:.0f} of {zeros.n} trained tokens ({zeros.value:.2%}) have rollout_logprob 0 {zeros.when}"
        cause, suspect = None, "missing-logprobs-zero-filled"
        of_all = at(view.get("mismatch.zero_frac"), zeros.series.steps[zeros.marked])
        if of_all is not None and pooled(of_all) > limits["greedy"]:
            suspect = "engine-returns-no-logprobs"
            cause = f"The engine samples greedily, or returns no logprobs: all of them are 0 {zeros.when}."
        ruled_out = ("certain tokens: the trainer's logprob is below -1 at each of these",)
        yield Hit(message, "error", (zeros.evidence(),), cause, ruled_out, suspect=suspect)
        taken = 0.0
    if nans is not None and nans.items - taken >= limits["tokens"] and nans.value > limits["share"]:
        counted = f"{nans.items:.0f} of {nans.n} trained tokens ({nans.value:.2%})"
        message = f"{counted} have no rollout_logprob (NaN or infinite) {nans.when}"
        cause = "The engine did not return the logprobs of these tokens."
        yield Hit(message, "warning", (nans.evidence(),), cause, suspect="engine-logprobs-null")


def _by_chance(view: View, zeros: Breach, limits: Limits) -> bool:
    """Whether the two logprobs are so unrelated that a few certain tokens of the engine say nothing about placeholders."""
    distance = at(view.get("mismatch.abs"), zeros.series.steps[zeros.marked])
    return zeros.value < limits["share"] and distance is not None and pooled(distance) > limits["unrelated"]


@rule(
    "RLD102",
    "rollout-trainer-mismatch",
    severity="error",
    optional=(
        *ROLLOUT_METRICS,
        *LOGGED_GAP,
        *NEAREST,
        *OLD_REFERENCE,
        *FIRST_GRADE,
        *ENTROPY,
        *REFERENCE,
        *VERSIONS,
        "mismatch.zero_fill_frac",
        "mismatch.zero_frac",
        "mismatch.worst_rows",
    ),
    limits={"often": 0.2, "zeros": 0.001},
    cause="Engine and trainer compute different distributions for the same weights: kernels, precision, or a wrong forward pass.",
    advice=(
        "Score one response with both, unpadded and in float32, and compare token by token.",
        "Look at packing, position ids under left padding, attention kernels, dropout and adapters of the trainer.",
        "Compare precisions of the last layer; half-precision heads cost the most.",
        "Until then correct with truncated importance weights, and watch low-probability tokens.",
    ),
    avoids=(
        "the noise of bfloat16 engines, with a mean |d| of .01 to .02 nat and a mean probability difference of .004",
        "sequence-level weights that shrink with length although tokens agree",
        "differences with a cause of their own: temperature, truncation, shifts, placeholders, stale weights",
    ),
    source="training-inference mismatch (public posts and trainer issues); verl's guide takes .005 as a normal difference",
)  # fmt: skip
def rollout_trainer_mismatch(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Engine and trainer disagree about the probability of the sampled tokens.

    Training is then off-policy without knowing it. Small differences at improbable tokens are enough to collapse long runs;
    large ones at the first step mean that one of the two computes something else. Ratios cannot show it, since old_logprob and
    logprob share the trainer's fault.

    d = trainer - rollout over the trained tokens of each stretch of steps. A k3 above .1, or a correlation below .5, is an
    error wherever it holds in ``often`` of the stretches or at the end. A mean probability difference above .02 or a k3 above
    .02 is a warning. A difference that is negative at every token without a lower bound means that the logprob of another
    token, usually the most probable one, was recorded. What shifts, temperature, truncation, placeholders or stale weights
    explain is left to their own rules; with more than ``zeros`` of the tokens zero-filled nothing is said here, unless twice as
    many rows are unrelated anyway.

    Where only the log tells, the larger of the late and the overall median counts: a mean probability difference or k3 above .02,
    a mean difference above .1 nat or a correlation of the probabilities below .9 is a warning, .1, .5 nat and .5 an error.

    Limits: which side is wrong cannot be told from two numbers; a third, unpadded pass decides.
    """
    if only_logged(view):
        yield from gap_level(view)
        return
    found = bins(view, ROLLOUT)
    if found is None:
        yield SHORT if view.get("mismatch.abs") is not None else lacking(view, "mismatch.abs")
        return
    zeros = view.get("mismatch.zero_fill_frac")
    if zeros is not None and pooled(zeros) > limits["zeros"] and not _in_unrelated_rows(view):
        return
    yield from _different(view, found, limits)


def _different(view: View, found: Bins, limits: Limits) -> Iterator[Hit]:
    sort = kinds(found, view.config.top_p)
    if sort.one_sided.mean() > limits["often"]:
        instead = "The engine's number is not the sampled token's: usually the logprob of the most probable candidate."
        share = found.mean("one_sided_frac", sort.one_sided)
        message = (
            f"{share:.1%} of the differences are negative, down to {np.nanmin(found['min']):.2f} nat {found.when(sort.one_sided)}"
        )
        proof = (found.evidence("one_sided_frac", sort.one_sided, 0.98), found.evidence("exp_mean", sort.one_sided, 1.0))
        ruled_out = ("truncated sampling: it bounds the difference by the log of the kept mass",)
        yield Hit(message, "error", proof, instead, ruled_out, suspect="top-candidate-logprob")
        return
    marked, broken = (sort.broken | sort.raised) & ~sort.moved, sort.broken & ~sort.moved
    if not marked.any() or outdated_side(view, found.span(marked))[0] or _explained(view, found):
        return
    settled = marked.mean() >= limits["often"] or bool(marked[-2:].all())
    severity: Severity = "error" if broken.any() and (broken.mean() >= limits["often"] or bool(broken[-1])) else "warning"
    if not settled:
        severity = "warning" if broken.any() else "info"
    if severity == "error":
        marked = broken
    corr = found.mean("corr", marked)
    message = (
        f"mean |trainer - rollout| is {found.mean('abs', marked):.3f} nat, k3 {found.mean('k3', marked):.3g}, "
        f"mean probability difference {found.mean('prob_abs', marked):.3f}, correlation {corr:.2f} {found.when(marked)}"
    )
    evidence = (
        found.evidence("k3", marked, 0.1), found.evidence("abs", marked), found.evidence("prob_abs", marked, 0.02),
        found.evidence("corr", marked, 0.5),
    )  # fmt: skip
    if bool(marked[0]):
        cause: str | None = None
        excluded = ["stale weights: it is there from the first step on"]
    else:
        cause = "Engine and trainer part at once: weights were corrupted or replaced at a synchronisation, or a setting changed."
        excluded = ["an engine that differs from the start: the first steps are at the floor"]
    excluded += ["a shift of 1 to 3 positions", f"temperature: slope {found.mean('slope', marked):.2f}, correlation {corr:.2f}"]
    unchecked = ("which side is wrong: a third pass over unpadded rows decides", *unrecorded(view, "versions"))
    samples = view.samples("mismatch.worst_rows", *found.span(marked))
    whole = offset_by_constant(found["exp_mean"], found["exp_std"])[marked].all()
    suspect = "constant-in-rollout-logprob" if whole else ""
    yield Hit(message, severity, evidence, cause, tuple(excluded), unchecked, suspect=suspect, samples=samples)


def _explained(view: View, found: Bins) -> bool:
    """Whether outdated weights explain the difference, known (and corrected for) or found by stale-old-logprob."""
    lag = view.get("stale.mean")
    if lag is not None and pooled(lag) > LAGGING and corrected(view):
        return True
    return any(True for _ in outdated_engine(view, found))
