"""The report for people: what is wrong, why it is likely so, what to do, and what could not be looked at."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rl_doctor.report.diagnosis import by_urgency
from rl_doctor.report.model import FailOn, Finding, Report, Result, RunSummary, exit_code
from rl_doctor.report.wording import count, evidence, not_recomputed, printable, recomputed, steps, why_not_judged

_STYLES: Final = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}
_LABEL_WIDTH: Final = 11
_LABEL_LIMIT: Final = 32
_NAMES_SHOWN: Final = 5
_REASONS: Final = {
    "length": "too short to judge",
    "data": "nothing to measure",
    "config": "does not apply, or unknown",
    "column": "not recorded",
}
_MOST_DETAILS: Final = 4
"""Rules skipped for one reason whose details are still printed one by one."""
_MOST_TOGETHER: Final = 4
"""Findings with one cause that are printed one by one."""
_MOST_LINES: Final = 8
_FEW_LINES: Final = 2
"""Lines of one label, and of what does not explain several findings."""
_RECORDING: Final = "a recording"


def render(reports: Sequence[Report], fail_on: FailOn = "error", *, width: int = 100, colour: bool = False) -> str:
    """The reports as text.

    Args:
        reports: reports in the order to print; one with a failure prints nothing but its place in the count.
        fail_on: severity from which findings fail the check, for the exit code in the last line.
        width: columns to fill.
        colour: whether to write ANSI colours.
    """
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        for report in reports:
            if report.failure is None:
                _report(console, report, fail_on)
        if len(reports) > 1:
            unread = sum(report.failure is not None for report in reports)
            lost = f", {unread} could not be judged" if unread else ""
            console.print(Text(f"{count(len(reports), 'run')}{lost}; exit {exit_code(reports, fail_on)}", "bold"))
    return "\n".join(line.rstrip() for line in captured.get().split("\n"))


def _report(console: Console, report: Report, fail_on: FailOn) -> None:
    _headline(console, report)
    for group in _together(by_urgency(report.findings)):
        console.print()
        _findings(console, group)
    for result in report.results:
        if result.outcome == "crashed":
            console.print()
            _crash(console, result)
    if reading := _reading(report.run):
        console.print()
        _rows(console, reading)
    if skipped := _skipped(report.results, only_logged=report.run.only_logged):
        console.print()
        console.print(Text("Not judged, and what would enable it", "bold"))
        _rows(console, skipped)
    console.print()
    if (code := report.exit_code(fail_on)) == 3:
        console.print(Text(f"{why_not_judged(report)}.", "bold yellow"))
    console.print(Text(f"{_counts(report)}; exit {code}", "bold"))
    console.print()


def _headline(console: Console, report: Report) -> None:
    run = report.run
    ran = sum(result.outcome != "skipped" for result in report.results)
    console.print(Text(printable(run.path).replace("\n", "\\n"), "bold"))
    known = [
        " ".join(part for part in (run.trainer, run.trainer_version) if part) or "trainer unknown",
        run.algorithm or "algorithm unknown",
        steps(run.first_step, run.last_step),
        count(run.logged_values, "logged value") if run.only_logged else _tokens(run),
        f"{count(ran, 'rule')} run, {len(report.results) - ran} skipped",
    ]
    console.print(Text(printable(" · ".join(known))))
    if not report.findings and report.exit_code() == 0:
        if short := _inconclusive(report):
            console.print(Text(f"No findings, but inconclusive: too short for {count(short, 'rule')}.", "yellow"))
        else:
            console.print(Text("No findings.", "green"))


def _tokens(run: RunSummary) -> str:
    of = "" if run.sampling is None else f" of {100 * run.sampling:.4g}% of the groups"
    return f"{count(run.tokens, 'token')}{of}"


def _together(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings of one rule with one severity and one cause, which need its advice only once; in the order of their first."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.code, finding.cause), []).append(finding)
    return list(groups.values())


def _findings(console: Console, group: Sequence[Finding]) -> None:
    finding = group[0]
    head = Text(finding.severity.upper(), _STYLES[finding.severity])
    head.append(f"  {finding.code} {finding.name}", "bold")
    shown = [item for each in group for item in each.evidence]
    starts = [item.first_step for item in shown if item.first_step is not None]
    ends = [item.last_step for item in shown if item.last_step is not None]
    if starts and ends:
        head.append(f"  {steps(min(starts), max(ends))}")
    console.print(head)
    rows: list[tuple[str, str]] = []
    shown_alone = group if len(group) <= _MOST_TOGETHER + 1 else group[:_MOST_TOGETHER]
    for each in shown_alone:
        rows.append(("", printable(each.message)))
        rows += _labelled("evidence", _first(map(evidence, each.evidence)))
    if rest := group[len(shown_alone) :]:
        rows.append(("", f"and {len(rest)} more like these (the JSON report has their numbers): {_names(rest)}"))
    rows += _labelled("likely", [finding.cause])
    ruled_out = dict.fromkeys(item for each in group for item in each.ruled_out)
    rows += _labelled("ruled out", _first(ruled_out, _MOST_LINES if len(group) == 1 else _FEW_LINES))
    rows += _labelled("not checked", _first(dict.fromkeys(item for each in group for item in each.unchecked)))
    several = len(finding.advice) > 1
    rows += _labelled("next", (f"{n}. {item}" if several else item for n, item in enumerate(finding.advice, 1)))
    rows.append(("see", f"rl-doctor explain {finding.code}"))
    _rows(console, rows)


def _first(lines: Iterable[str], most: int = _MOST_LINES) -> list[str]:
    """The lines, of many the first few."""
    found = list(lines)
    return found if len(found) <= most + 1 else [*found[:most], f"and {len(found) - most} more (the JSON report has them)"]


def _names(findings: Iterable[Finding]) -> str:
    """What the findings are about."""
    named = (item for finding in findings for item in finding.evidence[:1])
    return printable(", ".join(str((item.where or {}).get("logged_name", item.metric)) for item in named))


def _labelled(label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [(label if index == 0 else "", printable(line)) for index, line in enumerate(lines)]


def _rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=_LABEL_WIDTH, max_width=_LABEL_LIMIT, overflow="fold", style="dim")
    grid.add_column(overflow="fold")
    for label, body in rows:
        grid.add_row(Text(label), Text(body))
    console.print(Padding(grid, (0, 0, 0, 2)))


def _crash(console: Console, result: Result) -> None:
    head = Text("CRASHED", "bold magenta")
    head.append(f"  {result.code} {result.name}", "bold")
    console.print(head)
    rows = _labelled("", [f"{result.reason}: {result.detail}", "This is a bug of rl-doctor, not of the run: please report it."])
    _rows(console, rows)


def _reading(run: RunSummary) -> list[tuple[str, str]]:
    """What was held against the trainer's log, what was left out of the reading, and what was read under another name."""
    return [
        *_labelled("recomputed", [recomputed(run.reconciled)] if run.reconciled else []),
        *_labelled("not recomputed", not_recomputed(run)),
        *_labelled("skipped parts", run.skipped_parts),
        *_labelled("not used" if run.only_logged else "unknown columns", _unknown(run)),
        *_labelled("renamed columns", [", ".join(run.renamed_columns)] if run.renamed_columns else []),
        *_labelled("notes", run.notes),
    ]


