"""What the rules say about a run, in the form that the disease matrix compares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_doctor.api import check
from rl_doctor.report.model import SEVERITY_ORDER, Severity
from rl_doctor.rules.registry import Rule
from tests.diseases.catalogue import Disease
from tests.simulation.logged import LoggedRun
from tests.simulation.run import SimulatedRun


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said.

    Attributes:
        found: findings by rule name as (worst severity, its message).
        crashed: rules that crashed, by name.
        skipped: rules skipped, with the reason.
        causes: names of the causes, the first one first.
        onsets: first step of each finding, by rule name.
        folded: names of the rules whose findings are told as what follows from the first cause.
    """

    found: Mapping[str, tuple[Severity, str]]
    crashed: Mapping[str, str]
    skipped: Mapping[str, str]
    causes: tuple[str, ...] = ()
    onsets: Mapping[str, int | None] = field(default_factory=dict)
    folded: frozenset[str] = frozenset()

    def alarms(self) -> dict[str, str]:
        """Messages of warnings and errors by rule name."""
        return {name: message for name, (severity, message) in self.found.items() if severity != "info"}


def company(disease: Disease, found: Verdict, before: Verdict | None = None) -> dict[str, str]:
    """Warnings and errors that neither the table allows, nor the disease's own cause explains, nor the run had before."""
    known = {disease.rule, *disease.allowed, *(before.alarms() if before else ())}
    if disease.cause is not None and found.causes[:1] == (disease.cause,):
        known |= found.folded
    return {name: message for name, message in found.alarms().items() if name not in known}


def verdict(run: SimulatedRun | LoggedRun, rules: Iterable[Rule] | None = None) -> Verdict:
    """Check a run with these rules, by default with all."""
    found: dict[str, tuple[Severity, str]] = {}
    crashed, skipped = {}, {}
    onsets: dict[str, int | None] = {}
    source: Any = run
    report = check(source, rules)
    for result in report.results:
        if result.outcome == "crashed":
            crashed[result.name] = f"{result.reason} {result.detail}"
        if result.outcome == "skipped":
            skipped[result.name] = " ".join((result.reason, result.detail, *result.missing))
        for finding in result.findings:
            worst = found.get(finding.name)
            if worst is None or SEVERITY_ORDER[finding.severity] > SEVERITY_ORDER[worst[0]]:
                found[finding.name] = (finding.severity, finding.message)
                onsets[finding.name] = finding.first_step
    told = report.diagnosis
    folded = frozenset(finding.name for entry in told[:1] for finding in (*entry.findings, *entry.followed_by))
    return Verdict(found, crashed, skipped, tuple(entry.name for entry in told), onsets, folded)
