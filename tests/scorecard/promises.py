"""What is promised of the rules, and which of it a scorecard shows to be missed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rl_doctor.rules.registry import rules
from tests.diseases.catalogue import diseases
from tests.diseases.complaints import complaints
from tests.scorecard.score import Score

RIGHT: Final = 0.95
"""Least share of faults whose cause must come first."""
RECALL: Final = 0.95
"""Least share of its faults that a stable rule must find."""
WARNINGS: Final = 1.0
"""Most warnings per 10,000 steps of healthy training."""
SOON: Final = 5
"""Steps from its onset within which a fault that begins in the run, and is all there at once, must be found."""


def missed(score: Score) -> list[str]:
    """One sentence for each promise that is missed."""
    return [*_crashes(score), *_alarms(score), *_complaints(score), *_causes(score), *_recall(score), *_latency(score)]


def _crashes(score: Score) -> Iterator[str]:
    for one in score.outcomes:
        if one.crashed:
            yield f"a rule crashed on {one.job.name} (seed {one.job.seed}): {', '.join(one.crashed)}"


def _alarms(score: Score) -> Iterator[str]:
    for one in score.of("healthy"):
        for name, severity in one.alarms.items():
            if severity == "error":
                yield f"false error: {name} on {one.job.name} (seed {one.job.seed})"
    found = score.warnings_per_10000
    if found > WARNINGS:
        yield f"{found:.2f} false warnings per 10,000 steps, and {WARNINGS:.0f} is allowed: {_most(score)}"


def _most(score: Score) -> str:
    counted: dict[tuple[str, str], int] = {}
    for one in score.of("healthy"):
        for name in one.alarms:
            counted[name, one.job.name] = counted.get((name, one.job.name), 0) + 1
    return ", ".join(
        f"{name} on {family} {count}" for (name, family), count in sorted(counted.items(), key=lambda item: -item[1])
    )


def _complaints(score: Score) -> Iterator[str]:
    for one in score.of("complaint"):
        if complaints()[one.job.name].faulty:
            if not one.alarms:
                yield f"nothing found: {one.job.name} (seed {one.job.seed})"
        elif one.alarms:
            yield f"complaint: {', '.join(one.alarms)} on {one.job.name} (seed {one.job.seed})"


def _causes(score: Score) -> Iterator[str]:
    if score.right.value < RIGHT:
        yield f"the right cause comes first in {score.right} faults, and {RIGHT:.0%} is promised"
    named = {name: score.named(name) for name in sorted({one.cause for one in diseases().values() if one.cause is not None})}
    if seldom := [f"{name} {share}" for name, share in named.items() if share.value < RIGHT]:
        yield f"below {RIGHT:.0%} of its faults come first: {', '.join(seldom)}"


def _recall(score: Score) -> Iterator[str]:
    for rule in rules().values():
        share = score.recall(rule.name)
        if rule.status == "stable" and share.value < RECALL:
            lost = sorted({f"{one.job.name} in {one.job.host or 'its own run'}" for one in score.faults if not one.found
                           and diseases()[one.job.name].rule == rule.name})  # fmt: skip
            yield f"{rule.code} {rule.name} finds {share}: not {', '.join(lost)}"
    for disease in diseases().values():
        if disease.grade is None:
            continue
        shares = score.recalls_by_size(disease)
        for size in disease.grade.promised:
            if (share := shares[size]).value < RECALL:
                yield f"{disease.name} of {size:g} {disease.grade.unit} is found in {share}"


def _latency(score: Score) -> Iterator[str]:
    steps, drifts = score.timed
    for one in steps:
        if (one.latency or 0) > SOON:
            yield f"{one.job.name} is found {one.latency} steps after its onset (seed {one.job.seed})"
    for one in drifts:
        if (one.latency or 0) > (one.half or 0):
            yield f"{one.job.name} is found after {one.latency} steps, and half of the damage is done after {one.half}"
