"""The steps that a finding names are those at which its fault is there: the first and the last of them included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.api import check
from rl_doctor.report.model import Finding
from rl_doctor.rules.registry import rules
from tests.rules.verdicts import honest
from tests.simulation.inject import with_values
from tests.simulation.run import SimulatedRun


def _found(run: Any, name: str) -> Finding:
    (rule,) = (rule for rule in rules().values() if rule.name == name)
    return check(run, [rule]).findings[0]


def _lone(run: SimulatedRun) -> SimulatedRun:
    return with_values(run, group=np.array([f"g{row}" for row in range(len(run.splits) - 1)], object))


@pytest.mark.parametrize(("minibatches", "spread"), [(1, False), (2, False), (2, True)], ids=["whole", "in parts", "over steps"])
def test_groups_of_one_to_the_last_step(minibatches: int, *, spread: bool) -> None:
    made = _lone(honest(minibatches=minibatches))
    if spread:  # each mini-batch is a step of its own, and the run ends before the second of its last batch
        whole = made.arrays["rollout_step"] if "rollout_step" in made.arrays else made.arrays["step"]
        step: Any = 2 * whole + made.arrays["minibatch"]
        made = with_values(made, step=step, rollout_step=2 * whole)
        order = np.argsort(step, kind="stable")
        made = made.take(order[step[order] < step.max()])
    made = replace(made, info=replace(made.info, trainer="custom"))
    item = _found(made, "broken-groups").evidence[0]
    steps = np.unique(made.arrays["rollout_step" if spread else "step"])
    assert (item.first_step, item.last_step) == (int(steps[0]), int(steps[-2 if spread else -1]))
