"""The report for people: what is wrong, why it is likely so, what to do, and what could not be looked at."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rl_doctor.report.diagnosis import told
from rl_doctor.report.model import Diagnosis, FailOn, Finding, Report, Result, RunSummary, exit_code
from rl_doctor.report.wide import folded
from rl_doctor.report.wording import (
    count,
    evidence,
    headline,
    not_recomputed,
    printable,
    recomputed,
    sample,
    steps,
    why_not_judged,
)

_STYLES: Final = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}
_LABEL_WIDTH: Final = 12
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
_MOST_NAMES: Final = 12
_SOME_LINES: Final = 4
_FEW_LINES: Final = 2
"""Lines of one label: the most, of what is beside the point, and of what most readers leave out."""
_RECORDING: Final = "a recording"
Tell = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class _Page:
    """Where a report is printed, and in which language.

    Attributes:
        console: what is printed on.
        tell: gives a sentence in the reader's language.
    """

    console: Console
    tell: Tell

    def line(self, words: str = "", style: str = "") -> None:
        self.console.print(Text(words, style))

    def rows(self, rows: Iterable[tuple[str, str]]) -> None:
        """Rows of a label and a body, below each other."""
        listed = list(rows)
        widest = min(max([_LABEL_WIDTH, *(cell_len(label) for label, _ in listed)]), _LABEL_LIMIT)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(min_width=_LABEL_WIDTH, max_width=_LABEL_LIMIT, overflow="fold", style="dim")
        grid.add_column(overflow="fold")
        for label, body in listed:
            grid.add_row(Text(label), Text(folded(body, self.console.width - widest - 4)))
        self.console.print(Padding(grid, (0, 0, 0, 2)))

    def labelled(self, label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
        """Sentences under a label, in the reader's language."""
        return _labelled(self.tell(label), map(self.tell, lines))


