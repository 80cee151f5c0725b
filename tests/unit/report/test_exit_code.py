"""The exit code of a report and of several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl_doctor.report.model import FailOn, Failure, Report, Result, exit_code
from tests.unit.report.examples import BLANK, CLEAN, FULL, GROUPS, MISMATCH, UNREADABLE

PASSED = Result("RLD601", "grad-vanished", "passed")
FILES_PASSED = Result("RLD003", "duplicate-rows", "passed", measures=False)
FILES_FOUND = Result("RLD003", "duplicate-rows", "found", findings=(GROUPS,), measures=False)
SKIPPED = Result("RLD102", "rollout-train-mismatch", "skipped", missing=("rollout_logprob",), reason="column")
CRASHED = Result("RLD101", "stale-old-logprob", "crashed", reason="ValueError")
WARNED = Result("RLD401", "zero-variance-groups", "found", findings=(GROUPS,))
FAILED = Result("RLD102", "rollout-train-mismatch", "found", findings=(MISMATCH,))
NOTHING_TO_JUDGE = replace(UNREADABLE, failure=Failure("nan.parquet: only NaN", 3))


def report(*results: Result, required: tuple[str, ...] = ()) -> Report:
    return replace(CLEAN, results=results, required=required)


@pytest.mark.parametrize(
    ("results", "fail_on", "code"),
    [
        ((PASSED,), "error", 0),
        ((PASSED, SKIPPED), "error", 0),
        ((WARNED,), "error", 0),
        ((WARNED,), "warning", 1),
        ((FAILED,), "error", 1),
        ((FAILED,), "never", 0),
        ((FAILED, CRASHED), "error", 1),
        ((FAILED, CRASHED), "never", 2),
        ((WARNED, CRASHED), "error", 2),
        ((SKIPPED, CRASHED), "error", 2),
        ((SKIPPED,), "error", 3),
        ((SKIPPED,), "never", 3),
        ((), "error", 3),
        ((FILES_PASSED, SKIPPED), "error", 3),
        ((FILES_FOUND, SKIPPED), "error", 3),
        ((FILES_FOUND, SKIPPED), "warning", 1),
        ((FILES_PASSED, PASSED), "error", 0),
        ((FILES_PASSED,), "error", 0),
    ],
)
def test_one_run(results: tuple[Result, ...], fail_on: FailOn, code: int) -> None:
    assert report(*results).exit_code(fail_on) == code


@pytest.mark.parametrize("key", ["RLD102", "rollout-train-mismatch"])
def test_a_required_rule_that_was_skipped_or_not_run_is_no_pass(key: str) -> None:
    assert report(PASSED, SKIPPED, required=(key,)).exit_code() == 3
    assert report(PASSED, required=(key,)).exit_code() == 3
    assert report(PASSED, replace(FAILED, findings=(GROUPS,)), required=(key,)).exit_code() == 0


def test_a_failure_is_the_exit_code_whatever_fails_the_check() -> None:
    assert UNREADABLE.exit_code("never") == 2
    assert NOTHING_TO_JUDGE.exit_code("never") == 3


@pytest.mark.parametrize(
    ("reports", "code"),
    [
        ((CLEAN, CLEAN), 0),
        ((CLEAN, BLANK), 3),
        ((CLEAN, NOTHING_TO_JUDGE), 3),
        ((BLANK, report(PASSED, CRASHED)), 2),
        ((report(PASSED, CRASHED), FULL), 1),
        ((FULL, BLANK), 1),
        ((FULL, UNREADABLE), 2),
        ((), 0),
    ],
)
def test_the_worst_of_several_runs_in_the_order_2_1_2_3_0(reports: tuple[Report, ...], code: int) -> None:
    assert exit_code(reports) == code
    assert exit_code(reversed(reports)) == code
