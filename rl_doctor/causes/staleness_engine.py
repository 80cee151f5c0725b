"""An engine whose weights or caches are not those of the trainer, told by when the gap comes and what it is near to."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.sampling_signs import some_rows_unrelated
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import between, found_any, measured, over, sign
from rl_doctor.causes.staleness_signs import (
    GAPS,
    both,
    either,
    gap,
    gap_sign,
    grows,
    nearest,
    no_gap,
    onset_of,
    rate_is_zero,
    start_and_level,
    summed_rate,
    with_role,
)
from rl_doctor.rules.spans import at, pooled

_RULES: Final = ("stale-old-logprob", "rollout-trainer-mismatch")
_CACHED: Final = (*_RULES, "mismatch-in-some-rows", "recurring-prompts-worse")
_FOUND: Final = found_any("engine and trainer are different policies", *_RULES)
_FOLLOWS: Final = (
    *_RULES, "kl-penalty-dominates", "grad-clipped-always", "mismatch-in-some-rows",
    "recurring-prompts-worse", "inert-ratio", "ratio-saturation",
    "stale-samples-uncorrected", "mismatch-before-explosion", "kl-spike", "kl-runaway", "reward-flatline", "reward-drift",
    "reward-variance-shift", "grad-norm-spike", "entropy-explosion", "length-explosion", "length-truncation",
    "temperature-mismatch", "kl-below-zero", "unlawful-rollout-logprob", "sudden-collapse", "tokens-contradict-entropy",
    "mismatch-by-part",
)  # fmt: skip
_PASSES: Final = measured(
    "mismatch.first_k3", over(1e-3), "before any update the ratio is not 1",
    "before any update k3 of logprob and old_logprob is {} nat",
)  # fmt: skip


@sign("before any update the ratio is not 1, and not because of a temperature", "mismatch.first_k3", role="against")
def _old_side(scene: Scene) -> Look:
    found = scene.results.get("temperature-mismatch")
    told = _PASSES.look(scene)
    stretched = found is not None and any(hit.suspect == "trainer-pass-lacks-temperature" for hit in found.findings)
    return Look(there=False, text=f"{told.text}, which is a temperature") if told.there and stretched else told


_TO_REFERENCE: Final = (
    "mismatch.rollout_to_ref", "mismatch.rollout_to_old", "the engine is nearer to the reference than to the trainer",
    "rollout_logprob is {} nat from the reference and {} from the trainer",
)  # fmt: skip
_SHARE_SHORT: Final = 0.2
_LONG: Final = 8
_SEEN: Final = "mismatch.abs_by.{}_seen."


def _rise(scene: Scene) -> tuple[int, float] | None:
    """Step of the largest rise of the gap, and its share of the whole rise."""
    series = gap(scene)
    if series is None or len(series) < 5:
        return None
    found = start_and_level(scene, *GAPS)
    if found is None:
        return None
    _, start, level = found
    if not level > start:
        return None
    rises = np.diff(series.values)
    index = int(np.argmax(rises))
    before = float(np.median(series.values[max(index - 2, 0) : index + 1]))
    after = float(np.median(series.values[index + 1 : index + 4]))
    return int(series.steps[index + 1]), (after - before) / (level - start)


@gap_sign("most of the gap comes from one step to the next")
def _jumps(scene: Scene) -> Look:
    found = _rise(scene)
    if found is None:
        return no_gap(scene, _jumps.words)
    step, share = found
    return Look(share > 0.7, f"the rise at step {step} is {min(share, 9.99):.0%} of the whole", step)


@gap_sign("the gap stays where it is after that")
def _stays(scene: Scene) -> Look:
    series, found = gap(scene), _rise(scene)
    if series is None or found is None:
        return no_gap(scene, _stays.words)
    begin = found[0] if scene.first_step is None else min(found[0], scene.first_step)
    after = series.values[series.steps >= begin]
    if after.size < 3:
        return Look(None, _stays.words)
    half = after.size // 2
    one, other = float(np.median(after[:half])), float(np.median(after[half:]))
    most = 1.5 if after.size >= _LONG else 1.3
    return Look(other < most * one, f"after step {begin} it is {one:.2g}, and {other:.2g} later")


@gap_sign("the gap grows with the updates, from the first ones on", "optim.learning_rate")
def _with_updates(scene: Scene) -> Look:
    series = gap(scene)
    if series is None or len(series) < 6:
        return no_gap(scene, _with_updates.words)
    size = len(series)
    start = float(np.median(series.values[: max(2, size // 12)]))
    level = float(np.median(series.values[-max(size // 3, 3) :]))
    done = summed_rate(scene, series.steps)
    progress = np.linspace(0.0, 1.0, size) if done is None else done
    early = series.values[(progress > 0.05) & (progress <= 0.35)]
    if early.size == 0 or not level > start:
        return Look(there=False, text=f"the gap does not grow: {start:.2g} and {level:.2g}")
    share = (float(np.median(early)) - start) / (level - start)
    return Look(share > 0.15, f"{max(share, 0.0):.0%} of the growth is there after a third of the updates")


@gap_sign("the gap is at its floor while the learning rate is about 0, and grows after", "optim.learning_rate")
def _after_warm_up(scene: Scene) -> Look:
    series, rate = gap(scene), scene.view.get("optim.learning_rate")
    if series is None or rate is None:
        return Look(None, _after_warm_up.words, None, scene.missing(GAPS[0], "optim.learning_rate"))
    low = np.minimum.accumulate((rate.values < 0.25 * rate.values.max()).astype(np.int64)).astype(np.bool_)
    if low.sum() < 2 or low.all():
        return Look(there=False, text="the learning rate is near its peak from the first step on")
    quiet, later = at(series, rate.steps[low]), at(series, rate.steps[~low])
    if quiet is None or later is None:
        return Look(None, _after_warm_up.words)
    last = int(rate.steps[low][-1])
    calm, level = pooled(quiet), float(np.median(later.values[-max(len(later) // 3, 1) :]))
    return Look(calm < 0.4 * level, f"the gap is {calm:.2g} while the learning rate is low (to step {last}), then {level:.2g}",
                int(later.steps[0]))  # fmt: skip


@gap_sign(
    "the engine had kept up while the weights moved", "mismatch.old_to_ref", "mismatch.rollout_to_old", "optim.learning_rate"
)
def _in_step_before(scene: Scene) -> Look:
    series = gap(scene)
    index = None if series is None else onset_of(series)
    if series is None or index is None:
        return no_gap(scene, _in_step_before.words)
    step = int(series.steps[index])
    moved, away = (scene.view.get(name) for name in ("mismatch.old_to_ref", "mismatch.rollout_to_old"))
    if moved is not None and away is not None:
        near = series.steps[(series.steps < step) & (series.steps >= series.steps[max(index - max(index // 3, 2), 0)])]
        one, other = at(moved, near), at(away, near)
        if one is not None and other is not None:
            told = f"before step {step} the policy is {pooled(one):.2g} nat from the reference"
            told += f" and {pooled(other):.2g} from the engine"
            return Look(pooled(other) < 0.5 * pooled(one), told, step)
    done = summed_rate(scene, series.steps[index : index + 1])
    if done is None:
        return Look(None, _in_step_before.words, None, scene.missing("mismatch.old_to_ref", "optim.learning_rate"))
    return Look(float(done[0]) > 0.25, f"{float(done[0]):.0%} of the learning rate was spent before step {step}", step)


@gap_sign("it lasts a few steps and is over")
def _short(scene: Scene) -> Look:
    series = gap(scene)
    if series is None or scene.first_step is None or scene.last_step is None:
        return no_gap(scene, _short.words)
    lasts = int(np.count_nonzero((series.steps >= scene.first_step) & (series.steps <= scene.last_step)))
    over_at = scene.last_step < int(series.steps[-1])
    told = f"it lasts {lasts} of {len(series)} steps{f' and is over after step {scene.last_step}' if over_at else ''}"
    return Look(over_at and lasts <= max(3, _SHARE_SHORT * len(series)), told, scene.first_step)


_BY_PROMPT: Final = tuple(_SEEN.format(name) for name in ("prompt", "group"))


@gap_sign("prompts that were there before are worse than new ones", *_BY_PROMPT)
def _recurring(scene: Scene) -> Look:
    for prefix in _BY_PROMPT:
        parts = scene.named(prefix)
        if {"0", "1"} <= parts.keys():
            told = f"mean |d| is {parts['1']:.3g} nat on prompts that were there before and {parts['0']:.3g} on new ones"
            return Look(parts["1"] > 2.0 * parts["0"], told)
    return Look(None, _recurring.words, None, ("prompt",))


@gap_sign("new prompts stay at the floor of the first steps", *_BY_PROMPT)
def _new_at_floor(scene: Scene) -> Look:
    series = gap(scene)
    for prefix in _BY_PROMPT:
        parts = scene.named(prefix)
        if series is not None and {"0", "1"} <= parts.keys():
            floor = float(np.median(series.values[:3]))
            told = f"new prompts are at {parts['0']:.3g} nat, and the first steps of the run at {floor:.3g}"
            return Look(parts["0"] < max(2.0 * floor, 0.02), told)
    return Look(None, _new_at_floor.words, None, ("prompt",))


@gap_sign("early tokens of a response are worse than late ones", "mismatch.abs_by.position.")
def _early(scene: Scene) -> Look:
    parts = {int(low): value for low, value in scene.named("mismatch.abs_by.position.").items()}
    if len(parts) < 4:
        return Look(None, _early.words, None, scene.missing("mismatch.abs_by.position."))
    order = sorted(parts)
    first, last = (float(np.mean([parts[low] for low in part])) for part in (order[:3], order[-2:]))
    return Look(first > 1.5 * last, f"mean |d| is {first:.3g} nat at the first tokens and {last:.3g} at the last")


_ADVICE: Final = "Repeat one step with learning rate 0: if the difference still grows, it is the engine and not the weights."

cause(
    "engine-outdated",
    "the engine's weights, caches or numerics fall behind the trainer's",
    explains=("stale-old-logprob",),
    alone=True,
    leads_to=_FOLLOWS,
    signs=(_FOUND, grows(wanted=True), with_role("typical", _with_updates), _old_side),
    advice=(
        _ADVICE,
        "Check that weights are sent to the engine after every update, and that it reloads all of them (sleep, wake, shards).",
        "Restart the engine once: a gap that falls at that and creeps up again is a cache.",
        "Record ref_logprob, weight_version and the prompt: nearest policy, lag and prompts seen before tell these apart.",
    ),
    source="Public trainer issues on gaps that climb over tens to hundreds of steps",
    doc="""The gap between engine and trainer grows from its floor. Weights that do not arrive, a cache of old activations,
    and numerics that get worse as the policy becomes sure all do that; where nothing that is recorded tells them apart, it is
    this.""",
)  # fmt: skip

cause(
    "engine-never-synchronised",
    "the engine never gets the trained weights",
    explains=("stale-old-logprob",),
    leads_to=_FOLLOWS,
    signs=(
        _FOUND, _with_updates, nearest("needed", *_TO_REFERENCE), grows(wanted=True, role="typical"),
        measured(
            "version.weight_max", between(-1, 0), "samples are stamped with the first version", "the newest stamp is {}",
            role="typical",
        ),
        _old_side, rate_is_zero("against"), with_role("against", _in_step_before), with_role("against", _short),
        with_role("against", _recurring),
    ),
    advice=(
        "Check that the update of the engine's weights is called at all in this mode (cache kept, asynchronous, colocated).",
        "Score a fixed prompt with the engine before and after an update: the logprobs must change.",
        _ADVICE,
    ),
    source="Public trainer issues: no synchronisation with a cache that is kept; the gap grows from the first update on",
    doc="""The samples stay those of the first weights, while the trainer moves on: the gap grows with the updates from the
    first one, and the engine stays at the floor to the reference where that is the starting point.""",
)  # fmt: skip

cause(
    "engine-lost-weights",
    "the engine loses the trained weights, as when it sleeps and wakes",
    explains=_RULES,
    leads_to=_FOLLOWS,
    signs=(
        _FOUND,
        either(both(_after_warm_up, _with_updates), both(_in_step_before, nearest("needed", *_TO_REFERENCE))),
        grows(wanted=True), nearest("typical", *_TO_REFERENCE), _old_side,
        rate_is_zero("against"), with_role("against", _short), with_role("against", _recurring),
    ),
    advice=(
        "Check what the engine's sleep level drops, and that waking reloads the weights and not only their memory.",
        "Send the weights after every waking, not only after an update.",
        "Turn sleeping off for some steps: the gap falls to its floor.",
    ),
    source="A public trainer issue with a table: mean |d| .010, .018, then .201 once the weights move, .015 with sleeping off",
    doc="""At a learning rate of about 0 the weights that the engine wakes up with are still the right ones, so that the gap
    is at its floor; it jumps as soon as the weights move, and grows with the summed learning rate.""",
)  # fmt: skip

cause(
    "reference-pushed-to-engine",
    "the engine was given the reference's weights, as by the first push after a resume",
    explains=_RULES,
    leads_to=(*_FOLLOWS, "non-finite"),
    signs=(_FOUND, nearest("needed", *_TO_REFERENCE), _short, with_role("typical", _jumps), _old_side),
    advice=(
        "Load the checkpoint before the first push of weights, or push again after loading.",
        "Throw away the samples of these steps: the update on them is made of another policy's actions.",
    ),
    source="Public trainer issues: a sharp drop of the reward after a resume that recovers within a few steps",
    doc="""For a few steps the samples are those of the reference, before and after they are the trainer's. The reward falls,
    KL and gradient norm rise, and all recover; a lost optimizer state does the same without the gap.""",
)  # fmt: skip

cause(
    "engine-weights-corrupted",
    "the engine's weights were corrupted or replaced at a synchronisation",
    explains=_RULES,
    leads_to=(*_FOLLOWS, "zero-variance-groups", "entropy-collapse", "non-finite", "aborted-responses"),
    signs=(
        _FOUND, grows(wanted=True), _jumps, _stays, with_role("against", _short), _old_side, nearest("against", *_TO_REFERENCE),
        some_rows_unrelated,
    ),
    advice=(
        "Compare the weights of engine and trainer after a synchronisation, name by name: chunks, experts, fused layers.",
        "Send the weights twice, or restart the engine: if the gap is gone, it is the transfer.",
        _ADVICE,
    ),
    source="Public trainer issues on experts that are reloaded in several chunks: the first rollout alone is fine",
    doc="""The gap is at its floor until a synchronisation and large from the next step on, whether or not the weights have
    moved in between. Weights that are merely old part by as much as the policy has moved, which takes time.""",
)  # fmt: skip

cause(
    "stale-prefix-cache",
    "the engine reuses a prefix cache of older weights",
    explains=_CACHED,
    leads_to=_FOLLOWS,
    signs=(
        found_any("engine and trainer differ, in all rows or in some", *_CACHED), _recurring, _new_at_floor, grows(wanted=True),
        with_role("typical", _early), _old_side, rate_is_zero("against"),
    ),
    advice=(
        "Reset the prefix cache of the engine at every update of the weights (and of a shared system prompt too).",
        "Turn prefix caching off for some steps: the gap of recurring prompts falls to that of new ones.",
    ),
    source="Public trainer and engine issues: gaps that creep up for hundreds of steps and fall when the engine restarts",
    doc="""The keys and values of a prompt are those of the weights that first read it. Only prompts that come back suffer,
    and their early tokens most; new prompts are at the floor, which tells it from weights that are old for all.""",
)  # fmt: skip

cause(
    "engine-drifts-at-rest",
    "the engine drifts by itself: the weights do not move",
    explains=("stale-old-logprob", "rollout-trainer-mismatch"),
    leads_to=_FOLLOWS,
    signs=(_FOUND, rate_is_zero("needed"), grows(wanted=True), _old_side),
    advice=(
        "Look at the engine: caches, quantisation scales, memory; then at the data, whose lengths may have changed.",
        "Restart the engine: if the gap falls, it is a state of the engine.",
    ),
    source="A public trainer issue: the gap rose at learning rate 0, then the actors timed out",
    doc="""The gap grows although learning rate or gradient are 0. Synchronisation cannot be at fault: there is nothing to
    send.""",
)  # fmt: skip
