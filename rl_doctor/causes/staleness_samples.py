"""Samples of another version than the one that is trained: by design, hidden, or stamped wrongly."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, found_any, measured, over, sign
from rl_doctor.causes.staleness_signs import ends
from rl_doctor.rules.spans import weighted

_RULES: Final = ("stale-samples-uncorrected", "stale-old-logprob", "ratio-saturation", "inert-ratio")
_ALL: Final = (*_RULES, "rollout-trainer-mismatch")
_FOUND: Final = found_any("the policy that sampled is not the one that is trained", *_ALL, role="typical")
_FOLLOWS: Final = (
    *_ALL, "kl-spike", "kl-runaway", "reward-flatline", "reward-drift", "grad-norm-spike", "grad-vanished", "update-cut-short",
    "mismatch-before-explosion", "sudden-collapse", "entropy-explosion", "entropy-collapse",
)  # fmt: skip
_LAG: Final = measured("stale.mean", over(0.5), "the samples are versions old", "the samples are {} versions old on average")
_CORRECTION: Final = ("mismatch.is_weight_mean", "mismatch.bypass_frac")


@sign("the loss corrects for it", *_CORRECTION, role="against")
def _corrected(scene: Scene) -> Look:
    named, bypass = scene.view.config.is_correction, scene.value("mismatch.bypass_frac")
    fixed = named not in {None, "", "none"} or scene.series("mismatch.is_weight_mean") is not None or bypass > 0.9
    told = "a correction is recorded" if fixed else f"is_correction is {named}, and no importance weights are recorded"
    return Look(fixed, told)


@sign("the gap to the sampler grows with the lag", "stale.gap_slope", "stale.gap_slope_error")
def _by_lag(scene: Scene) -> Look:
    slope, error = weighted(scene.view.get("stale.gap_slope"), scene.view.get("stale.gap_slope_error"))
    if not np.isfinite(slope):
        return Look(None, _by_lag.words, None, scene.missing("stale.gap_slope"))
    return Look(slope > 4.0 * error, f"|d| grows by {slope:.2g} +- {1.96 * error:.1g} nat per version of lag")


@sign("the ratio is 1 before any update all the same", "policy.first_zero_frac", "mismatch.first_abs")
def _blind(scene: Scene) -> Look:
    series = scene.series("policy.first_zero_frac")
    if series is None:
        return Look(None, _blind.words, None, scene.missing("policy.first_zero_frac"))
    share, size = scene.value("policy.first_zero_frac"), scene.value("mismatch.first_abs")
    there = share > 0.9 or size < 1e-3
    return Look(there, f"the log-ratio is exactly 0 on {share:.0%} of the tokens before any update", int(series.steps[0]))


cause(
    "staleness-hidden-by-recomputation",
    "old_logprob is recomputed with the newest weights, which hides that the samples are old",
    explains=(*_RULES, "rollout-trainer-mismatch"),
    leads_to=_FOLLOWS,
    signs=(_FOUND, _LAG, _blind, _by_lag, _corrected),
    advice=(
        "Correct with importance weights against rollout_logprob (decoupled objective), or take rollout_logprob for old_logprob.",
        "Lower the number of versions that a sample may be old.",
        "Watch |trainer's logprob - rollout_logprob| by lag, not the ratio: the ratio cannot show it.",
    ),
    source="Public trainer issues; AReaL, arXiv:2505.24298, section 5.3 (decoupled objective)",
    doc="""The ratio is 1 by construction and clipping is anchored to a policy that never sampled. Only the distance to the
    sampler's own logprobs shows the lag, and grows with it.""",
)  # fmt: skip

cause(
    "samples-too-old",
    "the samples are older than the weights that are trained on them, and nothing corrects for it",
    explains=(*_RULES, "rollout-trainer-mismatch"),
    leads_to=_FOLLOWS,
    signs=(_FOUND, _LAG, _corrected, found("ratio-saturation", "many ratios lie outside the clip range", role="typical")),
    advice=(
        "Lower the number of versions that a sample may be old, or wait for the engine.",
        "Correct with importance weights against rollout_logprob, truncated.",
    ),
    source="AReaL, arXiv:2505.24298, section 5 (staleness in policy versions)",
    doc="""Asynchronous training by design, without what makes it one: each sample is some versions old, the ratio starts away
    from 1 or is held at 1, and clipping takes the gradient of what moved most.""",
)  # fmt: skip


@sign("generation and training overlap: asynchronous training", "stale.mean", "time.generation", "time.update", "time.step")
def _asynchronous(scene: Scene) -> Look:
    lag = scene.view.get("stale.mean")
    if lag is not None and float(np.median(lag.values)) >= 0.5:
        return Look(there=True, text=f"the samples are {float(np.median(lag.values)):.1f} versions old")
    generation, update, step = (_median(scene, f"time.{name}") for name in ("generation", "update", "step"))
    if generation is None or update is None or step is None:
        return Look(there=False, text="neither versions nor clocks say that training is asynchronous")
    told = f"generation ({generation:.3g} s) and update ({update:.3g} s) in steps of {step:.3g} s"
    return Look(generation + update > 1.05 * step, told)


