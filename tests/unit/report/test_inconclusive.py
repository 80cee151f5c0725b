"""A run that is too short is told apart from a clean one."""

from rl_doctor.report import text
from rl_doctor.report.model import Report, Result, RunSummary

RUN = RunSummary("log.csv", None, None, None, 1, 3, 0, 0, logged_values=9)


def report(*reasons: str) -> Report:
    results = [Result("RLD601", "non-finite", "passed")]
    results += [
        Result(f"RLD4{number:02}", f"rule-{number}", "skipped", reason=reason, detail=f"detail {number}")
        for number, reason in enumerate(reasons)
    ]
    return Report(RUN, tuple(results), "0", 1, "now")


def test_no_findings_of_a_short_log_are_inconclusive() -> None:
    shown = text.render([report("length", "length", "data")])
    assert "No findings, but inconclusive: too short for 2 rules." in shown
    assert "3 skipped (2 inconclusive)" in shown
    assert "inconclusive" not in text.render([report("data")])


def test_details_are_printed_while_they_are_few() -> None:
    assert "rule-3 (detail 3)" in text.render([report(*["length"] * 4)])
    many = text.render([report(*["length"] * 5)])
    assert "RLD403" in many
    assert "rule-3" not in many
    assert "detail" not in many
