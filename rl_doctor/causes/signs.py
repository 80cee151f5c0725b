"""The usual kinds of signs: a rule that found something, and a metric on one side of a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from rl_doctor.causes.registry import Look, Role, Sign, elsewhere, unseen
from rl_doctor.causes.scene import Scene
from rl_doctor.report.model import Finding
from rl_doctor.report.wording import steps

Test = Callable[[float], bool]


def found(rule: str, words: str, *, role: Role = "needed", suspect: Collection[str] | str = ()) -> Sign:
    """A sign that is there where a rule has found something.

    Args:
        rule: name of the rule.
        words: what that is.
        role: of the sign.
        suspect: names of causes; only a finding that suspects one of them counts.
    """
    wanted = {suspect} if isinstance(suspect, str) else set(suspect)

    def look(scene: Scene) -> Look:
        result = scene.results.get(rule)
        if result is None:
            return Look(None, f"{words}: {rule} was not run")
        hits = [finding for finding in result.findings if not wanted or finding.suspect in wanted]
        if hits:
            return earliest(words, hits)
        if result.outcome == "skipped":
            return Look(None, words, None, result.missing)
        other = {finding.code: None for finding in result.findings}
        suspects = [finding.suspect for finding in result.findings]
        return Look(there=False, text=elsewhere(", ".join(other), suspects) if other else unseen(words))

    return Sign(words, role, (), look)


def found_any(words: str, *rules: str, role: Role = "needed") -> Sign:
    """A sign that is there where one of several rules has found something."""

    def look(scene: Scene) -> Look:
        results = [result for name in rules if (result := scene.results.get(name)) is not None]
        if hits := [finding for result in results for finding in result.findings]:
            return earliest(words, hits)
        if all(result.outcome == "skipped" for result in results):
            return Look(None, words, None, tuple(dict.fromkeys(name for result in results for name in result.missing)))
        return Look(there=False, text=unseen(words))

    return Sign(words, role, (), look)


def earliest(words: str, findings: Sequence[Finding]) -> Look:
    """A sign that is there, told with the earliest of the findings (at least one) that show it."""
    first = min(findings, key=lambda finding: math.inf if finding.first_step is None else finding.first_step)
    told = f"{words} ({first.code}, {steps(first.first_step, first.last_step)})"
    return Look(there=True, text=told, step=first.first_step)


def measured(metric: str, test: Test, words: str, told: str, *, role: Role = "needed", scale: float = 1.0) -> Sign:
    """A sign that is there where the mean of a metric over the steps of the findings passes a test.

    Args:
        metric: canonical name.
        test: of the mean.
        words: the sign without numbers.
        told: what was measured, with ``{}`` for the mean; must be true whatever the test says.
        role: of the sign.
        scale: what the mean is multiplied by where it is told (100 for per cent).
    """

    def look(scene: Scene) -> Look:
        series = scene.series(metric)
        if series is None:
            return Look(None, words, None, scene.missing(metric))
        value, first = scene.value(metric), int(series.steps[0])
        outside = scene.first_step is not None and first < scene.first_step
        return Look(bool(test(value)), told.format(f"{scale * value:.3g}"), None if outside else first)

    return Sign(words, role, (metric,), look)


def configured(field: str, test: Callable[[Any], bool], words: str, told: str, *, role: Role = "needed") -> Sign:
    """A sign that is there where a field of the run's configuration passes a test; ``told`` as of ``measured``."""

    def look(scene: Scene) -> Look:
        value = getattr(scene.view.config, field)
        if value is None:
            return Look(None, words, None, (f"config.{field}",))
        return Look(bool(test(value)), told.format(value))

    return Sign(words, role, (), look)


def sign(words: str, *needs: str, role: Role = "needed") -> Callable[[Callable[[Scene], Look]], Sign]:
    """Decorate a function Scene -> Look as a sign that reads the metrics ``needs``."""
    return lambda look: Sign(words, role, needs, look)


def between(low: float, high: float) -> Test:
    """Whether a number lies in [low, high]."""
    return lambda value: low <= value <= high


def over(limit: float) -> Test:
    """Whether a number lies above a limit."""
    return lambda value: value > limit


def under(limit: float) -> Test:
    """Whether a number lies below a limit."""
    return lambda value: value < limit