def render(
    reports: Sequence[Report], fail_on: FailOn = "error", *, width: int = 100, colour: bool = False, tell: Tell = str
) -> str:
    """The reports as text.

    Args:
        reports: reports in the order to print; one with a failure prints nothing but its place in the count.
        fail_on: severity from which findings fail the check, for the exit code in the last line.
        width: columns to fill.
        colour: whether to write ANSI colours.
        tell: gives a sentence in the reader's language; as it is by default.
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
    page = _Page(console, tell)
    with console.capture() as captured:
        for report in reports:
            if report.failure is None:
                _report(page, report, fail_on)
        if len(reports) > 1:
            unread = sum(report.failure is not None for report in reports)
            lost = f", {unread} could not be judged" if unread else ""
            page.line(tell(f"{count(len(reports), 'run')}{lost}; exit {exit_code(reports, fail_on)}"), "bold")
    return "\n".join(line.rstrip() for line in captured.get().split("\n"))


def _report(page: _Page, report: Report, fail_on: FailOn) -> None:
    _headline(page, report)
    for entry in told(report):
        page.line()
        _diagnosis(page, entry)
    for result in report.results:
        if result.outcome == "crashed":
            page.line()
            _crash(page, result)
    if reading := _reading(page, report.run):
        page.line()
        page.rows(reading)
    code = report.exit_code(fail_on)
    if skipped := [result for result in report.results if result.outcome == "skipped"]:
        page.line()
        urgent = any(finding.severity != "info" for finding in report.findings)
        if urgent and code != 3:  # what was found must not be buried
            page.line(page.tell("Not judged, by what would enable it (numbers of rules; the JSON report names them)"), "bold")
            page.rows(_in_numbers(page, skipped, only_logged=report.run.only_logged))
        else:
            page.line(page.tell("Not judged, and what would enable it"), "bold")
            page.rows(_skipped(page, skipped, only_logged=report.run.only_logged))
    page.line()
    if code == 3:
        page.line(page.tell(f"{why_not_judged(report)}."), "bold yellow")
    page.line(page.tell(f"{_counts(report)}; exit {code}"), "bold")
    page.line()


def _headline(page: _Page, report: Report) -> None:
    run = report.run
    ran = sum(result.outcome != "skipped" for result in report.results)
    page.line(printable(run.path).replace("\n", "\\n"), "bold")
    known = [
        " ".join(part for part in (run.trainer, run.trainer_version) if part) or "trainer unknown",
        run.algorithm or "algorithm unknown",
        steps(run.first_step, run.last_step),
        count(run.logged_values, "logged value") if run.only_logged else _tokens(run),
        f"{count(ran, 'rule')} run, {len(report.results) - ran} skipped",
    ]
    page.line(printable(" · ".join(map(page.tell, known))))
    if not report.findings and report.exit_code() == 0:
        if short := _inconclusive(report):
            page.line(page.tell(f"No findings, but inconclusive: too short for {count(short, 'rule')}."), "yellow")
        else:
            page.line(page.tell("No findings."), "green")


def _tokens(run: RunSummary) -> str:
    of = "" if run.sampling is None else f" of {100 * run.sampling:.4g}% of the groups"
    return f"{count(run.tokens, 'token')}{of}"


def _diagnosis(page: _Page, entry: Diagnosis) -> None:
    when = "" if entry.first_step is None else page.tell(f" ({steps(entry.first_step, entry.last_step)})")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(min_width=_LABEL_WIDTH)
    grid.add_column(overflow="fold")
    cause = Text(printable(page.tell(entry.cause)), "bold")
    grid.add_row(Text(page.tell(entry.severity.upper()), _STYLES[entry.severity]), cause.append(when, "not bold"))
    page.console.print(grid)
    rows = list(_found(page, entry.findings))
    rows += _signs(page, entry)
    rows += page.labelled("but", _first(sign.text for sign in entry.absent))
    rows += page.labelled("not checked", _first((sign.text for sign in entry.unchecked), _FEW_LINES))
    rows += page.labelled("ruled out", _first(entry.ruled_out, _FEW_LINES))
    rows += page.labelled("fits as well", _first(entry.also_fits, _SOME_LINES))
    rows += page.labelled("follows", _first(map(_followed, entry.followed_by), _SOME_LINES))
    samples = dict.fromkeys(item for finding in entry.findings for item in finding.samples)
    rows += page.labelled("look at", _first(map(sample, samples), _FEW_LINES))
    several = len(entry.advice) > 1
    advice = (f"{n}. {page.tell(item)}" if several else page.tell(item) for n, item in enumerate(entry.advice, 1))
    rows += _labelled(page.tell("next"), _first(advice))
    codes = dict.fromkeys(finding.code for finding in entry.findings)
    rows.append((page.tell("see"), ", ".join(f"rl-doctor explain {code}" for code in codes)))
    page.rows(rows)


def _found(page: _Page, findings: Sequence[Finding]) -> Iterable[tuple[str, str]]:
    """What rules found: each message under its rule, the numbers of the first few."""
    rule = ""
    shown = findings if len(findings) <= _MOST_TOGETHER + 1 else findings[:_MOST_TOGETHER]
    for each in shown:
        if (title := headline(each)) != rule:
            yield page.tell("found"), page.tell(title)
            rule = title
        yield "", printable(page.tell(each.message))
        most = _SOME_LINES if each is shown[0] else _FEW_LINES  # the first one decides, the others bear it out
        yield from page.labelled("evidence", _first(map(evidence, each.evidence), most))
    if rest := findings[len(shown) :]:
        more = f"and {len(rest)} more like these (the JSON report has their numbers)"
        yield "", f"{page.tell(more)}: {_names(rest)}"


def _signs(page: _Page, entry: Diagnosis) -> list[tuple[str, str]]:
    """The signs that are there, and of how many; a single one that is the finding itself has been told."""
    signs = len(entry.seen) + len(entry.absent) + len(entry.unchecked)
    if signs != 1:
        return page.labelled(f"{len(entry.seen)} of {count(signs, 'sign')}", _first(sign.text for sign in entry.seen))
    told = {f"({finding.code}, " for finding in entry.findings}
    return page.labelled("sign", [sign.text for sign in entry.seen if not any(code in sign.text for code in told)])


def _followed(finding: Finding) -> str:
    return f"{finding.severity} {headline(finding)}: {finding.message}"


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


def _crash(page: _Page, result: Result) -> None:
    head = Text(page.tell("CRASHED"), "bold magenta")
    head.append(f"  {result.code} {result.name}", "bold")
    page.console.print(head)
    bug = page.tell("This is a bug of rl-doctor, not of the run: please report it.")
    page.rows(_labelled("", [f"{result.reason}: {result.detail}", bug]))


def _reading(page: _Page, run: RunSummary) -> list[tuple[str, str]]:
    """What was held against the trainer's log, what was left out of the reading, and what was read under another name."""
    unknown = page.tell("not used" if run.only_logged else "unknown columns")
    return [
        *page.labelled("recomputed", [recomputed(run.reconciled)] if run.reconciled else []),
        *page.labelled("not recomputed", not_recomputed(run)),
        *page.labelled("skipped parts", run.skipped_parts),
        *_labelled(unknown, _unknown(page, run)),
        *_labelled(page.tell("renamed columns"), [", ".join(run.renamed_columns)] if run.renamed_columns else []),
        *page.labelled("notes", run.notes),
    ]


