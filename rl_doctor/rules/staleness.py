"""Old weights on one side: an old_logprob or an engine that belongs to another policy version."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.alignment import SHORT
from rl_doctor.rules.logged_gap import LOGGED_GAP, gap_growth, only_logged
from rl_doctor.rules.reading import lacking, uncorrected
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import (
    BROKEN_KL,
    FIRST,
    FIRST_METRICS,
    ROLLOUT,
    ROLLOUT_METRICS,
    SHIFTED_ROWS,
    STRETCHED,
    UNRELATED,
    Bins,
    Bools,
    bins,
    from_the_start,
    kinds,
    stretched,
)
from rl_doctor.rules.spans import NO_SPREAD, above, at, offset_by_constant, pooled
from rl_doctor.rules.view import View

NEAREST: Final = ("mismatch.rollout_to_old", "mismatch.rollout_to_new")
REFERENCE: Final = ("mismatch.rollout_to_ref", "mismatch.old_to_ref")
OLD_REFERENCE: Final = ("mismatch.first_old_to_ref", "mismatch.first_new_to_ref")
FIRST_GRADE: Final = ("mismatch.first_bias", "mismatch.first_std", "mismatch.first_rows_frac")
VERSIONS: Final = ("stale.mean", "mismatch.is_weight_mean", "mismatch.bypass_frac")

NEARER: Final = 0.85
"""The rollout's distance to one policy over that to another, below which the first is the nearer one."""
GROWTH: Final = 4.0
VISIBLE: Final = 1e-3
LARGE: Final = 5e-3
GAP: Final = 0.02
MOVED: Final = 6
"""Steps after which a policy that began as the reference has left it, and the weights of some steps ago with it."""
LAGGING: Final = 0.05
ENTROPY: Final = ("mismatch.rollout_mean",)
RISE: Final = 2.5
"""How many times the gap must have grown over the run's own baseline, where every stretch since has kept above twice that."""
SEEN: Final = 0.01
SEEN_K3: Final = 4e-4
"""Size of a gap, in nat, below which no growth is told."""
BESIDE: Final = 1.3
"""How many times what a temperature leaves unexplained must grow to be another fault beside it."""


