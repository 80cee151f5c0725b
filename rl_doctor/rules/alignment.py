"""Faults between rollout and trainer that have a shape of their own: temperature, truncation, shifts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.logged_gap import SIZES, only_logged
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import (
    COPIES,
    DEEPEST,
    FEW_OFF,
    FIRST,
    FIRST_METRICS,
    LEAST,
    ROLLOUT,
    ROLLOUT_METRICS,
    SHIFTED_ROWS,
    Bins,
    Bools,
    bins,
    from_the_start,
    kinds,
    stretched,
)
from rl_doctor.rules.spans import Breach, above, among, at, pooled
from rl_doctor.rules.standing_out import ALIKE, STANDING, standing_out
from rl_doctor.rules.view import View

ALIGNMENT: Final = {"rows": SHIFTED_ROWS, "global": 0.8, "count": 3, "few": FEW_OFF, "clean": COPIES, "half": 0.5}
NO_TOKENS: Final = Skip("column", "the log has only the size of the gap to the sampler", ("rollout_logprob", "old_logprob"))
SHORT: Final = Skip("length", f"fewer than {LEAST} pairs of logprobs, which is too few to tell")
_PASSES: Final = "mismatch.pass_"
_LAG: Final = ("shifted_frac", "lag", "lag_share", "lag_corr", "short_lag")


@rule(
    "RLD103",
    "temperature-mismatch",
    severity="error",
    optional=(*ROLLOUT_METRICS, *FIRST_METRICS, "stale.mean", *STANDING),
    limits={"honest": 4.0, "mild": 0.05, "alike": 0.9},
    cause="Rollout and trainer use different sampling temperatures.",
    advice=(
        "Compare the temperature that the engine is really asked for with the configured one.",
        "Divide the trainer's logits by the sampler's temperature in every pass that yields logprobs.",
        "Ask the engine for processed logprobs (after temperature), or compare with untempered ones on both sides.",
        "Then check that the slope is 1.00.",
    ),
    avoids=(
        "stale weights and numeric noise, which scatter around slope 1",
        "a policy that sharpens while the engine lags: that sets in slowly",
    ),
    source="public trainer issues; E[exp(d)] = 1 holds for any trainer distribution if the recorded logprob is the sampler's",
)
def temperature_mismatch(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """The trainer's logprobs are a stretched copy of the engine's.

    With logits divided by another temperature the two logprobs stay almost perfectly correlated, but the slope of one on the
    other leaves 1. The loss then optimises a policy that is not the one that samples: ratios and importance weights are biased
    at every token, and some models do not train at all.

    It fires where the correlation is above .95 while the slope (and the slope the other way round, so that noise cannot feign
    it) is on the same side of 1, from the first steps on or from one step to the next. Below that it fires where one logprob
    spreads wider than the other by 2.5% or more (a temperature off by .03 or so), always to the same side (``alike`` of the
    stretches), with a correlation that leaves no room for noise; with samples of older weights nothing is said then. Less than
    ``mild`` is a warning.

    The mean of exp(d), d = trainer - rollout, tells whose number is wrong: above 1 the engine reports raw logprobs, so perhaps
    only the comparison (and any importance weight) is wrong; 1 within ``honest`` standard errors means that the engine reports
    what it sampled from. Then config.temperature tells which of the two is off: where the slope leaves 1 to its side, the trainer
    leaves it out; where it is 1, or on the other side, a trainer that left it out would agree, and the engine samples at another
    temperature than is configured. Where it is not known, the trainer is suspected. The same test runs on logprob against
    old_logprob of the first mini-batch: two passes of the trainer with different temperatures. Where one rank holds the
    difference, nothing is said here: mismatch-by-part tells.

    Limits: the slope depends on the shape of the logits, so it signals a temperature and does not measure it.
    """
    rollout, passes = None if only_logged(view) else bins(view, ROLLOUT), bins(view, FIRST)
    if rollout is None and passes is None:
        yield _absent(view)
        return
    between = [] if passes is None else list(_tempered(view, passes, limits))
    yield from between
    if rollout is not None and not between and all(standing_out(view, by) is None for by in ALIKE):
        yield from _tempered(view, rollout, limits)


def engine_bins(view: View) -> Bins | Skip:
    """Bins of the engine's and the trainer's logprobs, or why there are none."""
    if only_logged(view):
        return NO_TOKENS
    found = bins(view, ROLLOUT)
    return SHORT if found is None else found


def _absent(view: View) -> Skip:
    if only_logged(view):
        return NO_TOKENS
    measured = view.get("mismatch.abs") is not None or view.get("mismatch.first_abs") is not None
    return SHORT if measured else lacking(view, "mismatch.abs", "mismatch.first_abs")


def _marked(view: View, found: Bins, limits: Limits) -> tuple[Bools, bool]:
    """The stretches with another temperature, and whether it is off by little."""
    marked = kinds(found, view.config.top_p).tempered
    if marked.any() and from_the_start(found, marked, np.log(np.maximum(found["slope"], 1e-3))):
        return marked, False
    lag, wider = view.get("stale.mean"), stretched(found, view.config.top_p)
    marked = wider != 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = np.nan_to_num(np.log(found["slope"] / found["corr"]))
    if not marked.any() or (lag is not None and pooled(lag) > 0.0) or not from_the_start(found, marked, raw):
        return marked & False, True
    alike = max(float((wider[marked] > 0.0).mean()), float((wider[marked] < 0.0).mean())) >= limits["alike"]
    return marked & alike, float(np.median(np.abs(wider[marked]))) < limits["mild"]


def _tempered(view: View, found: Bins, limits: Limits) -> Iterator[Hit]:
    marked, mild = _marked(view, found, limits)
    if not marked.any():
        return
    severity: Severity = "warning" if mild else "error"
    slope, corr = found.mean("slope", marked), found.mean("corr", marked)
    mean, error = found.mean("exp_mean", marked), found.exp_error(marked)
    evidence = tuple(found.evidence(name, marked, limit) for name, limit in (("slope", 1.0), ("corr", 0.95), ("exp_mean", 1.0)))
    temperature = view.config.temperature
    known = "" if temperature is None else f" (the configured temperature is {temperature:g})"
    if found.prefix == FIRST:
        message = (
            f"logprob follows old_logprob with slope {slope:.2f} (correlation {corr:.3f}) before any update {found.when(marked)}"
        )
        cause = "The two passes of the trainer use different temperatures: one of them leaves it out."
        why = ("stale weights: the slope is not 1 and the correlation is high",)
        yield Hit(message, severity, evidence, cause, why, suspect="trainer-pass-lacks-temperature")
        return
    message = (
        f"the trainer's logprobs follow the engine's with slope {slope:.2f} (correlation {corr:.3f}, "
        f"mean exp(d) {mean:.3f}) {found.when(marked)}{known}"
    )
    ruled_out = ("stale weights and numerics: they scatter around slope 1", "a shift: the logprobs agree in place")
    if mean - limits["honest"] * error > 1.0 and found.mean("exp_mean_clamped", marked) > 1.0:
        suspect, cause = (
            "engine-reports-raw-logprobs",
            "The engine reports logprobs before temperature; the trainer's are after it.",
        )
    elif mean + limits["honest"] * error < 1.0:
        suspect = "temperature-and-truncation-differ"
        cause = "Rollout and trainer use different sampling temperatures, and the engine also cuts the tail (top-p or top-k)."
    elif temperature is not None and temperature > 0.0 and math.log(slope) * math.log(temperature) <= 0.0:
        suspect = "engine-at-other-temperature"
        cause = (
            f"The engine samples at a lower temperature than the configured {temperature:g}, at which the trainer computes."
            if slope < 1.0
            else f"The engine samples at a higher temperature than the configured {temperature:g}, at which the trainer computes."
        )
    else:
        suspect = "trainer-lacks-temperature"
        cause = "The trainer computes logprobs at another temperature than the sampler's, usually without it."
    unchecked = () if temperature is not None else ("the configured temperature: config.temperature",)
    yield Hit(message, severity, evidence, cause, ruled_out, unchecked, suspect=suspect)


@rule(
    "RLD104",
    "truncated-sampling-mismatch",
    severity="error",
    needs=("mismatch.abs",),
    optional=(*ROLLOUT_METRICS, "mismatch.zero_fill_frac"),
    limits={"error": 0.98, "zeros": 0.5},
    cause="The engine renormalises over the tokens that top-p, top-k or min-p keeps; the trainer covers the whole vocabulary.",
    advice=(
        "Train with top_p = 1 and top_k off.",
        "Or normalise both sides over the same kept tokens; a mix of supports in old_logprob and logprob is worse than either.",
        "Keep importance weights out of the loss until then: over a response of n tokens they shrink by the kept mass to the n.",
    ),
    avoids=("placeholders of 0", "logprobs of another token than the sampled one, which have no lower bound"),
    source="public trainer and engine issues; log of the kept mass bounds the difference from below",
)
def truncated_sampling_mismatch(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """The engine's logprobs are of a cut distribution, the trainer's are not.

    Top-p and top-k drop the tail and scale up what is left, so the engine's probability of each sampled token is larger by the
    kept mass. Every importance ratio then carries that factor, always in the same direction: sequence-level weights vanish with
    length.

    The fingerprint is d = trainer - rollout at or below 0 at (nearly) every token beyond the noise, bounded from below by
    log(top_p), with a mean of exp(d), the kept mass, significantly below 1. A kept mass above ``error`` is a warning, below it
    an error.

    Where more than ``zeros`` of the tokens have a placeholder of 0, those left are the likely ones, near 0 on both sides: nothing
    is said.

    Limits: a kept mass within .02 of 1 drowns in the rounding of bfloat16.
    """
    found = engine_bins(view)
    if isinstance(found, Skip):
        yield found
        return
    marked = kinds(found, view.config.top_p).truncated
    if not marked.any() or _placeholders(view, found, marked) > limits["zeros"]:
        return
    mass, deepest = found.mean("exp_mean", marked), float(np.nanmin(found["min"][marked]))
    top_p = view.config.top_p
    bound = "" if top_p is None else f", log(top_p) is {math.log(top_p):.3f}" if top_p > 0 else ""
    message = (
        f"{found.mean('one_sided_frac', marked):.1%} of the differences are negative, down to {deepest:.3f} nat{bound}; "
        f"the kept mass is {mass:.3f} {found.when(marked)}"
    )
    evidence = (
        found.evidence("exp_mean", marked, 1.0), found.evidence("one_sided_frac", marked, 0.5),
        Evidence("mismatch.min", int(found.first[marked][0]), int(found.last[marked][-1]), deepest, None,
                 math.log(top_p) if top_p is not None and 0 < top_p < 1 else DEEPEST, "nat", int(found.n[marked].sum())),
    )  # fmt: skip
    ruled_out = ("stale weights and numerics: they err to both sides", "a logprob of another token: the differences are bounded")
    unchecked = () if top_p is not None else ("which truncation: config.top_p and config.top_k",)
    severity: Severity = "error" if mass < limits["error"] else "warning"
    yield Hit(message, severity, evidence, None, ruled_out, unchecked, suspect="truncated-sampling-renormalised")


def _placeholders(view: View, found: Bins, marked: Bools) -> float:
    """Share of the tokens within the marked bins whose rollout logprob is a placeholder of 0."""
    zeros, (first, last) = view.get("mismatch.zero_fill_frac"), found.span(marked)
    inside = None if zeros is None else at(zeros, zeros.steps[(zeros.steps >= first) & (zeros.steps <= last)])
    return 0.0 if inside is None else pooled(inside)


@rule(
    "RLD105",
    "logprob-misaligned",
    severity="error",
    optional=(*SIZES, *(prefix + name for prefix in (ROLLOUT, _PASSES) for name in _LAG)),
    limits=ALIGNMENT,
    cause="Logprobs belong to neighbouring tokens: columns are shifted against each other.",
    advice=(
        "Check the shift between logits and labels: logits at t predict the token at t + 1.",
        "If the offset varies with the prompt, cut both columns by the row's own prompt length and padding.",
        "Compare one row by hand, token by token.",
    ),
    avoids=("rows with fewer than 16 trained tokens, which are pooled", "rows of low entropy, in which nothing correlates"),
    source="public trainer issues; a shift keeps the mean log-ratio near 0 and only the correlation at another offset shows it",
)
def logprob_misaligned(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Two logprob columns of the same tokens agree only when one is moved by some positions.

    Every ratio is then that of two unrelated tokens: importance weights near 3 in the mean, clipped at random, while the mean
    log-ratio stays near 0 and looks fine.

    Rows with at least 16 trained tokens whose logprobs do not correlate in place are compared at offsets of 1 to 3 positions to
    either side; a row is shifted if the correlation there is above .8 and better by .3. Shorter rows are pooled. More than
    ``rows`` of the rows, and ``count`` rows, is an error. So are fewer rows (``count``, and a share of ``few``) whose logprobs
    agree at the offset as copies do, with a mean correlation above ``clean``: chance does not do that. If ``global`` of the
    shifted rows share one offset it is one shift, of all rows or (below ``half``) of some; else columns are cut by the wrong
    lengths. Tested are the trainer's logprobs against rollout_logprob, and logprob against old_logprob.

    Limits: offsets beyond 3 are seen only as missing correlation, which rollout-trainer-mismatch reports.
    """
    measured = False
    passes_too = shift_of(view, _PASSES, limits) is not None
    for prefix, who in ((ROLLOUT, "the trainer's logprobs and rollout_logprob"), (_PASSES, "logprob and old_logprob")):
        rows, short = view.get(prefix + "shifted_frac"), view.get(prefix + "short_lag")
        measured = measured or rows is not None or short is not None
        breach = shift_of(view, prefix, limits)
        if breach is not None:
            yield _shifted(view, prefix, who, breach, limits, "trainer-passes-shifted" if passes_too else "")
            continue
        moved = None if short is None else among(short, short.values != 0.0, 0.0)
        if moved is not None and moved.marked.mean() > 0.5:
            lag = int(np.median(moved.series.values[moved.marked]))
            message = f"in rows too short to judge one by one, {who} agree only when moved by {lag:+d} positions {moved.when}"
            suspect = "trainer-passes-shifted" if passes_too or prefix == _PASSES else "logprobs-shifted"
            yield Hit(message, "error", (moved.evidence(value=float(lag), where={"lag": lag}),), suspect=suspect)
    if measured:
        return
    if view.get("mismatch.abs") is None:
        yield lacking(view, "mismatch.shifted_frac", "mismatch.pass_shifted_frac")
    else:
        yield NO_TOKENS if only_logged(view) else SHORT


