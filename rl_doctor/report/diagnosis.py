"""Findings that share a cause, as one entry with its signs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rl_doctor.report.model import SEVERITY_ORDER, Finding, Report, Severity


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause and what speaks for it.

    Attributes:
        cause: the likely cause.
        severity: that of the worst finding.
        first_step: first step at which one of its findings shows, or None.
        codes: rules that found it, each once.
        seen: messages of the findings.
        absent: what was ruled out.
        unchecked: signs that could not be looked at.
        advice: what to do next, each step once.
    """

    cause: str
    severity: Severity
    first_step: int | None
    codes: tuple[str, ...]
    seen: tuple[str, ...]
    absent: tuple[str, ...]
    unchecked: tuple[str, ...]
    advice: tuple[str, ...]


def first_step(finding: Finding) -> int | None:
    """The earliest step of a finding's evidence; None where no evidence has steps."""
    return min((int(item.first_step) for item in finding.evidence if item.first_step is not None), default=None)


def by_urgency(findings: tuple[Finding, ...]) -> list[Finding]:
    """Findings in reading order: worst first, then earliest, then by code."""

    def key(finding: Finding) -> tuple[int, float, str]:
        start = first_step(finding)
        return -SEVERITY_ORDER[finding.severity], float("inf") if start is None else start, finding.code

    return sorted(findings, key=key)


def diagnose(report: Report) -> tuple[Diagnosis, ...]:
    """The report's findings grouped by cause, in the order of their most urgent finding."""
    groups: dict[str, list[Finding]] = {}
    for finding in by_urgency(report.findings):
        groups.setdefault(finding.cause, []).append(finding)
    return tuple(_entry(cause, findings) for cause, findings in groups.items())


def _entry(cause: str, findings: list[Finding]) -> Diagnosis:
    return Diagnosis(
        cause,
        findings[0].severity,
        min((step for finding in findings if (step := first_step(finding)) is not None), default=None),
        _once(finding.code for finding in findings),
        _once(finding.message for finding in findings),
        _once(item for finding in findings for item in finding.ruled_out),
        _once(item for finding in findings for item in finding.unchecked),
        _once(item for finding in findings for item in finding.advice),
    )


def _once(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
