"""An engine that misses some synchronisations of its weights and catches up with a later one."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, sign
from rl_doctor.rules.spans import pooled

_GAP: Final = "mismatch.abs"
_LAG: Final = "stale.mean"
_RULE: Final = "missed-synchronisation"
_FOLD: Final = 0.3


@sign("the gap is back at its level from one step to the next", _GAP, role="typical")
def _back(scene: Scene) -> Look:
    series = scene.view.get(_GAP)
    if series is None or scene.last_step is None:
        return Look(None, _back.words, None, scene.missing(_GAP))
    after = series.values[series.steps > scene.last_step]
    inside = series.values[series.steps <= scene.last_step]
    if not after.size:
        return Look(None, _back.words)
    step = int(series.steps[series.steps > scene.last_step][0])
    told = f"the gap is {inside[-1]:.2g} nat before step {step}, and {after[0]:.2g} at it"
    return Look(bool(after[0] < (1.0 - _FOLD) * inside[-1]), told, step)


@sign("the samples are stamped with older versions than before", _LAG, role="typical")
def _stamped(scene: Scene) -> Look:
    inside, before = scene.series(_LAG), scene.before(_LAG)
    if inside is None or before is None or not len(before):
        return Look(None, _stamped.words, None, scene.missing(_LAG))
    one, other = pooled(inside), pooled(before)
    told = f"by their stamps the samples are {one:.2g} versions old, and were {other:.2g} before"
    return Look(one > other + 1.0, told, int(inside.steps[0]))


cause(
    "synchronisations-missed",
    "the engine missed some synchronisations of its weights",
    explains=(_RULE, "stale-old-logprob"),
    alone=True,
    leads_to=(
        "stale-old-logprob", "rollout-trainer-mismatch", "mismatch-in-some-rows", "mismatch-by-part", "stale-samples-uncorrected",
        "mismatch-before-explosion", "unlawful-rollout-logprob", "version-stamps-wrong", "recurring-prompts-worse",
        "ratio-saturation", "inert-ratio", "kl-spike", "grad-norm-spike", "reward-drift", "temperature-mismatch",
    ),
    signs=(found(_RULE, "the engine falls behind step by step", suspect="synchronisations-missed"), _back, _stamped),
    advice=(
        "Read the engine's log at these steps: a transfer that timed out, a worker that restarted, a lock that was held.",
        "Raise an error where a synchronisation does not return, and hold the engine's version against the trainer's.",
        "Stamp samples with the version that the engine itself holds, not with the one that was sent to it.",
    ),
    source="Reproduced with an engine that keeps its weights for some steps",
    doc="""The engine samples with the same weights for some steps, then with the newest ones again. The samples get older by a
    version at each step, and the gap between engine and trainer grows by as much as the policy moves. Other settings or numerics
    come from one step to the next; weights that never arrive again go on to grow.""",
)  # fmt: skip
