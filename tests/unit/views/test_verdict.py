"""The verdict, the causes and the axis of findings, against the report that they are made of."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from rl_doctor.report.diagnosis import told
from rl_doctor.report.model import Diagnosis, Evidence, Finding, Report, Result, Sample
from rl_doctor.views.findings import found
from rl_doctor.views.opened import Opened
from rl_doctor.views.timeline import MOST_ROWS, timeline
from rl_doctor.views.verdict import verdict


def changed(opened: Opened, *results: Result, diagnosis: tuple[Diagnosis, ...] = ()) -> Opened:
    """The run with another report."""
    return dataclasses.replace(opened, report=dataclasses.replace(opened.report, results=results, diagnosis=diagnosis))


def finding(code: str, severity: str, first: int | None, last: int | None = None, metric: str = "policy.entropy") -> Finding:
    proof = Evidence(metric, first, first if last is None else last, 0.5)
    return Finding(code, f"rule-{code}", severity, f"{code} says so", (proof,), f"cause of {code}", ("do it",))  # type: ignore[arg-type]


def result(outcome: str, *findings: Finding, code: str = "RLD900", **more: object) -> Result:
    return Result(code, f"rule-{code}", outcome, findings=findings, **more)  # type: ignore[arg-type]


def test_a_faulty_run_is_told_as_in_its_report(stale: Opened) -> None:
    view = verdict(stale)
    report: Report = stale.report
    assert view.level == "error"
    assert view.errors == sum(each.severity == "error" for each in report.findings) > 0
    assert (
        view.judged + sum(each.outcome in {"skipped", "crashed"} for each in report.results) == view.rules == len(report.results)
    )
    assert view.short == sum(each.reason == "length" for each in report.results if each.outcome == "skipped")
    assert view.columns == len({name for each in report.results for name in each.missing})
    assert [cause.sentence for cause in view.causes] == [entry.cause for entry in told(report)]
    for cause, entry in zip(view.causes, told(report), strict=True):
        assert [sign.kind for sign in cause.signs] == (
            ["seen"] * len(entry.seen) + ["absent"] * len(entry.absent) + ["unchecked"] * len(entry.unchecked)
        )
        assert [each.message for each in cause.findings] == [each.message for each in entry.findings]
        assert (cause.ruled_out, cause.also_fits, cause.advice) == (entry.ruled_out, entry.also_fits, entry.advice)


def test_a_cause_is_found_by_its_name_and_else_the_first_counts(stale: Opened) -> None:
    view = verdict(stale)
    assert view.cause(view.causes[-1].name) is view.causes[-1]
    assert view.cause("no-such-cause") is view.causes[0]
    assert verdict(changed(stale)).cause("none") is None


def test_every_rule_that_was_not_run_is_told_with_what_it_lacks(stale: Opened) -> None:
    view = verdict(stale)
    skipped = {f"{each.code} {each.name}": each for each in stale.report.results if each.outcome in {"skipped", "crashed"}}
    rules = [rule for entry in view.missing for rule in entry.rules]
    assert sorted(rules) == sorted(skipped)
    for entry in view.missing:
        assert {" + ".join(skipped[rule].missing) for rule in entry.rules} == {entry.needs}
    assert list(view.lacking["rule"]) == rules
    assert len({len(column) for column in view.lacking.values()}) == 1
    columns = [len(entry.rules) for entry in view.missing if entry.why == "column"]
    assert columns == sorted(columns, reverse=True)


@pytest.mark.parametrize(
    ("results", "level"),
    [
        ([result("passed")], "passed"),
        ([result("passed"), result("skipped", code="RLD901", reason="length")], "inconclusive"),
        ([result("found", finding("RLD900", "info", 3))], "info"),
        ([result("found", finding("RLD900", "warning", 3), finding("RLD900", "info", 1))], "warning"),
        ([result("found", finding("RLD900", "error", 3)), result("crashed", code="RLD901")], "error"),
        ([result("passed"), result("crashed", code="RLD901", reason="KeyError")], "crashed"),
        ([result("skipped", missing=("entropy",), reason="column")], "nothing"),
    ],
)
def test_the_level_is_the_worst_that_was_found_and_nothing_judged_is_no_pass(
    stale: Opened, results: list[Result], level: str
) -> None:
    assert verdict(changed(stale, *results)).level == level


def test_the_first_sign_is_of_an_error_or_a_warning(stale: Opened) -> None:
    results = [
        result("found", finding("RLD900", "info", 1)),
        result("found", finding("RLD901", "warning", 7), code="RLD901"),
        result("found", finding("RLD902", "error", None), code="RLD902"),
    ]
    assert verdict(changed(stale, *results)).first == 7


def test_findings_stand_on_one_axis_earliest_first(stale: Opened) -> None:
    view = timeline(stale)
    assert [row.first for row in view.rows] == sorted(row.first for row in view.rows)
    assert {row.code for row in view.rows} == {each.code for each in stale.report.findings}
    assert (view.first, view.last) == (stale.report.run.first_step, stale.report.run.last_step)
    assert len({len(column) for column in view.table.values()}) == 1


def test_what_a_rule_found_several_times_is_one_row_and_rows_are_bounded(stale: Opened) -> None:
    same = result("found", *(finding("RLD900", "info", step) for step in (9, 4, None)), finding("RLD900", "error", 6))
    many = [result("found", finding(f"RLX{n}", "info", n), code=f"RLX{n}") for n in range(10, 60)]
    view = timeline(changed(stale, same, *many))
    assert len(view.rows) == MOST_ROWS
    assert view.left_out == 51 - MOST_ROWS
    row = view.rows[0]
    assert (row.severity, row.first, row.label) == ("error", 4, "rule-RLD900 ×4")  # noqa: RUF001
    assert [span.first for span in row.spans] == [4, 6, 9, None]


def test_a_rule_without_steps_comes_last(stale: Opened) -> None:
    view = timeline(
        changed(stale, result("found", finding("RLD900", "error", None)), result("found", finding("RLD901", "info", 5)))
    )
    assert [row.code for row in view.rows] == ["RLD901", "RLD900"]
    assert view.rows[1].first == math.inf


def test_evidence_leads_to_a_series_only_where_there_is_one(stale: Opened) -> None:
    proofs = (
        Evidence("policy.entropy", 1, 3, 0.5),
        Evidence("policy.entropy (above, share of steps)", 2, 3, 0.5),
        Evidence("no_such_column", None, None, 1.0),
    )
    made = dataclasses.replace(
        finding("RLD900", "error", 1), evidence=proofs, samples=(Sample(3, 17, "u1", "mismatch.abs", 0.4),)
    )
    shown = found(stale, made)
    assert [(proof.metric, proof.step) for proof in shown.proofs] == [("policy.entropy", 1), ("policy.entropy", 2), (None, None)]
    assert [(example.step, example.sequence) for example in shown.examples] == [(3, 17)]
    assert "sequence 17" in shown.examples[0].text


def test_a_series_that_was_never_measured_is_no_evidence_to_look_at(stale: Opened) -> None:
    series = stale.series["policy.entropy"]
    empty = dataclasses.replace(series, values=np.full(len(series), np.nan))
    opened = dataclasses.replace(stale, series={"policy.entropy": empty})
    assert found(opened, finding("RLD900", "error", 1)).proofs[0].metric is None
