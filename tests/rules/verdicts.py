"""What the rules on data, masks and rollouts say of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from rl_doctor.api import check
from rl_doctor.report.model import Finding, Result
from rl_doctor.rules.registry import rules
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings
from tests.simulation.world import simulate

Damage = Callable[[SimulatedRun], SimulatedRun]
CODES = tuple(code for code in rules() if code.startswith(("RLD0", "RLD1")))


def results(run: SimulatedRun) -> Mapping[str, Result]:
    """Results of the rules of these families by name."""
    report = check(run, [rules()[code] for code in CODES])  # type: ignore[arg-type]
    assert not [result for result in report.results if result.outcome == "crashed"]
    return {result.name: result for result in report.results}


def findings(run: SimulatedRun) -> dict[str, Finding]:
    """The first finding of each rule that found something."""
    return {name: result.findings[0] for name, result in results(run).items() if result.findings}


@cache
def _made(knobs: tuple[tuple[str, Any], ...]) -> SimulatedRun:
    return simulate(Settings(**dict(knobs)))


def honest(**knobs: Any) -> SimulatedRun:
    """A simulated run that may be damaged; 12 steps unless told otherwise."""
    return _made(tuple(sorted(({"seed": 0, "steps": 12} | knobs).items()))).copy()


def without(run: SimulatedRun, *names: str) -> SimulatedRun:
    """The run without some columns."""
    made = run.copy()
    for name in names:
        made.arrays.pop(name, None)
    return made


def generator() -> np.random.Generator:
    return np.random.default_rng(0)
