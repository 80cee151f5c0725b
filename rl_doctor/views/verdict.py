"""What the diagnosis page says: the verdict, the causes with their signs, and what was not looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

from rl_doctor.report import model, wording
from rl_doctor.report.diagnosis import told
from rl_doctor.report.model import Diagnosis, Report, Severity
from rl_doctor.views.findings import Found, found
from rl_doctor.views.kept import kept
from rl_doctor.views.opened import Opened
from rl_doctor.views.table import Table

Level = Literal["error", "warning", "info", "passed", "inconclusive", "nothing", "crashed"]
Kind = Literal["seen", "absent", "unchecked"]
Why = Literal["column", "config", "length", "data", "crash"]

_REASONS: Final[dict[str, Why]] = {"length": "length", "config": "config", "column": "column"}


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of a cause, and what became of it; ``step`` is the first one at which it shows."""

    kind: Kind
    text: str
    step: int | None


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause and all that is known of it; see ``report.model.Diagnosis``."""

    name: str
    sentence: str
    severity: Severity
    when: str
    first: int | None
    signs: tuple[Sign, ...]
    seen: int
    ruled_out: tuple[str, ...]
    also_fits: tuple[str, ...]
    advice: tuple[str, ...]
    findings: tuple[Found, ...]
    followed_by: tuple[Found, ...]
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """Rules that were not run for one reason.

    Attributes:
        why: kind of the reason.
        needs: columns or ``config.`` fields that would enable them; for other reasons "".
        rules: code and name of each.
        details: the reason of each in a sentence; "" where ``needs`` says it.
    """

    why: Why
    needs: str
    rules: tuple[str, ...]
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of a run as a whole.

    Attributes:
        level: the worst that was found; passed; inconclusive (nothing found, but too short for some rules); nothing (could be
            judged); or crashed (a rule).
        errors: number of findings that are errors.
        warnings: number of warnings.
        infos: number of those that are only worth knowing.
        judged: number of rules that passed or found something.
        rules: number of all rules.
        short: number of rules for which the run is too short.
        columns: number of columns and settings that would enable further rules.
        first: the earliest step of a cause that is at least a warning; None without any.
        about: trainer, algorithm and size of the run.
        causes: most urgent first.
        missing: what was not looked at, by what it lacks; what would enable most comes first.
    """

    level: Level
    errors: int
    warnings: int
    infos: int
    judged: int
    rules: int
    short: int
    columns: int
    first: int | None
    about: tuple[str, ...]
    causes: tuple[Cause, ...]
    missing: tuple[Missing, ...]

    def cause(self, name: str | None) -> Cause | None:
        """The cause of that name, or else the most urgent one; None without any."""
        return next((cause for cause in self.causes if cause.name == name), self.causes[0] if self.causes else None)

    @property
    def lacking(self) -> Table:
        """What was not looked at, as a table."""
        rows = [(entry, rule, detail) for entry in self.missing for rule, detail in zip(entry.rules, entry.details, strict=True)]
        return {
            "rule": [rule for _, rule, _ in rows],
            "reason": [entry.why for entry, _, _ in rows],
            "needs": [entry.needs for entry, _, _ in rows],
            "detail": [detail for _, _, detail in rows],
        }


@kept
def verdict(opened: Opened) -> Verdict:
    """The verdict on a run."""
    report = opened.report
    severities = Counter(finding.severity for finding in report.findings)
    outcomes = Counter(result.outcome for result in report.results)
    short = _short(report)
    causes = tuple(_cause(opened, entry) for entry in told(report))
    missing = _missing(report)
    return Verdict(
        level_of(report),
        severities["error"],
        severities["warning"],
        severities["info"],
        outcomes["passed"] + outcomes["found"],
        len(report.results),
        short,
        len({name for result in report.results for name in result.missing}),
        min((cause.first for cause in causes if cause.severity != "info" and cause.first is not None), default=None),
        _about(report),
        causes,
        missing,
    )


def level_of(report: Report) -> Level:
    """What is said of a run in one word, see ``Verdict.level``."""
    severities = {finding.severity for finding in report.findings}
    for severity in ("error", "warning"):
        if severity in severities:
            return severity
    if any(result.outcome == "crashed" for result in report.results):
        return "crashed"
    if report.exit_code("never") == 3:
        return "nothing"
    if "info" in severities:
        return "info"
    return "inconclusive" if _short(report) else "passed"


def _short(report: Report) -> int:
    """Number of rules for which the run is too short."""
    return sum(result.outcome == "skipped" and result.reason == "length" for result in report.results)


def _about(report: Report) -> tuple[str, ...]:
    run = report.run
    trainer = " ".join(part for part in (run.trainer, run.trainer_version) if part)
    size = wording.count(run.logged_values, "logged value") if run.only_logged else wording.count(run.tokens, "token")
    return tuple(part for part in (trainer, run.algorithm or "", wording.steps(run.first_step, run.last_step), size) if part)


def _cause(opened: Opened, entry: Diagnosis) -> Cause:
    signs: tuple[tuple[Kind, tuple[model.Sign, ...]], ...] = (
        ("seen", entry.seen), ("absent", entry.absent), ("unchecked", entry.unchecked),
    )  # fmt: skip
    first = entry.first_step
    return Cause(
        entry.name,
        entry.cause,
        entry.severity,
        "" if first is None else wording.steps(first, entry.last_step),
        first,
        tuple(Sign(kind, sign.text, sign.step) for kind, several in signs for sign in several),
        len(entry.seen),
        entry.ruled_out,
        entry.also_fits,
        entry.advice,
        tuple(found(opened, finding) for finding in entry.findings),
        tuple(found(opened, finding) for finding in entry.followed_by),
        entry.codes,
    )


def _missing(report: Report) -> tuple[Missing, ...]:
    groups: dict[tuple[Why, str], list[tuple[str, str]]] = {}
    for result in report.results:
        if result.outcome not in {"skipped", "crashed"}:
            continue
        why: Why = "crash" if result.outcome == "crashed" else "column" if result.missing else _REASONS.get(result.reason, "data")
        rule = f"{result.code} {result.name}"
        groups.setdefault((why, " + ".join(result.missing)), []).append((rule, result.detail))
    order: tuple[Why, ...] = ("crash", "column", "config", "length", "data")
    ranked = sorted(groups.items(), key=lambda item: (order.index(item[0][0]), -len(item[1]), item[0][1]))
    return tuple(
        Missing(why, needs, tuple(rule for rule, _ in rules), tuple(detail for _, detail in rules))
        for (why, needs), rules in ranked
    )
