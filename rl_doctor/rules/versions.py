"""Version stamps of samples: those that cannot be right, and what the lag that they tell costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach, above, at, pooled, weighted
from rl_doctor.rules.staleness import corrected
from rl_doctor.rules.view import View

_BY_RANK: Final = "version.weight_by.rank."
_STAMPS: Final = ("version.ahead_frac", "version.missing_frac", "version.distinct_frac", "version.weight_max")


@rule(
    "RLD120", "version-stamps-wrong",
    severity="warning", since="0.2.0",
    optional=(*_STAMPS, "version.policy_max", "stale.min", "stale.max", "mismatch.abs", _BY_RANK),
    limits={"rows": 1, "missing": 0.01, "counter": 0.9, "counted": 16, "back": 1.0},
    cause="Samples carry a stamp that is no version of the weights: a counter of samples or steps, another counter, or none.",
    advice=(
        "Stamp every sample, aborted ones and those of a validation too, with the version that the engine held when it began.",
        "Count versions in one place, where weights are pushed, and let trainer and engine read it.",
        "Until then take no limit on the staleness for granted: it is computed from these stamps.",
    ),
    avoids=(
        "asynchronous training: stamps that lag, by whatever number",
        "restarts, after which both versions count anew",
        "runs without versions: skipped",
    ),
    source="Public trainer issues: validation samples stamped with a sample counter, aborted ones with nothing",
)  # fmt: skip
def version_stamps_wrong(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Samples are stamped with versions that cannot be those of the weights that sampled them.

    Whatever is done about staleness is done by these stamps: samples are dropped, weighted or waited for. With a wrong stamp old
    samples pass as new ones, or new ones are thrown away, and no curve shows it.

    It fires if a `weight_version` is newer than the policy being trained (`rows` rows or more); if nearly every row (`counter`
    per row, of at least `counted` rows a step) has a version of its own, as a counter of samples would give; if more than
    `missing` of the rows, and not all, have no version; or if the stamps of a rank go back by more than the largest lag and
    `back`, while the policy's version rises.

    Limits: a stamp that is wrong and still plausible shows only in the distance to the sampler's logprobs, which
    stale-samples-uncorrected and stale-old-logprob look at.
    """
    if all(view.get(name) is None for name in _STAMPS):
        yield lacking(view, *_STAMPS)
        return
    ahead, own = above(view.get("version.ahead_frac"), 0.0), _counter(view, limits)
    if ahead is not None and ahead.items >= limits["rows"] - 0.5:
        yield _hit_ahead(view, ahead, own)
    elif own is not None:
        yield Hit(
            f"nearly every sample has a weight_version of its own ({own.value:.2f} per row {own.when}): it counts samples",
            "warning", (own.evidence(),), suspect="version-stamps-count-samples",
        )  # fmt: skip
    missing = above(view.get("version.missing_frac"), limits["missing"])
    if missing is not None and pooled(view.series("version.missing_frac")) < 1.0:
        yield Hit(
            f"{missing.items:.0f} of {missing.n:,} samples ({missing.value:.1%}) have no weight_version {missing.when}",
            "warning", (missing.evidence(),), "Some samples leave the engine without a stamp: aborted, continued or cached ones.",
            suspect="version-stamps-missing",
        )  # fmt: skip
    if ahead is None and own is None:
        yield from _backwards(view, limits)


def _counter(view: View, limits: Limits) -> Breach | None:
    """Steps of enough rows in which nearly each has a version of its own; most of them must be like that."""
    found = view.get("version.distinct_frac")
    if found is None:
        return None
    large = at(found, found.steps[found.counts >= limits["counted"]])
    breach = above(large, limits["counter"])
    return breach if breach is not None and float(np.mean(breach.marked)) > 0.5 else None


def _hit_ahead(view: View, ahead: Breach, own: Breach | None) -> Hit:
    least = at(view.get("stale.min"), ahead.series.steps[ahead.marked])
    steady = _one_ahead(view, ahead)
    far = "" if least is None else f", by up to {-float(least.values.min()):.0f} versions"
    words = "of the samples are stamped with a version that the trainer did not have yet"
    proof = [ahead.evidence()]
    if least is not None:
        proof.append(Evidence(least.metric, ahead.first, ahead.last, float(least.values.min()), None, 0.0, "versions", ahead.n))
    return Hit(
        f"{ahead.value:.1%} {words}{far}, {ahead.when}", "info" if steady else "warning", tuple(proof),
        "The two versions are counted from another start: each sample is ahead by exactly 1." if steady else None,
        ruled_out=("stale samples: these would be stamped with an older version, not with a newer one",),
        suspect="version-stamps-ahead" if own is None else "version-stamps-count-samples",
    )  # fmt: skip


def _one_ahead(view: View, ahead: Breach) -> bool:
    """Whether every sample of every step is ahead by exactly 1: a matter of counting."""
    ends = [series for name in ("stale.min", "stale.max") if (series := view.get(name)) is not None]
    return bool(ends) and ahead.value == 1.0 and all(bool(np.all(series.values == -1.0)) for series in ends)


