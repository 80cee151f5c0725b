"""What a check found. Rules make hits, the runner makes results of them, outputs print the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Severity = Literal["error", "warning", "info"]
Outcome = Literal["passed", "found", "skipped", "crashed"]
FailOn = Literal["error", "warning", "never"]

SEVERITY_ORDER: Final[Mapping[str, int]] = {"info": 0, "warning": 1, "error": 2}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number behind a finding.

    Attributes:
        metric: canonical metric name, or the column that was looked at.
        first_step: first step of the span.
        last_step: last step of the span.
        value: what was measured over the span.
        baseline: what the run's own baseline says, or None where the limit is fixed.
        limit: what the value was held against, or None.
        unit: unit of value, baseline and limit.
        n: number of items (tokens, sequences, groups or steps) behind the value.
        where: where it concentrates, e.g. ``{"rank": 1}`` or ``{"component": "format"}``.
        estimated: whether it was computed from a sample of the tokens, because the others were left out to save space.
    """

    metric: str
    first_step: int | None
    last_step: int | None
    value: float
    baseline: float | None = None
    limit: float | None = None
    unit: str = "1"
    n: int | None = None
    where: Mapping[str, Any] | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule yields.

    Attributes:
        message: one sentence with the numbers.
        severity: at most the rule's own.
        evidence: numbers that show it; at least one.
        cause: the likely cause, where the rule can tell it apart from others; else the rule's own text is used.
        ruled_out: causes that the data speak against, each with the reason.
        unchecked: signs that could not be looked at, each with the column that would allow it.
        advice: what to do, where that depends on the run; else the rule's own is used.
    """

    message: str
    severity: Severity
    evidence: tuple[Evidence, ...]
    cause: str | None = None
    ruled_out: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A hit with everything that the report prints about it. ``fingerprint`` is stable across steps and runs."""

    code: str
    name: str
    severity: Severity
    message: str
    evidence: tuple[Evidence, ...]
    cause: str
    advice: tuple[str, ...]
    ruled_out: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one rule.

    Attributes:
        outcome: passed, found, skipped or crashed.
        missing: columns or ``config.`` fields that would enable a skipped rule.
        reason: for a skipped rule one of column, config, length, data; for a crashed one the exception's name; else "".
        detail: the reason in one sentence; "" where ``missing`` says it all.
        measures: whether the rule judges measured values; False for one that looks only at how the run was stored or configured.
    """

    code: str
    name: str
    outcome: Outcome
    missing: tuple[str, ...] = ()
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    detail: str = ""
    measures: bool = True


@dataclass(frozen=True, slots=True)
class Reconciled:
    """A number of the trainer's that was recomputed.

    Attributes:
        name: as the trainer logged it.
        metric: canonical metric that it corresponds to, or None.
        first_step: first step at which both numbers exist.
        last_step: last one.
        compared: number of steps at which both exist.
        differing: number of those at which they are not equal.
    """

    name: str
    metric: str | None
    first_step: int
    last_step: int
    compared: int
    differing: int


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What was read: path, trainer, algorithm, step range, sizes, and what was left out of the reading.

    ``logged_values`` counts what the trainer itself logged, ``reconciled`` are those of its numbers that were recomputed,
    ``not_recomputed`` those that could be but were not, each with the reason; ``not_recomputable`` counts those that cannot be
    from what is recorded, ``undefined`` those that the trainer's table does not define. ``sampling`` is the share of groups
    whose tokens were kept, where not all were.
    """

    path: str
    trainer: str | None
    trainer_version: str | None
    algorithm: str | None
    first_step: int | None
    last_step: int | None
    sequences: int
    tokens: int
    skipped_parts: tuple[str, ...] = ()
    unknown_columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    renamed_columns: tuple[str, ...] = ()
    logged_values: int = 0
    sampling: float | None = None
    reconciled: tuple[Reconciled, ...] = ()
    not_recomputed: tuple[tuple[str, str], ...] = ()
    not_recomputable: int = 0
    undefined: int = 0

    @property
    def only_logged(self) -> bool:
        """Whether all that is known of the run is what the trainer logged."""
        return self.sequences == 0 and self.logged_values > 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run has no results: the message of a ``DoctorError`` and its exit code (2 unreadable, 3 nothing to judge)."""

    message: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a check has to say about one run. With a ``failure`` it has no results."""

    run: RunSummary
    results: tuple[Result, ...]
    doctor_version: str
    schema_version: int
    created_at: str
    required: tuple[str, ...] = ()
    failure: Failure | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, in the order of the rules."""
        return tuple(finding for result in self.results for finding in result.findings)

    def exit_code(self, fail_on: FailOn = "error") -> int:
        """The exit code of this run: that of its failure; else 1, 2, 3 or 0, the first that holds.

        1: findings at or above ``fail_on`` ("never" takes this one out). 2: a rule crashed. 3: nothing could be judged: no rule
        passed or found anything, or only rules about storage and configuration did while all that measure were skipped, or one in
        ``required`` (codes or names) was skipped or not run.
        """
        if self.failure is not None:
            return self.failure.exit_code
        if fail_on != "never":
            bar = SEVERITY_ORDER[fail_on]
            if any(SEVERITY_ORDER[finding.severity] >= bar for finding in self.findings):
                return 1
        if any(result.outcome == "crashed" for result in self.results):
            return 2
        judged = [result for result in self.results if result.outcome in {"passed", "found"}]
        answered = {key for result in judged for key in (result.code, result.name)}
        telling = [result for result in self.results if result.measures] or self.results
        return 0 if any(result in judged for result in telling) and answered.issuperset(self.required) else 3


def exit_code(reports: Iterable[Report], fail_on: FailOn = "error") -> int:
    """The exit code of several runs: 2 if one is unreadable, else 1, 2 (a rule crashed), 3 or 0, whichever comes first."""
    read = list(reports)
    if any(report.failure is not None and report.failure.exit_code == 2 for report in read):
        return 2
    codes = {report.exit_code(fail_on) for report in read}
    return next((code for code in (1, 2, 3) if code in codes), 0)
