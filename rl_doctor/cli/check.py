"""``rl-doctor check``: judge runs, print the reports, and exit with the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from rl_doctor.cli.judging import FailLevel, Format, check_runs

NAME: Final = "check"


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
    raise typer.Exit(check_runs(runs, select or (), ignore or (), require or (), fail_on, output_format, output or (), join))
