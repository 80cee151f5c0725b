"""What the rules say about a run, in the form that the disease matrix compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_doctor.api import check
from rl_doctor.report.model import SEVERITY_ORDER, Severity
from tests.simulation.run import SimulatedRun


@dataclass(frozen=True, slots=True)
class Verdict:
    """Findings by rule name as (worst severity, its message), rules that crashed by name, and rules skipped with the reason."""

    found: Mapping[str, tuple[Severity, str]]
    crashed: Mapping[str, str]
    skipped: Mapping[str, str]

    def alarms(self) -> dict[str, str]:
        """Messages of warnings and errors by rule name."""
        return {name: message for name, (severity, message) in self.found.items() if severity != "info"}


def verdict(run: SimulatedRun) -> Verdict:
    """Check a run with all rules."""
    found: dict[str, tuple[Severity, str]] = {}
    crashed, skipped = {}, {}
    source: Any = run
    for result in check(source).results:
        if result.outcome == "crashed":
            crashed[result.name] = f"{result.reason} {result.detail}"
        if result.outcome == "skipped":
            skipped[result.name] = " ".join((result.reason, result.detail, *result.missing))
        for finding in result.findings:
            worst = found.get(finding.name)
            if worst is None or SEVERITY_ORDER[finding.severity] > SEVERITY_ORDER[worst[0]]:
                found[finding.name] = (finding.severity, finding.message)
    return Verdict(found, crashed, skipped)
