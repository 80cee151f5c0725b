"""Findings with the places in the app at which their evidence can be seen."""

from __future__ import annotations

from dataclasses import dataclass

from rl_doctor.report import wording
from rl_doctor.report.model import Evidence, Finding, Severity
from rl_doctor.views.opened import Opened


@dataclass(frozen=True, slots=True)
class Proof:
    """One number behind a finding.

    Attributes:
        text: the number with what it was held against.
        metric: its metric, where the run has it as a series; else None.
        step: the first step of its span, or None.
    """

    text: str
    metric: str | None
    step: int | None


@dataclass(frozen=True, slots=True)
class Example:
    """A sequence that shows a finding: what it shows, and where it is."""

    text: str
    step: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Found:
    """A finding.

    Attributes:
        code: of its rule.
        name: of its rule.
        severity: of the finding.
        message: one sentence with the numbers.
        when: its steps in words; "" without any.
        first: first step, or None.
        last: last step, or None.
        proofs: the numbers behind it.
        examples: sequences that show it.
        key: tells it from others of the run.
    """

    code: str
    name: str
    severity: Severity
    message: str
    when: str
    first: int | None
    last: int | None
    proofs: tuple[Proof, ...]
    examples: tuple[Example, ...]
    key: str


def found(opened: Opened, finding: Finding) -> Found:
    """A finding as it is shown."""
    first, last = finding.first_step, finding.last_step
    return Found(
        finding.code,
        finding.name,
        finding.severity,
        finding.message,
        "" if first is None else wording.steps(first, last),
        first,
        last,
        tuple(Proof(wording.evidence(item), measured(opened, item), item.first_step) for item in finding.evidence),
        tuple(Example(wording.sample(item), item.step, item.sequence) for item in finding.samples),
        f"{finding.code}-{finding.fingerprint or hash(finding.message)}-{first}",
    )


def measured(opened: Opened, evidence: Evidence) -> str | None:
    """The series that evidence is taken from, where there is one: of a share of steps that of the metric itself."""
    name = evidence.metric.split(" (")[0]
    series = opened.series.get(name)
    return name if series is not None and len(series.measured()) else None
