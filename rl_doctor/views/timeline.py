"""All findings on one axis of steps: what broke first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rl_doctor.report.diagnosis import told
from rl_doctor.report.model import SEVERITY_ORDER, Finding, Severity
from rl_doctor.views.kept import kept
from rl_doctor.views.opened import Opened
from rl_doctor.views.table import Table

MOST_ROWS: Final = 24
"""Rules that are drawn; the earliest, and those that found the worst, come first."""


@dataclass(frozen=True, slots=True)
class Span:
    """Steps of a finding; both None where it has none."""

    first: int | None
    last: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """What one rule found.

    Attributes:
        code: of the rule.
        name: of the rule.
        severity: the worst of its findings.
        cause: name of the cause that tells them.
        spans: their steps, earliest first.
    """

    code: str
    name: str
    severity: Severity
    cause: str
    spans: tuple[Span, ...]

    @property
    def label(self) -> str:
        """The rule, and how often it found something if more than once."""
        return f"{self.name} ×{len(self.spans)}" if len(self.spans) > 1 else self.name  # noqa: RUF001 - the sign of multiplication

    @property
    def first(self) -> float:
        """First step; infinite without any."""
        return min((span.first for span in self.spans if span.first is not None), default=math.inf)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Findings over steps.

    Attributes:
        rows: earliest first; those without steps last.
        first: first step of the run.
        last: last step of the run.
        left_out: rows that are not drawn.
    """

    rows: tuple[Row, ...]
    first: int
    last: int
    left_out: int

    @property
    def table(self) -> Table:
        """The findings as a table."""
        each = [(row, span) for row in self.rows for span in row.spans]
        return {
            "code": [row.code for row, _ in each],
            "rule": [row.name for row, _ in each],
            "severity": [row.severity for row, _ in each],
            "first step": [span.first for _, span in each],
            "last step": [span.last for _, span in each],
            "message": [span.message for _, span in each],
        }


@kept
def timeline(opened: Opened) -> Timeline:
    """All findings of a run, earliest first."""
    rows: dict[str, tuple[str, list[Finding]]] = {}
    for cause in told(opened.report):
        for finding in (*cause.findings, *cause.followed_by):
            rows.setdefault(finding.code, (cause.name, []))[1].append(finding)
    made = sorted((_row(cause, findings) for cause, findings in rows.values()), key=_order)
    run = opened.report.run
    first = 0 if run.first_step is None else run.first_step
    last = first if run.last_step is None else run.last_step
    return Timeline(tuple(made[:MOST_ROWS]), first, last, max(len(made) - MOST_ROWS, 0))


def _row(cause: str, findings: list[Finding]) -> Row:
    worst = max(findings, key=lambda finding: SEVERITY_ORDER[finding.severity])
    spans = [Span(finding.first_step, finding.last_step, finding.message) for finding in findings]
    spans.sort(key=lambda span: math.inf if span.first is None else span.first)
    return Row(worst.code, worst.name, worst.severity, cause, tuple(spans))


def _order(row: Row) -> tuple[float, int, str]:
    return row.first, -SEVERITY_ORDER[row.severity], row.code
