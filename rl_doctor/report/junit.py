"""The report as JUnit XML: one test suite per run, one test case per rule. Skipped is skipped, never green."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from rl_doctor.report.model import SEVERITY_ORDER, FailOn, Finding, Report, Result
from rl_doctor.report.wording import evidence, printable, why_not_judged

_JUDGED = "something could be judged"


def render(reports: Sequence[Report], fail_on: FailOn = "error") -> str:
    """JUnit XML of the reports.

    Findings at or above ``fail_on`` are failures, lesser ones are the test case's output; a crashed rule, an unreadable run and a
    run in which nothing could be judged are errors.
    """
    root = ET.Element("testsuites", name="rl-doctor")
    for report in reports:
        root.append(_suite(report, fail_on))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode", xml_declaration=True).replace("encoding='utf-8'", 'encoding="UTF-8"', 1) + "\n"


def _suite(report: Report, fail_on: FailOn) -> ET.Element:
    path = printable(report.run.path)
    cases = [_case(result, path, fail_on) for result in report.results]
    if report.failure is not None:
        cases.append(_error_case(path, "run is readable", printable(report.failure.message)))
    elif report.exit_code(fail_on) == 3:
        cases.append(_error_case(path, _JUDGED, why_not_judged(report)))
    suite = ET.Element("testsuite", name=path, timestamp=report.created_at[:19])
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", f"{sum(result.seconds for result in report.results):.3f}")
    suite.extend(cases)
    return suite


def _error_case(path: str, name: str, message: str) -> ET.Element:
    case = ET.Element("testcase", classname=path, name=name, time="0.000")
    ET.SubElement(case, "error", message=message, type="unreadable" if name != _JUDGED else "not judged")
    return case


def _case(result: Result, path: str, fail_on: FailOn) -> ET.Element:
    case = ET.Element("testcase", classname=path, name=f"{result.code} {result.name}", time=f"{result.seconds:.3f}")
    if result.outcome == "skipped":
        reason = f"needs {', '.join(result.missing)}" if result.missing else result.reason
        ET.SubElement(case, "skipped", message=printable(f"{reason}: {result.detail}" if result.detail else reason))
    elif result.outcome == "crashed":
        ET.SubElement(case, "error", message=printable(result.detail), type=result.reason)
    failing = [finding for finding in result.findings if _fails(finding, fail_on)]
    if failing:
        message = "; ".join(finding.message for finding in failing)
        ET.SubElement(case, "failure", message=printable(message), type=failing[0].severity).text = _body(failing)
    if lesser := [finding for finding in result.findings if finding not in failing]:
        ET.SubElement(case, "system-out").text = _body(lesser)
    return case


def _fails(finding: Finding, fail_on: FailOn) -> bool:
    return fail_on != "never" and SEVERITY_ORDER[finding.severity] >= SEVERITY_ORDER[fail_on]


def _body(findings: Sequence[Finding]) -> str:
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.severity}: {finding.message}")
        lines += [f"evidence: {evidence(item)}" for item in finding.evidence]
        lines.append(f"likely cause: {finding.cause}")
        lines += [f"next: {advice}" for advice in finding.advice]
    return printable("\n".join(lines))
