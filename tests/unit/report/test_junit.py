"""JUnit XML: readable by others, and never green for what was not judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from junitparser import JUnitXml

from rl_doctor.report import junit
from rl_doctor.report.model import FailOn, Report
from tests.unit.report.examples import BLANK, CLEAN, FULL, MISMATCH, RESULTS, UNREADABLE


def counts(report: Report, fail_on: FailOn = "error") -> tuple[int, int, int, int]:
    parsed = JUnitXml.fromstring(junit.render([report], fail_on))
    assert isinstance(parsed, JUnitXml)
    suite = next(iter(parsed))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (
        parsed.tests,
        parsed.failures,
        parsed.errors,
        parsed.skipped,
    )
    found = [type(result).__name__ for case in suite for result in case.result]
    assert (suite.failures, suite.errors, suite.skipped) == tuple(found.count(name) for name in ("Failure", "Error", "Skipped"))
    return suite.tests, suite.failures, suite.errors, suite.skipped


@pytest.mark.parametrize(
    ("report", "fail_on", "expected"),
    [
        (FULL, "error", (10, 2, 1, 4)),
        (FULL, "warning", (10, 3, 1, 4)),
        (FULL, "never", (10, 0, 1, 4)),
        (CLEAN, "error", (2, 0, 0, 0)),
        (BLANK, "error", (6, 0, 1, 4)),
        (UNREADABLE, "never", (1, 0, 1, 0)),
    ],
)
def test_counts(report: Report, fail_on: FailOn, expected: tuple[int, int, int, int]) -> None:
    assert counts(report, fail_on) == expected


def test_a_failure_tells_the_whole_finding() -> None:
    text = junit.render([FULL])
    for part in (
        MISMATCH.message,
        MISMATCH.cause,
        "mismatch.abs 0.0361 nat, baseline 0.011 nat, limit 0.02 nat",
        MISMATCH.advice[1],
    ):
        assert part.replace("|", "|") in text
    assert '<skipped message="needs ref_logprob"' in text


def test_several_runs_are_several_suites() -> None:
    parsed = JUnitXml.fromstring(junit.render([FULL, CLEAN]))
    assert [suite.name for suite in parsed] == ["runs/grpo-7b-v3", "healthy.parquet"]
    assert parsed.tests == 12


def test_characters_that_xml_cannot_hold_are_escaped() -> None:
    rude = replace(MISMATCH, message="bell \x07, escape \x1b[31m, <tag> & \ud800 \uffff")
    report = replace(FULL, run=replace(FULL.run, path="a\x00b"), results=(replace(RESULTS[3], findings=(rude,)),))
    text = junit.render([report])
    text.encode()
    assert JUnitXml.fromstring(text).failures == 1
    assert "\x1b" not in text
    assert "bell \\x07" in text