@sign("generation takes longer than training", "time.generation", "time.update", "time.wait")
def _slow(scene: Scene) -> Look:
    generation, update, wait = (_median(scene, f"time.{name}") for name in ("generation", "update", "wait"))
    if generation is None or update is None:
        if wait is None:
            return Look(None, _slow.words, None, ("time.generation", "time.update"))
        series = scene.view.get("time.wait")
        first, last = (0.0, 0.0) if series is None else ends(series)
        grows = last > 1.3 * first
        return Look(grows, f"the trainer waits {wait:.3g} s a step")
    return Look(generation > 1.1 * update, f"generation takes {generation:.3g} s and the update {update:.3g} s a step")


@sign("the lag grows", "stale.mean", role="typical")
def _lag_grows(scene: Scene) -> Look:
    series = scene.view.get("stale.mean")
    if series is None or len(series) < 8:
        return Look(None, _lag_grows.words, None, scene.missing("stale.mean"))
    first, last = ends(series)
    return Look(last > first + 0.5, f"the lag is {first:.1f} versions at first and {last:.1f} at the end", int(series.steps[0]))


@sign("clipping grows", "policy.clip_frac", "policy.outside_frac", role="typical")
def _clip_grows(scene: Scene) -> Look:
    series = scene.view.get("policy.clip_frac")
    series = scene.view.get("policy.outside_frac") if series is None else series
    if series is None or len(series) < 8:
        return Look(None, _clip_grows.words, None, scene.missing("policy.clip_frac"))
    first, last = ends(series)
    return Look(last > 1.5 * first + 0.01, f"the clipped share is {first:.1%} at first and {last:.1%} at the end")


def _median(scene: Scene, name: str) -> float | None:
    series = scene.view.get(name)
    return None if series is None else float(np.median(series.values))


cause(
    "generation-slower-than-training",
    "generation is slower than training, so that samples grow old in the queue",
    explains=_RULES,
    leads_to=(*_FOLLOWS, "rollout-trainer-mismatch"),
    signs=(_FOUND, _asynchronous, _slow, _lag_grows, _clip_grows, found("reward-flatline", "the reward is flat", role="typical")),
    advice=(
        "Give generation more devices, or training fewer, until both take about as long.",
        "Lower the number of versions that a sample may be old: the trainer then waits instead of clipping.",
        "Correct with importance weights against rollout_logprob, truncated.",
    ),
    source="Reports on asynchronous training: lag and clip share grow with the time that generation takes, the loss is flat",
    doc="""The trainer is ready before the next samples are, so that it goes on with old ones, and the weights move on
    meanwhile. Lag and clip share grow together, and what is clipped teaches nothing: loss and reward are flat.""",
)  # fmt: skip

cause(
    "weights-outrun-old-samples",
    "the samples are off-policy by design, and old_logprob is the sampler's",
    explains=("stale-old-logprob", "stale-samples-uncorrected"),
    leads_to=("ratio-saturation",),
    signs=(
        found("stale-old-logprob", "the ratio is not 1 before any update", suspect="weights-outrun-old-samples"),
        _LAG,
        found("ratio-saturation", "many ratios lie outside the clip range", role="typical"),
    ),
    advice=("Nothing while few ratios lie outside the clip range; else lower the number of versions that a sample may be old.",),
    source="AReaL, arXiv:2505.24298, section 5 (staleness in policy versions)",
    doc="""With recorded versions and the sampler's logprobs as old_logprob the ratio itself corrects for the lag.""",
)  # fmt: skip

for _name, _label, _words, _advice, _doc in (
    (
        "version-stamps-count-samples",
        "the stamps count samples, not versions of the weights",
        "nearly every sample has a stamp of its own",
        "Stamp samples with the version that the engine holds: a counter of samples or requests stands in its place.",
        "Each sample has a number of its own, and soon one that the trainer has not reached.",
    ),
    (
        "version-stamps-ahead",
        "samples are stamped with versions that the trainer did not have yet",
        "stamps are newer than the policy",
        "Count versions in one place, where weights are pushed; look at samples of validation and of other jobs on the engine.",
        "A sample cannot be newer than the weights that are trained: two counters are in use, or it is another job's.",
    ),
    (
        "version-stamps-missing",
        "some samples leave the engine without a stamp",
        "some samples have no version, others do",
        "Stamp aborted, continued and cached samples too; until then treat those without a stamp as too old.",
        "A limit on the staleness lets samples without a stamp pass, or drops them all: both change what is trained on.",
    ),
    (
        "version-stamps-go-back",
        "an engine went back to older weights, or counts its versions anew",
        "the stamps of a rank fall while the policy's version rises",
        "Look at the engine of that rank: a restart, a failed push of weights, or a counter of its own.",
        "Where the stamps are right, the engine samples with older weights from there on, and the gap to the trainer shows it.",
    ),
):
    cause(
        _name,
        _label,
        explains=("version-stamps-wrong",),
        leads_to=("stale-samples-uncorrected",),
        signs=(found("version-stamps-wrong", _words, suspect=_name),),
        advice=(_advice, "Until then the limit on the staleness, and every number by lag, is not to be trusted."),
        source="Public trainer issues on samples with a wrong stamp, or with none",
        doc=_doc,
    )  # fmt: skip
