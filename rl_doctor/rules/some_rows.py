"""Differences between engine and trainer that are those of some rows, or of whole responses."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.alignment import engine_bins
from rl_doctor.rules.reading import evidence, first_of, lacking, span
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import (
    BETWEEN,
    CALM_ROWS,
    FEW_OFF,
    ROLLOUT_METRICS,
    UNRELATED,
    UNRELATED_ROWS,
    WHOLE_ROWS,
    Bins,
    kinds,
    two_kinds,
    unrelated_rows,
)
from rl_doctor.rules.spans import above, at, pooled, pooled_known
from rl_doctor.rules.view import View


@rule(
    "RLD113",
    "mismatch-in-some-rows",
    severity="error",
    needs=("mismatch.rows_off_frac", "mismatch.rows_calm_frac"),
    optional=(*ROLLOUT_METRICS, "mismatch.zero_fill_frac", "mismatch.worst_rows", "stale.mean", "stale.max"),
    limits={
        "rows": 4, "large": 0.05, "zeros": 0.001, "calm": CALM_ROWS, "between": BETWEEN, "twice": 2.0, "share": FEW_OFF,
        "tail": WHOLE_ROWS, "unrelated": UNRELATED, "unrelated_tail": UNRELATED_ROWS,
    },
    cause="Some rows take another path through the trainer or the engine than the others.",
    advice=(
        "Look at the rows named here, token by token, and at what they have in common: rank, length, padding, images, tools.",
        "Score one of them alone and unpadded; which side is wrong is not known before.",
    ),
    avoids=(
        "noise of one size in all rows",
        "rows whose samples are older than others, where versions are recorded",
        "shifted rows, placeholders and other shapes that have a rule of their own",
    ),
    source="public trainer issues: position ids under left padding, images whose tokens do not line up, single ranks",
    since="0.2.0",
)  # fmt: skip
def mismatch_in_some_rows(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Engine and trainer agree in most rows and not in some.

    A mean over all rows hides it: one rank of eight with a wrong forward pass, the rows that hold images, those with left
    padding. The gradient of these rows is wrong, and importance weights throw them out or blow them up.

    A row of at least 8 tokens is off with a mean |d| above .1 nat and calm below .03. It fires if ``rows`` rows and ``share`` of
    them are off, while ``calm`` of all are calm and no more than ``between`` (and ``twice`` the share that is off) lie
    between the two: two kinds of rows, and not the tail of one. In the rows that are off all tokens must be: a mean d^2 below
    ``tail`` times the square of the mean |d|, or ``unrelated_tail`` times where the two logprobs correlate below ``unrelated`` in
    these rows. From ``large`` on it is an error.

    It is silent where more than ``zeros`` of the engine's logprobs were filled with 0 (unless it is in rows that are unrelated
    anyway, and in fewer tokens than half of these rows' share), and where rows are outdated or shifted.

    Limits: rows shorter than 8 tokens are not looked at.
    """
    found = engine_bins(view)
    if isinstance(found, Skip):
        yield found
        return
    off, calm = view.series("mismatch.rows_off_frac"), view.series("mismatch.rows_calm_frac")
    if not _told_elsewhere(view, found, limits) and (hit := _two_kinds(view, off, calm, limits)) is not None:
        yield hit


def _told_elsewhere(view: View, found: Bins, limits: Limits) -> bool:
    """Whether the difference has a shape of its own, or the rows are of different age."""
    zeros, lag, shifted, off = (
        view.get(name) for name in ("mismatch.zero_fill_frac", "stale.max", "mismatch.shifted_frac", "mismatch.rows_off_frac")
    )
    if zeros is not None and pooled(zeros) > max(limits["zeros"], 0.5 * unrelated_rows(view)):
        return True
    if lag is not None and lag.values.max() > 0:
        return True
    if shifted is not None and off is not None and pooled(shifted) > 0.5 * pooled(off):
        return True
    sort = kinds(found, view.config.top_p)
    return bool(sort.shaped.mean() > 0.2) or not sort.partial.any()