def _unknown(run: RunSummary) -> list[str]:
    """Columns that are none; of names in a log, which are many, the first few."""
    names = run.unknown_columns
    if not run.only_logged or len(names) <= _NAMES_SHOWN + 1:
        return [", ".join(names)] if names else []
    rest = len(names) - _NAMES_SHOWN
    return [f"{', '.join(names[:_NAMES_SHOWN])} and {rest} more names (the JSON report lists all)"]


def _skipped(results: Iterable[Result], *, only_logged: bool) -> list[tuple[str, str]]:
    """One row for each set of missing columns, then one for each other reason.

    Of a run of which only a log is there, every column is missing: one row names all that a recording would enable.
    """
    groups: dict[str, list[str]] = {}
    reasons: dict[str, dict[str, str]] = {}
    for result in results:
        if result.outcome != "skipped":
            continue
        rule = f"{result.code} {result.name}"
        if not result.missing:
            reasons.setdefault(_REASONS.get(result.reason, result.reason), {})[rule] = result.detail
        elif only_logged and not any("." in name for name in result.missing):
            groups.setdefault(_RECORDING, []).append(result.code)
        else:
            groups.setdefault(" + ".join(result.missing), []).append(rule)
    rows = [(printable(label), ", ".join(rules)) for label, rules in sorted(groups.items(), key=lambda item: -len(item[1]))]
    for reason, details in reasons.items():
        if len(details) > _MOST_DETAILS:  # the JSON report has them
            rows.append((reason, ", ".join(details)))
        else:
            rows += _labelled(reason, (f"{rule} ({detail})" if detail else rule for rule, detail in details.items()))
    return rows


def _counts(report: Report) -> str:
    severities = Counter(finding.severity for finding in report.findings)
    outcomes = Counter(result.outcome for result in report.results)
    found = ", ".join(
        [count(severities["error"], "error"), count(severities["warning"], "warning"), f"{severities['info']} info"]
    )
    crashed = f", {outcomes['crashed']} crashed" if outcomes["crashed"] else ""
    short = f" ({inconclusive} inconclusive)" if (inconclusive := _inconclusive(report)) else ""
    return f"{found}; {outcomes['passed']} passed, {outcomes['skipped']} skipped{short}{crashed}"


def _inconclusive(report: Report) -> int:
    """Number of rules that had too few steps."""
    return sum(result.outcome == "skipped" and result.reason == "length" for result in report.results)
