"""The order in which findings and causes are told, and findings of no known cause in the words of their rules."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rl_doctor.report.model import SEVERITY_ORDER, Diagnosis, Finding, Report, Sign


def told(report: Report) -> tuple[Diagnosis, ...]:
    """The report's diagnosis, and what it leaves out of the findings in the words of their rules: nothing goes unsaid."""
    said = {id(finding) for entry in report.diagnosis for finding in (*entry.findings, *entry.followed_by)}
    if rest := [finding for finding in report.findings if id(finding) not in said]:
        return in_reading_order((*report.diagnosis, *by_own_words(by_urgency(rest))))
    return report.diagnosis


def by_urgency(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in reading order: worst first, then earliest, then by code."""

    def key(finding: Finding) -> tuple[int, float, str]:
        start = finding.first_step
        return -SEVERITY_ORDER[finding.severity], math.inf if start is None else start, finding.code

    return sorted(findings, key=key)


def by_own_words(findings: Iterable[Finding]) -> list[Diagnosis]:
    """Findings that no known cause fits, together where rules give the same cause for them."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.cause, []).append(finding)
    return [
        Diagnosis(
            same[0].name,
            cause,
            same[0].severity,
            tuple(same),
            unchecked=tuple(Sign(item) for item in once(item for finding in same for item in finding.unchecked)),
            ruled_out=once(item for finding in same for item in finding.ruled_out),
            advice=once(item for finding in same for item in finding.advice),
        )
        for cause, same in groups.items()
    ]


def in_reading_order(entries: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """Causes in reading order: worst first, then earliest, then by code; of what is only worth knowing the shortest first.

    An event of a few steps tells more than what has been so all along.
    """

    def key(entry: Diagnosis) -> tuple[int, float, float, str]:
        start, end = entry.first_step, entry.last_step
        length = end - start if entry.severity == "info" and start is not None and end is not None else 0
        return -SEVERITY_ORDER[entry.severity], length, math.inf if start is None else start, entry.findings[0].code

    return tuple(sorted(entries, key=key))


def once(items: Iterable[str]) -> tuple[str, ...]:
    """The items, each once, in their order."""
    return tuple(dict.fromkeys(items))