def _two_kinds(view: View, off: Series, calm: Series, limits: Limits) -> Hit | None:
    breach = above(off, 0.0)
    if breach is None or breach.items < limits["rows"]:
        return None
    inside = np.arange(breach.first, breach.last + 1)
    within, quiet = at(off, inside), at(calm, inside)
    if within is None or quiet is None:
        return None
    share, still = pooled(within), pooled(quiet)
    tail, corr = (pooled_known(at(view.get(name), inside)) for name in ("mismatch.off_tail", "mismatch.off_corr"))
    between = 1.0 - share - still
    if between > limits["twice"] * share + 0.02 or not two_kinds(*(np.array([value]) for value in (share, still, tail, corr)))[0]:
        return None
    severity: Severity = "error" if share >= limits["large"] else "warning"
    count = int(within.counts.sum())
    message = (
        f"in {share:.1%} of {count} rows engine and trainer differ by more than .1 nat a token, while {still:.0%} agree "
        f"within .03, {breach.when}"
    )
    proof = (
        Evidence(off.metric, breach.first, breach.last, share, None, limits["share"], "1", count),
        Evidence(calm.metric, breach.first, breach.last, still, None, limits["calm"], "1", count),
    )
    ruled_out = ("precision and kernels alone: most rows agree", "a shift of 1 to 3 positions")
    samples = view.samples("mismatch.worst_rows", breach.first, breach.last)
    return Hit(message, severity, proof, None, ruled_out, samples=samples)


@rule(
    "RLD114",
    "sequence-weight-collapse",
    severity="error",
    optional=(
        "mismatch.is_weight_mean", "mismatch.abs", "mismatch.k3", "mismatch.prob_abs", "mismatch.row_weights_frac",
        "mismatch.gone_weights_frac", "stale.mean",
    ),
    limits={"mean": 0.5, "gone": 0.5, "one": 0.95, "severe": 0.1, "steps": 3, "abs": 0.1, "k3": 0.02, "prob_abs": 0.02},
    cause="Importance weights of whole responses are products over their tokens, and shrink with the length.",
    advice=(
        "Weigh tokens instead of responses, or take the geometric mean over a response, and cut the weight.",
        "Remove what is systematic first: a temperature or a cut tail multiplies over the response.",
        "Watch the share of responses that keep a weight above .1: the batch that is trained on is that small.",
    ),
    avoids=("an engine that is broken: the tokens agree", "weights of tokens, which are as small as the tokens' difference"),
    source="a product over 300 tokens of a ratio that is .5% off is .22; public trainer issues on sequence-level correction",
    since="0.2.0",
)  # fmt: skip
def sequence_weight_collapse(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Importance weights all but erase the batch, although engine and trainer agree token by token.

    The weight of a response is the product of its tokens' ratios. That is the right weight of a sequence and a useless one for
    long responses: differences that nobody would notice in a token multiply over hundreds, and the loss is multiplied by next
    to nothing. Nothing else shows it; the reward just stays where it is.

    It fires where the mean recorded (or logged) importance weight is below ``mean``, or ``gone`` of the rows keep less than .1,
    while the tokens agree: a mean |d| below ``abs`` nat (or ``k3``, or ``prob_abs`` as difference of probabilities). Fewer than
    ``steps`` steps must have 100 weights. Where tokens are recorded, all tokens of a row must share one weight (in ``one`` of
    the rows). A mean below ``severe`` is an error.

    Limits: the weight itself is not wrong, so a log alone cannot tell a long response from an engine that cuts the tail.
    """
    weight = view.get("mismatch.is_weight_mean")
    if weight is None:
        yield lacking(view, "mismatch.is_weight_mean")
        return
    same, gone = view.get("mismatch.row_weights_frac"), view.get("mismatch.gone_weights_frac")
    if same is not None and pooled(same) < limits["one"]:
        return
    size = first_of(view, "mismatch.abs", "mismatch.prob_abs", "mismatch.k3")
    if size is None:
        yield lacking(view, "mismatch.abs")
        return
    if len(weight) < limits["steps"] and int(weight.counts.sum()) < 100:
        yield Skip("length", "inconclusive: too few importance weights")
        return
    level, lost = float(np.median(weight.values)), 0.0 if gone is None else pooled(gone)
    if (level >= limits["mean"] and lost < limits["gone"]) or (level <= 0.0 and gone is None):
        return
    limit = limits[size.metric.removeprefix("mismatch.")]
    difference = float(np.median(size.values))
    if difference > limit:
        return
    severity: Severity = "error" if level < limits["severe"] or lost > 0.9 else "warning"
    message = (
        f"the importance weight is {level:.2g} in the median of {span(weight, 0)}, although engine and trainer differ by "
        f"{difference:.2g} a token only"
    )
    if gone is not None:
        message += f"; {lost:.0%} of the rows keep less than .1"
    proof = [evidence(weight, value=level, limit=limits["mean"]), evidence(size, value=difference, limit=limit)]
    proof += [] if gone is None else [evidence(gone, value=lost, limit=limits["gone"])]
    yield Hit(message, severity, tuple(proof), None, ("a broken engine: token by token the two agree",))
