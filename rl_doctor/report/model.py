"""What a check found. Rules make hits, the runner makes results of them, outputs print the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from rl_doctor.frozen import frozen

Severity = Literal["error", "warning", "info"]
Outcome = Literal["passed", "found", "skipped", "crashed"]
FailOn = Literal["error", "warning", "never"]

SEVERITY_ORDER: Final[Mapping[str, int]] = {"info": 0, "warning": 1, "error": 2}


@frozen
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
        interval: where the true value lies with 95% confidence, as far as ``n`` items tell; None where that was not computed.
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
    interval: tuple[float, float] | None = None


@frozen
class Sample:
    """A sequence worth looking at.

    Attributes:
        step: at which it was trained on.
        sequence: its number in the run.
        uid: its identity, or None where none was recorded.
        metric: what stands out in it.
        value: how much of that.
    """

    step: int
    sequence: int
    uid: str | None
    metric: str
    value: float


@frozen
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
        suspect: name of the cause (``causes.registry``) that the rule itself recognised, or "".
        samples: sequences that show it best.
    """

    message: str
    severity: Severity
    evidence: tuple[Evidence, ...]
    cause: str | None = None
    ruled_out: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    suspect: str = ""
    samples: tuple[Sample, ...] = ()


@frozen
class Finding:
    """A hit with everything that the report prints about it.

    ``fingerprint`` is stable across steps and runs; ``own_cause`` is False where the cause is in the general words of the rule.
    """

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
    suspect: str = ""
    samples: tuple[Sample, ...] = ()
    own_cause: bool = True

    @property
    def first_step(self) -> int | None:
        """The earliest step of its evidence; None where no evidence has steps."""
        return min((int(item.first_step) for item in self.evidence if item.first_step is not None), default=None)

    @property
    def last_step(self) -> int | None:
        """The latest step of its evidence; None where no evidence has steps."""
        return max((int(item.last_step) for item in self.evidence if item.last_step is not None), default=None)


@frozen
class Sign:
    """What became of one sign of a cause.

    Attributes:
        text: the sign in words, with its numbers.
        step: the first step at which it shows, or None.
    """

    text: str
    step: int | None = None


@frozen
class Diagnosis:
    """One cause, and everything that was found of it.

    Attributes:
        name: of the cause, kebab-case; that of the rule where no known cause fits its finding.
        cause: the cause in one sentence.
        severity: that of the worst finding.
        findings: those that this cause shows itself by, most urgent first.
        followed_by: findings that follow from it, in the order of steps.
        seen: signs that are there.
        absent: signs that speak for the cause and are not there.
        unchecked: signs that could not be looked at, each with the column that would allow it.
        ruled_out: other causes of the same findings that the data speak against, each with the reason.
        also_fits: other causes of the same findings that the data cannot tell from this one, each with what would.
        advice: what to do next, most useful first.
    """

    name: str
    cause: str
    severity: Severity
    findings: tuple[Finding, ...]
    followed_by: tuple[Finding, ...] = ()
    seen: tuple[Sign, ...] = ()
    absent: tuple[Sign, ...] = ()
    unchecked: tuple[Sign, ...] = ()
    ruled_out: tuple[str, ...] = ()
    also_fits: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def first_step(self) -> int | None:
        """The earliest step at which a finding or a sign of it shows; None where none has steps."""
        steps = (*(finding.first_step for finding in self.findings), *(sign.step for sign in self.seen))
        return min((step for step in steps if step is not None), default=None)

    @property
    def last_step(self) -> int | None:
        """The latest step of its own findings; None where none has steps."""
        return max((step for finding in self.findings if (step := finding.last_step) is not None), default=None)

    @property
    def codes(self) -> tuple[str, ...]:
        """Rules that found it or what follows from it, each once."""
        return tuple(dict.fromkeys(finding.code for finding in (*self.findings, *self.followed_by)))


@frozen
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


@frozen
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


@frozen
class RunSummary:
    """What was read: path, trainer, algorithm, step range, sizes, and what was left out of the reading.

    ``logged_values`` counts what the trainer itself logged, ``reconciled`` are those of its numbers that were recomputed,
    ``not_recomputed`` those that could be but were not, each with the reason; ``not_recomputable`` counts those that cannot be
    from what is recorded, ``undefined`` those that the trainer's table does not define,
    ``undefined_names`` their names. ``sampling`` is the share of groups whose tokens were kept, where not all were.
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
    undefined_names: tuple[str, ...] = ()

    @property
    def only_logged(self) -> bool:
        """Whether all that is known of the run is what the trainer logged."""
        return self.sequences == 0 and self.logged_values > 0


@frozen
class Failure:
    """Why a run has no results: the message of a ``DoctorError`` and its exit code (2 unreadable, 3 nothing to judge)."""

    message: str
    exit_code: int


@frozen
class Report:
    """Everything that a check has to say about one run. With a ``failure`` it has no results.

    ``diagnosis`` tells the findings of the results by cause, the most urgent cause first.
    """

    run: RunSummary
    results: tuple[Result, ...]
    doctor_version: str
    schema_version: int
    created_at: str
    required: tuple[str, ...] = ()
    failure: Failure | None = None
    diagnosis: tuple[Diagnosis, ...] = ()

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