def shift_of(view: View, prefix: str, limits: Limits) -> Breach | None:
    """The steps with shifted rows: many of them, or some that agree at their offset as only copies do.

    Some rows in every step are many of them in one step by chance: where the others hold enough copies, all steps are meant.
    """
    rows, corr = view.get(prefix + "shifted_frac"), view.get(prefix + "lag_corr")
    if rows is None:
        return None
    many, some = above(rows, limits["rows"]), above(rows, 0.0)
    if many is not None and many.items < limits["count"]:
        many = None
    rest = rows.values <= limits["rows"] if many is not None else np.ones(len(rows), np.bool_)
    few = among(rows, rest & (rows.values > 0.0), 0.0)
    copies = None if few is None else at(corr, rows.steps[few.marked])
    if few is None or copies is None or few.items < limits["count"] or pooled(copies) <= limits["clean"]:
        return many
    return some if pooled(rows, rest) >= limits["few"] else many


def _shifted(view: View, prefix: str, who: str, breach: Breach, limits: Limits, suspect: str) -> Hit:
    steps = breach.series.steps[breach.marked]
    lags, share = at(view.get(prefix + "lag"), steps), at(view.get(prefix + "lag_share"), steps)
    lag = 0 if lags is None else int(np.median(lags.values))
    alike = share is not None and pooled(share) >= limits["global"]
    same = alike and lags is not None and bool((lags.values == lag).mean() > limits["global"])
    varied = "by offsets that differ from step to step" if alike else "by offsets that differ from row to row"
    where = f"by {lag:+d} positions" if same else varied
    cause = None if same else "Columns are cut by the wrong row's lengths: the offset varies with prompt or padding."
    level = breach.value
    if same and level < limits["half"]:
        cause = "In some rows the logprobs stand at neighbouring tokens: those with tool calls, say, or those that were resumed."
    told = "columns-cut-by-row" if not same else "logprobs-shifted" if level >= limits["half"] else "some-rows-shifted"
    message = f"in {level:.0%} of {breach.n} rows {who} agree only when moved {where} {breach.when}"
    evidence = (breach.evidence(where={"lag": lag} if same else None),)
    ruled_out = ("stale weights, temperature and numerics: none of them moves the correlation to another position",)
    return Hit(message, "error", evidence, cause, ruled_out, suspect=suspect or told)
