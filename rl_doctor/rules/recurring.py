"""Prompts that come back, and are scored by the engine with what it kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import at, pooled
from rl_doctor.rules.view import View

_SEEN: Final = tuple(f"mismatch.abs_by.{name}_seen." for name in ("prompt", "group"))


@rule(
    "RLD123", "recurring-prompts-worse",
    severity="warning", since="0.2.0",
    optional=_SEEN,
    limits={"times": 2.0, "gap": 0.02, "steps": 6, "often": 0.9},
    cause="The engine answers recurring prompts from a cache of older weights.",
    advice=(
        "Reset the prefix cache of the engine at every update of the weights (and of a shared system prompt too).",
        "Turn prefix caching off for some steps: the gap of recurring prompts falls to that of new ones.",
    ),
    avoids=("prompts that all come back, or none: skipped", "an engine that is off for new prompts too"),
    source="Public trainer and engine issues: gaps that creep up for hundreds of steps and fall when the engine restarts",
)  # fmt: skip
def recurring_prompts_worse(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Engine and trainer disagree about responses to prompts that were there before, and agree about new ones.

    The keys and values of a prompt that the engine keeps are those of the weights that first read it. A cache that is not reset
    at updates makes every recurring prompt (or one with a shared beginning) a little more off-policy with each update.

    Prompts count as recurring if their text (else their group) was there in an earlier generation batch. It fires if over the
    second half of the steps that have both kinds the mean |trainer - rollout| of recurring prompts is `times` that of new ones
    and `gap` nat more, at `often` of the steps, `steps` of them at least.

    Limits: a system prompt that all prompts share makes all of them worse; then nothing is left to compare with.
    """
    for prefix in _SEEN:
        new, again = view.get(prefix + "0"), view.get(prefix + "1")
        if new is None or again is None:
            continue
        both = np.intersect1d(new.steps, again.steps)
        late = both[len(both) // 2 :]
        first, second = at(new, late), at(again, late)
        if first is None or second is None or len(late) < limits["steps"]:
            continue
        fresh, old = pooled(first), pooled(second)
        worse = second.values > limits["times"] * first.values
        if old < limits["times"] * fresh or old - fresh < limits["gap"] or float(np.mean(worse)) < limits["often"]:
            return
        proof = tuple(
            Evidence(part.metric, int(late[0]), int(late[-1]), pooled(part), None, limit, "nat", int(part.counts.sum()))
            for part, limit in ((second, limits["times"] * fresh), (first, None))
        )
        yield Hit(
            f"mean |trainer - rollout| is {old:.3f} nat on prompts that were there before and {fresh:.3f} on new ones, at steps "
            f"{late[0]} to {late[-1]}",
            "warning", proof, ruled_out=("weights that are old: new prompts would be as far off",), suspect="stale-prefix-cache",
        )  # fmt: skip
        return
    yield Skip("data", "prompts do not come back, or that is not recorded (prompt, or a group that keeps its name)", ("prompt",))
