"""Rewards that stop meaning what they should: scorers that fail, that change, and parts that drown each other."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.causes.registry import Look, Role, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, found_any, sign
from rl_doctor.rules.reading import TRUNCATION
from rl_doctor.rules.spans import at

_NO_SIGNAL: Final = (
    "zero-variance-groups",
    "near-zero-variance-groups",
    "grad-zero",
    "grad-vanished",
    "kl-flatline",
    "inert-ratio",
    "reward-component-idle",
    "reward-at-bound",
    "source-without-signal",
    "entropy-collapse",
    "reward-drift",
    "sudden-collapse",
    "reward-variance-shift",
    "value-not-learning",
    "reward-component-imbalance",
    "signal-from-failures",
)
"""What follows where every response earns the same."""
SHIFTED: Final = (
    "reward-variance-shift",
    "reward-component-imbalance",
    "value-not-learning",
    "reward-at-bound",
    "grad-norm-spike",
    "ratio-saturation",
    "kl-spike",
    "zero-variance-groups",
    "near-zero-variance-groups",
    "reward-component-idle",
    "source-without-signal",
    "length-explosion",
)
"""What follows where the reward has another level or scale from one step on."""
DRIFT: Final = ("reward-drift", "reward-variance-shift")


def share_cut(scene: Scene) -> float:
    """Share of responses that were cut for their length; NaN where that was not recorded."""
    return next((value for name in TRUNCATION if not math.isnan(value := scene.value(name))), math.nan)


def end_by_themselves(role: Role = "needed") -> Sign:
    """A sign that is there where fewer than half of the responses are cut for their length."""

    @sign("responses end before the length limit", *TRUNCATION, role=role)
    def look(scene: Scene) -> Look:
        share = share_cut(scene)
        if math.isnan(share):
            return Look(None, "responses end before the length limit", None, ("finish_reason",))
        if share < 0.45:
            return Look(there=True, text=f"responses end by themselves: {share:.0%} are cut at the length limit")
        return Look(there=False, text=f"{share:.0%} of the responses are cut at the length limit")

    return look


def _ever_earned(*, wanted: bool, role: Role = "needed") -> Sign:
    """A sign about whether any response earned something else than the others during the steps of the findings."""
    words = "some responses do earn something" if wanted else "not one response earns anything else"

    @sign(words, "reward.max", "reward.min", role=role)
    def look(scene: Scene) -> Look:
        low, high = scene.series("reward.min"), scene.series("reward.max")
        if low is None or high is None or len(low) != len(high):
            return Look(None, words, None, scene.missing("reward.min"))
        differ = low.values < high.values
        edge = len(low) // 20  # where a constant sets in or ends is known to within some steps
        never = not differ[edge : len(low) - edge].any()
        text = f"rewards differ at {int(np.count_nonzero(differ))} of {len(low)} steps"
        return Look(never is not wanted, text, int(low.steps[0]))

    return look


@sign("responses differ from each other", "data.duplicate_frac", role="typical")
def varied(scene: Scene) -> Look:
    """Whether fewer than half of the responses repeat another of their group."""
    share = scene.value("data.duplicate_frac")
    if math.isnan(share):
        return Look(None, "responses differ from each other", None, scene.missing("data.duplicate_frac"))
    if share < 0.5:
        return Look(there=True, text=f"responses differ: {share:.0%} repeat another of their group")
    return Look(there=False, text=f"{share:.0%} of the responses repeat another of their group")


@sign("hardly any response earns something", "reward.max", "reward.min")
def _hardly_earned(scene: Scene) -> Look:
    """Some response or none: where none does, the rewards cannot tell hard prompts from a scorer that fails."""
    some = _ever_earned(wanted=True).look(scene)
    if some.there is not False:
        return some
    level = scene.value("reward.max")
    return Look(level <= 0.0, f"every response earns {level:.3g}, at every step")


def _copies(role: Role) -> Sign:
    @sign("the samples of a prompt are the same text", "data.duplicate_frac", role=role)
    def look(scene: Scene) -> Look:
        share = scene.value("data.duplicate_frac")
        if math.isnan(share):
            return Look(None, "the samples of a prompt are the same text", None, scene.missing("data.duplicate_frac"))
        return Look(share >= 0.5, f"{share:.0%} of the responses repeat another of their group")

    return look


def _constant(suspect: str = "") -> Sign:
    return found("reward-flatline", "every response gets the same reward", suspect=suspect or ())


cause(
    "scorer-returns-constant",
    "the reward function returns a constant, or no answer is ever right",
    explains=("reward-flatline",),
    leads_to=_NO_SIGNAL,
    signs=(
        _constant(),
        end_by_themselves(),
        _ever_earned(wanted=False),
        varied,
        found("reward-flatline", "every prompt is solved", role="against", suspect="task-solved"),
        _copies("against"),
    ),
    advice=(
        "Score a few stored responses by hand, with exceptions let through: one that is swallowed often counts as 0.",
        "Check that the parser finds the answer in the form that the prompt asks for.",
        "If answers really are all wrong, the prompts are too hard: take easier ones, or give partial credit.",
    ),
    source="public issue threads: a verifier that fails off the main thread, and whose exception counts as 0",
    doc="""Responses end by themselves, differ, and all earn the same to the bit. A limit that is too short gives the same reward,
    but cuts the responses; prompts that are too hard give it too, but now and then one response succeeds. Over enough responses
    none at all is the scorer's doing more often than the prompts'.""",
)
cause(
    "rewards-too-rare",
    "rewards are too rare: now and then a response earns one, and most prompts are too hard",
    explains=("reward-flatline", "zero-variance-groups"),
    leads_to=_NO_SIGNAL,
    signs=(
        found_any("rewards hardly ever differ", "reward-flatline", "zero-variance-groups"),
        found("zero-variance-groups", "most groups fail as a whole", suspect="prompts-too-hard", role="typical"),
        _hardly_earned,
        end_by_themselves(),
        found("reward-flatline", "every prompt is solved", role="against", suspect="task-solved"),
        found("zero-variance-groups", "most groups succeed as a whole", suspect="prompts-too-easy", role="against"),
        _copies("against"),
        found("only-first-prompt-rewarded", "only the first group of every rank earns anything", role="against"),
    ),
    advice=(
        "Take prompts that the policy solves now and then (filter by success rate), or more samples per prompt.",
        "Give partial credit, so that rare progress is seen.",
        "Score a few stored responses by hand: a parser that misses nearly every right answer looks the same.",
    ),
    source="arXiv:2503.14476, section 3.2",
    doc="""Where some responses succeed the scorer works, and they are too few to compare with. Where none does, prompts that are
    too hard and a scorer that fails give the same rewards: only reading a few responses tells.""",
)
cause(
    "task-solved",
    "every prompt is solved, and nothing is left to learn",
    explains=("reward-flatline",),
    leads_to=_NO_SIGNAL,
    signs=(_constant("task-solved"),),
    advice=("Stop, or take harder prompts.", "Score held-out prompts: what is solved may be memorised."),
    source="public runs that end at a reward of 1",
    doc="""The reward rose to its largest value and stays there. The gradient vanishes, as it should.""",
)
cause(
    "reward-stands-still",
    "nothing is learned: the reward stays within a hair of its level",
    explains=("reward-flatline",),
    leads_to=("kl-flatline",),
    signs=(_constant("reward-stands-still"), end_by_themselves("typical")),
    advice=("Check that the optimizer steps (learning rate, gradient norm, weights that change).", "Score responses by hand."),
    source="public runs with a reward that does not move",
    doc="""Rewards differ between responses, and their mean never moves over a long run.""",
)


@sign("the mixture of data sources stays the same", "data.source_change", role="needed")
def _same_sources(scene: Scene) -> Look:
    series = scene.view.get("data.source_change")
    if series is None or scene.first_step is None:
        return Look(None, "the mixture of data sources stays the same", None, scene.missing("data.source_change"))
    around = series.values[np.abs(series.steps - scene.first_step) <= 2]
    if not around.size:
        return Look(None, "the mixture of data sources stays the same")
    change = float(around.max())
    usual = float(np.median(series.values))
    return Look(change <= usual + 0.3, f"{change:.0%} of the prompts are from other sources than before, around that step")


@sign("responses are as they were", "policy.entropy", "length.mean", role="typical")
def same_policy(scene: Scene) -> Look:
    """Whether entropy and length of the responses are what they were before."""
    words = "responses are as they were"
    if scene.first_step is None:
        return Look(None, words)
    moved = []
    for name in ("policy.entropy", "length.mean"):
        series = scene.view.get(name)
        if series is None:
            continue
        split = int(np.searchsorted(series.steps, scene.first_step))
        before, after = series.values[max(split - 10, 0) : split], series.values[split : split + 5]
        if before.size >= 3 and after.size:
            size = abs(float(np.median(after) - np.median(before)))
            moved.append((name, size / max(abs(float(np.median(before))), 1e-12)))
    if not moved:
        return Look(None, words, None, scene.missing("policy.entropy"))
    name, size = max(moved, key=lambda item: item[1])
    return Look(size < 0.3, f"{name} changes by {size:.0%} at that step")


@sign("every data source moves alike", "reward.mean_by.source.", role="typical")
def _every_source(scene: Scene) -> Look:
    named = scene.view.named("reward.mean_by.source.")
    words = "every data source moves alike"
    if len(named) < 2 or scene.first_step is None:
        return Look(None, words, None, scene.missing("reward.mean_by.source."))
    sides = []
    for series in named.values():
        before = at(series, series.steps[series.steps < scene.first_step][-10:])
        after = at(series, series.steps[series.steps >= scene.first_step][:10])
        if before is not None and after is not None:
            sides.append(float(np.mean(after.values) - np.mean(before.values)))
    if len(sides) < 2:
        return Look(None, words)
    alike = min(sides) * max(sides) > 0 and min(abs(side) for side in sides) > 0.3 * max(abs(side) for side in sides)
    return Look(alike, f"by source the mean reward moves by {min(sides):.3g} to {max(sides):.3g}")


LEARNED: Final = frozenset({"gae", "reinforce", "reinforce_plus_plus", "remax"})
"""Estimators whose baseline is not the mean of the group."""


def baseline_moves_apart(role: Role) -> Sign:
    """A sign that is there where the baseline is not the mean of the group."""
    words = "the baseline is not the group's"

    def look(scene: Scene) -> Look:
        estimator = scene.view.config.adv_estimator
        if estimator is None:
            return Look(None, words, None, ("config.adv_estimator",))
        return Look(estimator in LEARNED, f"the estimator is {estimator}")

    return Sign(words, role, (), look)


_CHANGED: Final = found_any("the reward has another level or spread from one step on", *DRIFT)
cause(
    "reward-function-changed",
    "the reward function changed from one step to the next",
    explains=DRIFT,
    leads_to=SHIFTED,
    signs=(
        _CHANGED,
        _same_sources,
        same_policy,
        _every_source,
        found("reward-drift", "the policy changed at the same step", suspect="policy-changed-at-once", role="against"),
        found("reward-drift", "the reward falls over many steps", suspect="policy-gets-worse", role="against"),
        found("reward-component-imbalance", "one component grew", suspect="component-scale-changed", role="against"),
        found("reward-component-idle", "one component stopped", suspect="verifier-of-component-fails", role="against"),
        found(
            "reward-not-its-parts",
            "the reward stops being the sum of its parts",
            suspect="reward-has-unrecorded-part",
            role="against",
        ),
        baseline_moves_apart("against"),
    ),
    advice=(
        "Score a few stored responses from before the step with the reward function as it is now.",
        "Look for a restart of the reward server, a new version, or a weight that was switched at that step.",
        "With a learned or global baseline, pause until it is explained: every advantage carries the shift.",
    ),
    source="public reports on reward servers replaced in mid-run",
    doc="""Nothing about prompts or responses changes, and the reward does. Advantages that are normalised within groups feel
    neither a shift nor a scale, so that the harm depends on the baseline: with a learned or fixed one the jump goes into every
    advantage.""",
)
cause(
    "policy-changed-at-once",
    "the policy itself changed from one step to the next",
    explains=("reward-drift",),
    leads_to=(*SHIFTED, "entropy-explosion", "entropy-collapse", "length-collapse"),
    signs=(found("reward-drift", "entropy, KL or length jump at the same step", suspect="policy-changed-at-once"),),
    advice=("Look for reloaded weights, a resumed run, or a step whose gradient norm stands out.",),
    source="public reports on weights that were reloaded wrongly",
    doc="""The reward follows what the policy writes. Where that changes at the same step, the reward function is not the first to
    look at.""",
)
cause(
    "policy-gets-worse",
    "the policy gets worse at what it is rewarded for",
    explains=("reward-drift",),
    leads_to=("reward-variance-shift", "reward-hacking-suspected"),
    signs=(found("reward-drift", "the reward falls over many steps", suspect="policy-gets-worse"),),
    advice=(
        "Check the sign of the advantages and that they belong to their rows.",
        "Lower the learning rate; look at KL and entropy from where the fall begins.",
    ),
    source="public runs whose reward falls for hundreds of steps",
    doc="""A fall over many steps is the policy's doing, and mostly that of its updates.""",
)