def _unknown(page: _Page, run: RunSummary) -> list[str]:
    """Columns that are none; of names in a log, which are many, the first few."""
    names = run.unknown_columns
    if not run.only_logged or len(names) <= _NAMES_SHOWN + 1:
        return [", ".join(names)] if names else []
    rest = len(names) - _NAMES_SHOWN
    more = page.tell(f"and {rest} more names (the JSON report lists all)")
    return [f"{', '.join(names[:_NAMES_SHOWN])} {more}"]


def _needs_recording(result: Result) -> bool:
    """Whether a skipped rule lacks columns, of which a log alone has none."""
    return bool(result.missing) and not any("." in name for name in result.missing)


def _skipped(page: _Page, results: Iterable[Result], *, only_logged: bool) -> list[tuple[str, str]]:
    """One row for each set of missing columns, then one for each other reason, with codes alone where many rules share it.

    Of a run of which only a log is there, every column is missing: one row names all that a recording would enable.
    """
    groups: dict[str, list[str]] = {}
    reasons: dict[str, dict[str, str]] = {}
    for result in results:
        rule = f"{result.code} {result.name}"
        if not result.missing:
            reasons.setdefault(page.tell(_REASONS.get(result.reason, result.reason)), {})[rule] = result.detail
        elif only_logged and _needs_recording(result):
            groups.setdefault(page.tell(_RECORDING), []).append(result.code)
        else:
            groups.setdefault(" + ".join(result.missing), []).append(rule)
    rows = [(printable(label), ", ".join(rules)) for label, rules in sorted(groups.items(), key=lambda item: -len(item[1]))]
    for reason, details in reasons.items():
        if len(details) > _MOST_DETAILS:  # the JSON report has them
            rows.append((reason, ", ".join(rule.partition(" ")[0] for rule in details)))
        else:
            rows += _labelled(reason, (f"{rule} ({page.tell(detail)})" if detail else rule for rule, detail in details.items()))
    return rows


def _in_numbers(page: _Page, skipped: Sequence[Result], *, only_logged: bool) -> list[tuple[str, str]]:
    """How many rules each missing column would enable, and how many were skipped for other reasons."""
    recorded = [result for result in skipped if only_logged and _needs_recording(result)]
    lacking = Counter(name for result in skipped if result not in recorded for name in result.missing)
    reasons = Counter(_REASONS.get(result.reason, result.reason) for result in skipped if not result.missing)
    needs = [f"{printable(name)} {number}" for name, number in lacking.most_common()]
    if len(needs) > _MOST_NAMES + 1:
        needs[_MOST_NAMES:] = [page.tell(f"and {len(needs) - _MOST_NAMES} more")]
    if recorded:
        needs.insert(0, f"{page.tell(_RECORDING)} {len(recorded)}")
    rows = [(page.tell("not recorded"), ", ".join(needs))]
    rows.append((page.tell("or else"), ", ".join(f"{page.tell(reason)} {number}" for reason, number in reasons.most_common())))
    return [(label, body) for label, body in rows if body]


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
