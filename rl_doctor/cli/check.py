"""``rl-doctor check``: judge runs, print the reports, and exit with the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from rl_doctor.cli.judging import FailLevel, Format, Lang, States, check_runs

NAME: Final = "check"


def command(  # noqa: PLR0913, PLR0917 - a command: each option is one
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
    first_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Judge the first N steps alone, as if the run had been stopped there.")
    ] = None,
    lang: Annotated[Lang | None, typer.Option(help="Language of the text report (default: RL_DOCTOR_LANG, or English).")] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Keep states: the next check reads what is new.")] = True,  # noqa: FBT002 - a flag
    verify: Annotated[bool, typer.Option("--verify", help="Read everything and compare it with the states kept.")] = False,  # noqa: FBT002 - a flag
    join: Annotated[bool, typer.Option("--join", help="The RUNs are logs of one run: join them by step.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Judge runs and say what is wrong with them.

    Exit code: 2 usage error or unreadable input; else 1 findings at or above --fail-on; else 2 a rule crashed; else 3 nothing
    could be judged; else 0. Of several runs the worst in this order counts.
    """
    raise typer.Exit(
        check_runs(
            runs,
            select or (),
            ignore or (),
            require or (),
            fail_on,
            output_format,
            output or (),
            join,
            first_steps,
            lang,
            States.of(cache=cache, verify=verify),
        )
    )
