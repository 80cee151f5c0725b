"""Checks runs, prints their reports, and tells the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rl_doctor.cli.output import colour, complain, emit, width, writable, write_file
from rl_doctor.errors import DoctorError, UsageError

if TYPE_CHECKING:
    from rl_doctor.report.model import FailOn, Report
    from rl_doctor.rules.registry import Rule


class FailLevel(StrEnum):
    """Severity from which findings fail the check."""

    error = "error"
    warning = "warning"
    never = "never"


class Format(StrEnum):
    """Formats of the report."""

    text = "text"
    json = "json"
    junit = "junit"


def check_runs(
    runs: Sequence[Path],
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    require: Sequence[str] = (),
    fail_on: FailLevel = FailLevel.error,
    output_format: Format = Format.text,
    output: Sequence[str] = (),
    join: bool = False,  # noqa: FBT001, FBT002 - a flag of the command
) -> int:
    """Do what ``rl-doctor check`` is asked for; the arguments are its own.

    Returns:
        The exit code.

    Raises:
        UsageError: an argument is wrong.
    """
    from rl_doctor.cli.selecting import choose_rules
    from rl_doctor.report.model import exit_code
    from rl_doctor.report.wording import why_not_judged

    files = [_output(item, runs) for item in output]
    rules, required = choose_rules(select, ignore, require)
    one_each = [(runs[0], runs[1:])] if join else [(path, []) for path in runs]
    reports = [judge(path, rules, required, more) for path, more in one_each]
    emit(render(reports, output_format, fail_on.value, to_terminal=True))
    for report in reports:
        if report.failure is not None:
            complain(report.failure.message)
        elif report.exit_code(fail_on.value) == 3:
            complain(f"{report.run.path}: {why_not_judged(report)}")
    for form, path in files:
        write_file(path, render(reports, form, fail_on.value))
    return exit_code(reports, fail_on.value)


def judge(path: Path, rules: Sequence[Rule], required: tuple[str, ...] = (), more: Sequence[Path] = ()) -> Report:
    """The report of one run; one that cannot be read or judged gives a report with a failure, so that the others are judged.

    ``more`` are further logs of the same run.
    """
    from rl_doctor.api import check, failed, open_run
    from rl_doctor.cli.progress import Progress

    try:
        run = open_run(path, *more)
        with Progress(str(path)) as progress:
            return check(run, rules, required=required, progress=progress)
    except UsageError:
        raise
    except DoctorError as error:
        return failed(path, error)


def render(reports: Sequence[Report], form: Format, fail_on: FailOn, *, to_terminal: bool = False) -> str:
    """The reports in a format, with the width and colours of standard output where they go there."""
    if form is Format.json:
        from rl_doctor.report import json_document

        return json_document.render(reports, fail_on)
    if form is Format.junit:
        from rl_doctor.report import junit

        return junit.render(reports, fail_on)
    from rl_doctor.report import text

    if to_terminal:
        return text.render(reports, fail_on, width=width(sys.stdout), colour=colour(sys.stdout))
    return text.render(reports, fail_on)


def _output(item: str, runs: Sequence[Path]) -> tuple[Format, Path]:
    form, equals, path = item.partition("=")
    if not equals or not path or form not in {known.value for known in Format}:
        raise UsageError(f"--output {item}: write FORMAT=PATH, where FORMAT is one of {', '.join(Format)}")
    return Format(form), writable(Path(path), runs)
