"""``rl-doctor check``: judge runs, print the reports, and exit with the verdict."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rl_doctor.cli.output import colour, complain, emit, width, writable, write_file
from rl_doctor.errors import DoctorError, UsageError

if TYPE_CHECKING:
    from rl_doctor.report.model import FailOn, Report
    from rl_doctor.rules.registry import Rule

NAME: Final = "check"


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


def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, Parquet files, or logs of trainers and trackers.")
    ],
    select: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Run only these: codes, prefixes such as RLD1, names.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Leave these out: codes, prefixes or names.")] = None,
    require: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Exit with 3 if this rule is skipped.")] = None,
    fail_on: Annotated[FailLevel, typer.Option(help="Severity from which findings exit with 1.")] = FailLevel.error,
    output_format: Annotated[Format, typer.Option(help="What to print.")] = Format.text,
    output: Annotated[
        list[str] | None, typer.Option(metavar="FORMAT=PATH", help="Also write the report to a file; may be repeated.")
    ] = None,
    join: Annotated[bool, typer.Option("--join", help="The RUNs are logs of one run: join them by step.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Judge runs and say what is wrong with them.

    Exit code: 2 usage error or unreadable input; else 1 findings at or above --fail-on; else 2 a rule crashed; else 3 nothing
    could be judged; else 0. Of several runs the worst in this order counts.
    """
    from rl_doctor.cli.selecting import choose_rules
    from rl_doctor.report.model import exit_code
    from rl_doctor.report.wording import why_not_judged

    files = [_output(item, runs) for item in output or ()]
    rules, required = choose_rules(select or (), ignore or (), require or ())
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
    raise typer.Exit(exit_code(reports, fail_on.value))


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