def _backwards(view: View, limits: Limits) -> Iterator[Hit]:
    """Stamps of a rank that fall below what the lag allows."""
    policy, lag = view.get("version.policy_max"), view.get("stale.max")
    ranks = view.named(_BY_RANK) or {name: series for name in ("version.weight_max",) if (series := view.get(name)) is not None}
    for name, series in ranks.items():
        if len(series) < 4 or policy is None:
            continue
        restarts = policy.steps[1:][np.diff(policy.values) < 0]
        reach = limits["back"] + (0.0 if lag is None else float(np.median(lag.values)))
        fallen = np.maximum.accumulate(series.values) - series.values > reach
        if restarts.size:
            fallen &= series.steps < restarts[0]
        if not fallen.any():
            continue
        index = int(np.flatnonzero(fallen)[0])
        where = {"rank": name.removeprefix(_BY_RANK)} if name.startswith(_BY_RANK) else None
        step, before = int(series.steps[index]), float(series.values[:index].max())
        last = int(series.steps[np.flatnonzero(fallen)[-1]])
        yield Hit(
            f"the stamps{'' if where is None else ' of rank ' + where['rank']} go back from version {before:.0f} to "
            f"{series.values[index]:.0f} at step {step}, while the policy's version rises",
            "warning", (Evidence(series.metric, step, last, float(series.values[index]), before, before - reach, "versions",
                                 int(series.counts[fallen].sum()), where),),
            "An engine went back to older weights, or counts its versions anew.", suspect="version-stamps-go-back",
        )  # fmt: skip
        return


@rule(
    "RLD121", "stale-samples-uncorrected",
    severity="warning", since="0.2.0",
    needs=("stale.mean",),
    optional=("stale.max", "stale.behind_frac", "stale.gap_slope", "stale.gap_slope_error", "mismatch.abs",
              "mismatch.is_weight_mean", "mismatch.bypass_frac", "stale.mixed_frac"),
    limits={"lag": 0.9, "long": 8.0, "cost": 0.02, "sigmas": 5.0},
    cause="Samples are older than the weights that are trained on them, and nothing in the loss corrects for it.",
    advice=(
        "Correct with importance weights against rollout_logprob (truncated), or take rollout_logprob for old_logprob.",
        "Lower the number of versions that a sample may be old, or wait for the engine.",
        "Compare the time of generation with that of training: where generation is the slower one, the lag grows.",
    ),
    avoids=(
        "staleness that importance weights or old_logprob itself correct for",
        "a lag whose cost is measured and small: info",
        "some rows that are continued after a pause (partial rollouts)",
    ),
    source="AReaL, arXiv:2505.24298, section 5; public trainer issues on recomputed old logprobs",
)  # fmt: skip
def stale_samples_uncorrected(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The recorded versions say that samples are old, and nothing corrects for it.

    The gradient is then that of another objective than the one meant, by as much as the policy has moved since sampling. With
    old_logprob recomputed by the newest weights the ratio is 1, clipping is anchored to a policy that never acted, and neither
    clip share nor KL show anything.

    The mean lag must be `lag` versions or more, and neither configuration, importance weights nor old_logprob correct for it.
    What a version costs is measured: the slope of |trainer's logprob - rollout_logprob| on the lag among the rows of a step,
    pooled over the steps by its error. It is a warning if lag times slope is at least `cost` nat (and `sigmas` errors away from
    0), or if the lag is `long` and the slope is not known; otherwise info.

    Limits: the slope needs rows of different lags within a step; where all are equally old, the growth of the distance itself
    has to tell (stale-old-logprob).
    """
    lag = view.series("stale.mean")
    old = above(lag, limits["lag"])
    if old is None or corrected(view):
        return
    if float(np.mean(old.marked)) < 0.2 and old.marked.sum() < 3:
        return
    slope, error = weighted(view.get("stale.gap_slope"), view.get("stale.gap_slope_error"))
    cost = slope * old.value
    told = math.isfinite(slope) and slope > limits["sigmas"] * error
    bad = (told and cost >= limits["cost"]) or (not math.isfinite(slope) and old.value >= limits["long"])
    severity: Severity = "warning" if bad else "info"
    proof = [old.evidence()]
    message = f"the samples are {old.value:.1f} versions old on average {old.when}, and no correction is recorded"
    if math.isfinite(slope):
        series = view.series("stale.gap_slope")
        proof.append(Evidence(
            series.metric, int(series.steps[0]), int(series.steps[-1]), slope, 0.0, limits["cost"] / old.value, "nat",
            int(series.counts.sum()), interval=(slope - 1.96 * error, slope + 1.96 * error),
        ))  # fmt: skip
        message += f"; |d| grows by {slope:.2g} nat per version"
    unchecked = () if math.isfinite(slope) else ("what a version costs: rollout_logprob, and rows of different lags",)
    yield Hit(message, severity, tuple(proof), unchecked=unchecked)
