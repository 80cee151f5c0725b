"""Old weights on one side: an old_logprob or an engine that belongs to another policy version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.alignment import SHORT
from rl_doctor.rules.logged_gap import LOGGED_GAP, gap_growth, only_logged
from rl_doctor.rules.reading import lacking, uncorrected
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import (
    FIRST,
    FIRST_METRICS,
    ROLLOUT,
    ROLLOUT_METRICS,
    SHIFTED_ROWS,
    UNRELATED,
    Bins,
    Bools,
    bins,
    kinds,
)
from rl_doctor.rules.spans import above, at, pooled
from rl_doctor.rules.view import View

NEAREST: Final = ("mismatch.rollout_to_old", "mismatch.rollout_to_new")
REFERENCE: Final = ("mismatch.rollout_to_ref", "mismatch.old_to_ref")
OLD_REFERENCE: Final = ("mismatch.first_old_to_ref", "mismatch.first_new_to_ref")
VERSIONS: Final = ("stale.mean", "mismatch.is_weight_mean", "mismatch.bypass_frac")

NEARER: Final = 0.85
"""The rollout's distance to one policy over that to another, below which the first is the nearer one."""
GROWTH: Final = 4.0
VISIBLE: Final = 1e-3
LARGE: Final = 5e-3
GAP: Final = 0.02
LAGGING: Final = 0.05


@rule(
    "RLD101",
    "stale-old-logprob",
    severity="error",
    optional=(
        *ROLLOUT_METRICS, *FIRST_METRICS, *NEAREST, *REFERENCE, *OLD_REFERENCE, *VERSIONS, *LOGGED_GAP,
        "mismatch.calmest_row_abs", "mismatch.pass_shifted_frac",
    ),
    limits={
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

    Two tests. First: logprob against old_logprob in the first mini-batch, where both should be equal. k3 above ``noise`` is
    worth knowing, above ``visible`` a warning, above ``gross`` an error; above ``visible`` it is an error at once where
    something names the outdated side: rollout_logprob is nearer to logprob than to old_logprob (a ratio below ``nearer``), or
    old_logprob repeats the reference. Where the mini-batch is not known, a step in which not even the calmest row has a mean
    difference below ``calm`` counts, if at least 9 of 10 steps are like that. Second: the distance of rollout_logprob to the
    trainer, at the floor in the beginning and ``growth`` times larger later, or a rollout_logprob that is nearer (``half``) to
    the reference than to the trainer. Distances below ``gap`` nat are left alone.

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
    if not hits and rollout is not None:
        yield from outdated_engine(view, rollout)


def outdated_side(view: View, span: tuple[int, int]) -> tuple[str, tuple[Evidence, ...]]:
    """Which side the recorded policies convict in the steps of ``span``: "old", "reference" or "", with the evidence."""
    names = (*OLD_REFERENCE, *NEAREST)
    old, new, to_old, to_new = (_within(view.get(name), span) for name in names)
    if old is not None and new is not None and pooled(new) > GAP and pooled(old) < 0.3 * pooled(new):
        return "reference", (_whole(old, None), _whole(new, None))
    if to_old is not None and to_new is not None and pooled(to_new) < NEARER * pooled(to_old):
        return "old", (_whole(to_old, pooled(to_new)), _whole(to_new, None))
    return "", ()


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
    marked = (first["k3"] > limits["noise"]) & ~kinds(first, None).tempered
    if not marked.any() or (marked.mean() < 0.1 and marked.sum() < 3):
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
    severity: Severity = "error" if level > bar else "warning" if side or level > limits["visible"] else "info"
    if cause == "design":
        severity = "info"
    evidence = (first.evidence("k3", marked, limits["visible"], start), first.evidence("abs", marked), *proof)
    message = (
        f"before any update k3(logprob, old_logprob) is {level:.2g} (mean |d| {size:.3f} nat) {first.when(marked)}"
        f"{_OLD_WORDS[side]}"
    )
    unchecked = () if side else unrecorded(view, "rollout_logprob", "ref_logprob")
    ruled_out = ("temperature: the slope is 1", "a shift: the logprobs agree in place")
    yield Hit(message, severity, evidence, _OLD_CAUSES[cause], ruled_out, unchecked)


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
    if marked is None:
        return
    lag = view.get("stale.mean")
    lagging = lag is not None and pooled(lag) > LAGGING
    if lagging and corrected(view):
        return
    level, floor = found.mean("k3", marked), float(found["abs"][0])
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
    if not marked.any() or (steepest > 0.7 * late and float(np.nanmedian(found["k3"][half])) > 0.1):
        return None
    return marked


def _samples_reference(view: View, found: Bins) -> Hit | None:
    to_ref, old_to_ref, to_old = (view.get(f"mismatch.{name}") for name in ("rollout_to_ref", "old_to_ref", "rollout_to_old"))
    if to_ref is None or old_to_ref is None or to_old is None:
        return None
    steps = np.intersect1d(np.intersect1d(to_ref.steps, old_to_ref.steps), to_old.steps)
    to_ref, old_to_ref, to_old = at(to_ref, steps), at(old_to_ref, steps), at(to_old, steps)
    if to_ref is None or old_to_ref is None or to_old is None:
        return None
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