@rule(
    "RLD101",
    "stale-old-logprob",
    severity="error",
    optional=(
        *ROLLOUT_METRICS, *FIRST_METRICS, *NEAREST, *REFERENCE, *OLD_REFERENCE, *VERSIONS, *LOGGED_GAP,
        "mismatch.calmest_row_abs", "mismatch.pass_shifted_frac", *FIRST_GRADE, *ENTROPY,
    ),
    limits={
        "note": 2e-5, "biased": 5e-3,
        "noise": 5e-4, "visible": VISIBLE, "large": LARGE, "gross": 2e-2, "nearer": NEARER, "growth": GROWTH, "gap": GAP,
        "calm": 0.02, "half": 0.5,
    },
    cause="old_logprob and the samples come from different policy versions.",
    advice=(
        "Check that weights are sent to the engine after every update, and that the engine reloads them (sleep, wake, caches).",
        "Check that old_logprob is computed from the weights that sampled, before the first optimizer step on the batch.",
        "If rollouts lag on purpose, record weight_version and policy_version and correct with importance weights.",
        "Repeat one step with learning rate 0: if the difference still grows, it is the engine and not the weights.",
    ),
    avoids=(
        "rounding of bfloat16 and kernels that depend on the batch: graded, not pass or fail",
        "later mini-batches and epochs, where the ratio is meant to leave 1",
        "asynchronous training with recorded versions and importance weights",
        "old_logprob taken from the engine on purpose",
    ),
    source="PPO's ratio is 1 before the first update by definition; public trainer issues on weight synchronisation",
)  # fmt: skip
def stale_old_logprob(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """The policy behind old_logprob is not the one that sampled the tokens.

    Clipping is then anchored to a policy that never acted. If old_logprob is the outdated one, ratios are off before the first
    update and part of the batch is clipped at once. If it is recomputed while the engine still samples with old weights, the
    ratio is exactly 1 and hides it: only the distance to rollout_logprob grows.

    Two tests. First: logprob against old_logprob in the first mini-batch, where both should be equal. It is graded, by the size
    of the difference, by the share of rows that have it, by its bias, and by the number of tokens: k3 above ``note`` is a
    note (of the steps above ``noise``, if there are any), above ``visible`` a warning, above ``gross`` an error; above
    ``visible`` it is an error at once where something names the outdated side: rollout_logprob is nearer to logprob than to
    old_logprob (a ratio below ``nearer``), or old_logprob repeats the reference. A mean difference above ``biased`` nat, and
    more than two honest policies that far apart may have, is a warning however small k3 is: it moves every ratio to one side.

    Where the mini-batch is not known, a step in which not even the calmest row has a mean
    difference below ``calm`` counts, if at least 9 of 10 steps are like that. Second: the distance of rollout_logprob to the
    trainer, at the floor in the beginning and ``growth`` times larger later, or a rollout_logprob that is nearer (``half``) to
    the reference than to the trainer. Distances below ``gap`` nat are left alone, unless the distance has left the run's own
    baseline for good: 2.5 times it, five of its spreads and more, while the tokens did not become less likely (a warning). At
    another temperature what that leaves unexplained counts, and it must grow.

    Where only the log tells, the second test is that of the growth, beyond six standard errors, and a warning.

    Limits: growth alone cannot tell stale weights from a stale cache or from an engine whose numerics get worse; reference
    logprobs or weight versions can.
    """
    if only_logged(view) and view.get("mismatch.first_abs") is None:
        yield from () if corrected(view) else gap_growth(view)
        return
    first, rollout = bins(view, FIRST), bins(view, ROLLOUT)
    calm = view.get("mismatch.calmest_row_abs")
    if first is None and rollout is None and calm is None:
        measured = view.get("mismatch.abs") is not None or view.get("mismatch.first_abs") is not None
        yield SHORT if measured else lacking(view, "mismatch.first_abs", "mismatch.abs")
        return
    hits = list(_outdated_old(view, first, calm, limits))
    yield from hits
    if rollout is not None and (all(hit.severity == "info" for hit in hits) or _passes_tempered(view, first)):
        yield from outdated_engine(view, rollout)


def outdated_side(view: View, span: tuple[int, int]) -> tuple[str, tuple[Evidence, ...]]:
    """Which side the recorded policies convict in the steps of ``span``: "old", "reference" or "", with the evidence."""
    names = (*OLD_REFERENCE, *NEAREST)
    old, new, to_old, to_new = (_within(view.get(name), span) for name in names)
    near = old is not None and new is not None and pooled(new) > GAP and pooled(old) < 0.3 * pooled(new)
    if near and old is not None and new is not None and has_left_reference(view, span):
        return "reference", (_whole(old, None), _whole(new, None))
    if to_old is not None and to_new is not None and pooled(to_new) < NEARER * pooled(to_old):
        return "old", (_whole(to_old, pooled(to_new)), _whole(to_new, None))
    return "", ()


def has_left_reference(view: View, span: tuple[int, int]) -> bool | None:
    """Whether the policy, as logprob has it, is no longer the reference in the steps of ``span``; None where nothing tells.

    Before its first update a policy is the reference, and so is every older one: an old_logprob that equals the reference's
    says nothing then. A logprob that differs from both may be that of a pass with dropout. Then the samples are those of
    old_logprob: the mean of logprob - old_logprob over them is below 0, and the engine is nearer to old_logprob.
    """
    to_old, to_new, to_ref = (_within(view.get(name), span) for name in (*NEAREST, REFERENCE[0]))
    mean, error = mean_between_passes(view, span)
    sampled_old = to_old is not None and to_new is not None and pooled(to_old) < NEARER * pooled(to_new)
    if sampled_old or mean < -3.0 * error:
        return False
    whole = view.get(OLD_REFERENCE[1])
    away = _within(whole, span)
    if whole is None or away is None:
        return None
    start, lasting = float(whole.values[0]), span[1] - int(whole.steps[0]) >= MOVED
    sampled_new = mean > 3.0 * error or (to_new is not None and to_ref is not None and pooled(to_new) < 0.5 * pooled(to_ref))
    if sampled_new and (lasting or start > 0.5 * pooled(away)):
        return True
    return True if lasting and start < 0.5 * pooled(away) else None


def mean_between_passes(view: View, span: tuple[int, int]) -> tuple[float, float]:
    """Mean of logprob - old_logprob before any update in the steps of ``span``, and its standard error; NaN where unknown."""
    mean, spread = (_within(view.get(name), span) for name in FIRST_GRADE[:2])
    if mean is None or spread is None:
        return math.nan, math.nan
    return pooled(mean), pooled(spread) / math.sqrt(max(int(mean.counts.sum()), 1))


def _within(series: Series | None, span: tuple[int, int]) -> Series | None:
    return None if series is None else at(series, np.arange(span[0], span[1] + 1))


def _whole(series: Series, limit: float | None) -> Evidence:
    first, last = int(series.steps[0]), int(series.steps[-1])
    return Evidence(series.metric, first, last, pooled(series), None, limit, series.unit, int(series.counts.sum()))


_OLD_CAUSES: Final = {
    "reference": "old_logprob repeats the reference policy.",
    "grown": "old_logprob is from an outdated policy: the difference is absent at first and grows with the updates.",
    "old": "old_logprob is not from the policy that sampled: outdated weights, or another forward pass (dropout, precision).",
    "design": "The samples are off-policy by design; old_logprob is that of the sampler.",
    "passes": "Two passes of the trainer over the same weights differ: dropout, kernels or precision.",
}
_CONSTANTS: Final = {
    f"constant-in-{name.replace('_', '-')}": f"A constant is added to {name}." for name in ("old_logprob", "logprob")
}
_OLD_WORDS: Final = {
    "reference": ", and old_logprob equals ref_logprob",
    "old": ", and rollout_logprob agrees with logprob, not with old_logprob",
    "": "",
}


def _outdated_old(view: View, first: Bins | None, calm: Series | None, limits: Limits) -> Iterator[Hit]:
    shifted = view.get("mismatch.pass_shifted_frac")
    if shifted is not None and pooled(shifted) > SHIFTED_ROWS:
        return
    if first is None:
        yield from _never_calm(view, calm, limits)
        return
    marked = _above(first, limits["noise"])
    marked = _above(first, limits["note"]) if marked is None else marked
    if marked is None:
        return
    level, start, size = first.mean("k3", marked), float(first["k3"][0]), first.mean("abs", marked)
    side, proof = outdated_side(view, first.span(marked))
    lag = view.get("stale.mean")
    grown = start < 0.2 * level
    if lag is not None and pooled(lag) > 0.0 and view.get("mismatch.abs") is None and not side:
        cause, bar = "design", float("inf")
    elif grown and side != "reference":
        cause, bar = "grown", limits["visible"] if side else limits["large"]
    else:
        cause, bar = side or "passes", limits["visible"] if side else limits["gross"]
    severity: Severity = "error" if level > bar else "warning" if level > limits["noise" if side else "visible"] else "info"
    bias = _bias(view, first.span(marked), level)
    if bias is not None and abs(bias.value) > limits["biased"] and severity == "info":
        severity = "warning"
    if cause == "design":
        severity = "info"
    rows = _within(view.get("mismatch.first_rows_frac"), first.span(marked))
    proof = (*proof, *(() if bias is None else (bias,)), *(() if rows is None else (_whole(rows, None),)))
    evidence = (first.evidence("k3", marked, limits["visible"], start), first.evidence("abs", marked), *proof)
    message = (
        f"before any update k3(logprob, old_logprob) is {level:.2g} (mean |d| {size:.3f} nat"
        f"{'' if rows is None or pooled(rows) > 0.95 else f', in {pooled(rows):.0%} of the rows'}"
        f"{'' if bias is None else f', biased by {bias.value:+.3f}'}) {first.when(marked)}{_OLD_WORDS[side]}"
    )
    unchecked = () if side else unrecorded(view, "rollout_logprob", "ref_logprob")
    ruled_out = ("temperature: the slope is 1", "a shift: the logprobs agree in place")
    suspect = "weights-outrun-old-samples" if cause == "design" else _constant_in(view, first.span(marked), side)
    told = _CONSTANTS.get(suspect, _OLD_CAUSES[cause])
    yield Hit(message, severity, evidence, told, ruled_out, unchecked, suspect=suspect)


def _constant_in(view: View, span: tuple[int, int], side: str) -> str:
    """The cause, where the two passes differ by the same number at every token: which of them the engine contradicts."""
    bias, spread, to_old, to_new = (_within(view.get(name), span) for name in (*FIRST_GRADE[:2], *NEAREST))
    if bias is None or spread is None or not offset_by_constant(1.0 + bias.values, spread.values, NO_SPREAD).all():
        return ""
    new = to_old is not None and to_new is not None and pooled(to_old) < NEARER * pooled(to_new)
    return "constant-in-logprob" if new else "constant-in-old-logprob" if side != "reference" else ""


def _passes_tempered(view: View, first: Bins | None) -> bool:
    """Whether it is another temperature by which the passes differ, which says nothing about the engine."""
    if first is None:
        return False
    wider = stretched(first, view.config.top_p)
    marked = kinds(first, None).tempered | (wider != 0.0)
    return bool(marked.any()) and from_the_start(first, marked, np.log(np.maximum(first["slope"], 1e-3)))


def _above(first: Bins, limit: float) -> Bools | None:
    """Bins whose k3 is above a limit, other temperatures aside; None if there are none, or hardly any."""
    marked = (first["k3"] > limit) & ~kinds(first, None).tempered
    return None if not marked.any() or (marked.mean() < 0.1 and marked.sum() < 3) else marked


def _bias(view: View, span: tuple[int, int], k3: float) -> Evidence | None:
    """The mean difference of the two passes, if it is more than two honest policies whose k3 is that may have."""
    mean = _within(view.get("mismatch.first_bias"), span)
    found, error = mean_between_passes(view, span)
    if mean is None or math.isnan(error):
        return None
    most = 3.0 * k3 + 4.0 * error
    if abs(found) <= most:
        return None
    return replace(_whole(mean, most), interval=(found - 1.96 * error, found + 1.96 * error))


def _never_calm(view: View, calm: Series | None, limits: Limits) -> Iterator[Hit]:
    """Without mini-batch numbers: steps that hold no row with a ratio near 1."""
    off = above(calm, limits["calm"])
    if off is None or off.marked.mean() < 0.9:
        return
    side, proof = outdated_side(view, (off.first, off.last))
    cause = "old_logprob is from an outdated policy." if side == "old" else None
    cause = "old_logprob repeats the reference policy." if side == "reference" else cause
    message = f"no row of a step has a ratio near 1: even the calmest has a mean |d| of {off.value:.3f} nat {off.when}"
    unchecked = (
        "rows of later mini-batches: minibatch and epoch are not recorded",
        *(() if side else unrecorded(view, "rollout_logprob", "ref_logprob")),
    )
    yield Hit(message, "error" if side else "warning", (off.evidence(), *proof), cause, (), unchecked)


def unrecorded(view: View, *columns: str) -> tuple[str, ...]:
    """Signs that need a column which the run does not have."""
    signs = {
        "rollout_logprob": ("mismatch.rollout_to_old", "which side is outdated: rollout_logprob is not recorded"),
        "ref_logprob": ("mismatch.old_to_ref", "whether the reference stands in: ref_logprob is not recorded"),
        "versions": ("stale.mean", "the lag itself: weight_version and policy_version are not recorded"),
    }
    return tuple(text for metric, text in (signs[name] for name in columns) if view.get(metric) is None)


def outdated_engine(view: View, found: Bins) -> Iterator[Hit]:
    """The engine lags: nearest to the reference, or a distance that grows from the floor."""
    sort = kinds(found, view.config.top_p)
    usable = ~sort.structural
    hit = _samples_reference(view, found) if usable.any() else None
    if hit is not None:
        yield hit
        return
    marked = growth(found, usable)
    if marked is None and not _more_surprised(view, found):
        marked = risen(found, usable)
    beside = besides(found, ~(sort.shifted | sort.truncated | sort.one_sided))
    marked = marked if beside is None else beside
    if marked is None:
        return
    lag = view.get("stale.mean")
    lagging = lag is not None and pooled(lag) > LAGGING
    if lagging and corrected(view):
        return
    level, floor = found.mean("k3", marked), float(np.median(found["abs"][: max(1, int(np.flatnonzero(marked)[0]))]))
    evidence = (found.evidence("abs", marked, GROWTH * floor, floor), found.evidence("k3", marked, VISIBLE))
    message = f"the mean |trainer - rollout| grows from {floor:.3f} to {found.mean('abs', marked):.3f} nat {found.when(marked)}"
    if lagging and lag is not None:
        message += f", with samples {pooled(lag):.1f} versions old on average and no correction recorded"
        cause = "Samples lag behind the policy and nothing in the loss corrects for it."
        yield Hit(message, "warning", (*evidence, _whole(lag, 0.0)), cause, _steady(found, marked))
        return
    cause = "The engine samples with outdated weights: weight synchronisation does not reach it, or only in part."
    severity: Severity = "error" if level > LARGE else "warning"
    unchecked = (
        *unrecorded(view, "ref_logprob", "versions"),
        "a stale prefix cache or engine numerics that get worse: repeat a step at learning rate 0",
    )
    if beside is not None:
        message += "; what the temperature leaves unexplained grows as well"
        yield Hit(message, severity, evidence, cause, (), unchecked, suspect="engine-outdated")
        return
    yield Hit(message, severity, evidence, cause, _steady(found, marked), unchecked)


def _steady(found: Bins, marked: Bools) -> tuple[str, ...]:
    slope = found.mean("slope", marked)
    return (f"temperature: the slope is {slope:.2f}", "an engine that differs from the start: the first steps are at the floor")


def corrected(view: View) -> bool:
    """Whether the run says that the loss corrects for the sampler's distribution, or its ratio does."""
    bypass = view.get("mismatch.bypass_frac")
    return (
        not uncorrected(view) or view.get("mismatch.is_weight_mean") is not None or (bypass is not None and pooled(bypass) > 0.9)
    )


def growth(found: Bins, usable: Bools) -> Bools | None:
    """Bins whose distance has left the floor of the first one for good; None if none has.

    In the second half it is ``GROWTH`` times the floor. A jump to an unrelated distribution is not growth.
    """
    if len(found) < 4 or not usable[0]:
        return None
    size, floor = found["abs"], max(float(found["abs"][0]), 1e-3)
    half = np.arange(len(found)) >= len(found) // 2
    late = float(np.median(size[half]))
    if late < GROWTH * floor or late < GAP or float(np.nanmedian(found["k3"][half])) < VISIBLE:
        return None
    marked = (size > 0.5 * late) & usable
    steepest = float(np.max(np.diff(size)))
    if not marked.any() or (steepest > 0.7 * late and float(np.nanmedian(found["k3"][marked])) > 0.1):
        return None
    return marked


def risen(found: Bins, usable: Bools) -> Bools | None:
    """Bins from which on the distance stands above the run's own baseline, by little in nat and by much against its noise.

    From some bin on (four or more lie before it, three or more behind) nine of ten are beyond twice the median before and five
    times its spread, and the last three ``RISE`` times it.
    """
    size = found["abs"]
    if len(found) < 7 or not usable[0] or not bool(np.all(size > 0.0)):
        return None
    x = np.log(size)
    late = slice(len(x) - 3, None)
    if float(np.nanmedian(found["k3"][late])) > BROKEN_KL:  # another distribution, and not weights that lag
        return None
    if float(np.median(size[late])) < SEEN or float(np.nanmedian(found["k3"][late])) < SEEN_K3 or not usable[late].all():
        return None
    for start in range(4, len(x) - 2):
        before = x[:start]
        base = float(np.median(before))
        spread = max(1.05 * float(np.median(np.abs(np.diff(before)))), 0.08)  # of what is left of a trend
        beyond = x[start:] > base + max(math.log(2.0), 5.0 * spread)
        if beyond[0] and beyond.mean() >= 0.9 and float(np.median(x[late])) > base + math.log(RISE):
            marked = usable & (np.arange(len(x)) >= start)
            return marked if marked.any() else None
    return None


def _more_surprised(view: View, found: Bins) -> bool:
    """Whether the tokens became less likely meanwhile: noise of one size in the logits is then a larger gap."""
    mean = view.get(ENTROPY[0])
    if mean is None or len(found) < 7:
        return False
    first, last = mean.values[mean.steps <= found.last[3]], mean.values[mean.steps >= found.first[-3]]
    return first.size > 0 and last.size > 0 and float(np.median(last)) < 1.5 * float(np.median(first))


def besides(found: Bins, usable: Bools) -> Bools | None:
    """Bins at another temperature in which what that leaves unexplained grows; None if it stays as it is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        wider, rest = np.log(found["slope"] / found["corr"]), 1.0 - found["corr"] ** 2
    tempered = usable & (wider < -STRETCHED) & (wider < -rest) & (found["corr"] > UNRELATED)
    index = np.flatnonzero(tempered)
    if len(index) < 6:
        return None
    rest = rest[index]
    order = np.argsort(np.argsort(rest))
    steady = float(np.corrcoef(order, np.arange(len(index)))[0, 1])
    third = len(index) // 3
    early, late = float(np.median(rest[:third])), float(np.median(rest[-third:]))
    return tempered if steady > 0.8 and late > BESIDE * early else None


def _samples_reference(view: View, found: Bins) -> Hit | None:
    to_ref, old_to_ref, to_old = (view.get(f"mismatch.{name}") for name in ("rollout_to_ref", "old_to_ref", "rollout_to_old"))
    if to_ref is None or old_to_ref is None or to_old is None:
        return None
    steps = np.intersect1d(np.intersect1d(to_ref.steps, old_to_ref.steps), to_old.steps)
    to_ref, old_to_ref, to_old = at(to_ref, steps), at(old_to_ref, steps), at(to_old, steps)
    if to_ref is None or old_to_ref is None or to_old is None:
        return None
    to_new = at(view.get(NEAREST[1]), steps)  # a pass with a fault of its own is far from everything
    if to_new is not None and np.array_equal(to_new.steps, to_old.steps):
        to_old = replace(to_old, values=np.minimum(to_old.values, to_new.values))
    marked = (to_ref.values < 0.5 * to_old.values) & (to_old.values > GAP)
    lag = at(view.get("stale.mean"), steps)
    if lag is not None and len(lag) == len(steps):
        marked &= lag.values <= LAGGING
    if not marked.any() or to_old.values[~marked].min(initial=np.inf) > 0.3 * to_old.values[marked].max():
        return None
    lasting = marked.sum() >= 5 and marked.mean() >= 0.2
    far = to_old.values[marked].max(initial=0.0) > 5 * GAP
    if not (lasting or far) or found.mean("corr", np.ones(len(found), np.bool_)) < UNRELATED:
        return None
    away = above(Series(to_old.metric, to_old.unit, steps, np.where(marked, to_old.values, 0.0), to_old.counts), 0.0)
    if away is None:
        return None
    near = pooled(to_ref, marked)
    evidence = (
        away.evidence(), Evidence(to_ref.metric, away.first, away.last, near, None, 0.5 * away.value, "nat", away.n),
        Evidence(old_to_ref.metric, away.first, away.last, pooled(old_to_ref, marked), None, None, "nat", away.n),
    )  # fmt: skip
    message = (
        f"rollout_logprob is nearer to the reference ({near:.3f} nat) than to the trainer ({away.value:.3f} nat) {away.when}"
    )
    cause = "The engine samples with the reference's weights: it never got the trained ones, or lost them at a restart."
    return Hit(message, "error", evidence, cause, ("an engine with other numerics: it agrees with the reference",))
