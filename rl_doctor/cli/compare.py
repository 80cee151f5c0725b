"""``rl-doctor compare``: where runs part, and what is configured otherwise."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from rl_doctor.cli.output import emit, width
from rl_doctor.errors import UsageError

NAME: Final = "compare"
_LEAST: Final = 2


class Format(StrEnum):
    """Formats of the comparison."""

    text = "text"
    json = "json"


class Alignment(StrEnum):
    """What runs are aligned by."""

    step = "step"
    tokens = "tokens"
    time = "time"


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run folders, Parquet files, or logs.")],
    by: Annotated[Alignment, typer.Option(help="What the runs are aligned by.")] = Alignment.step,
    output_format: Annotated[Format, typer.Option(help="What to print.")] = Format.text,
) -> None:
    """Hold a run against others: where their metrics part, what is configured otherwise, what only some of them show.

    The exit code is 0 whatever differs, and 2 where a run cannot be read.
    """
    from rl_doctor.cli import comparison
    from rl_doctor.live.followed import Followed
    from rl_doctor.live.listing import recorded_runs
    from rl_doctor.views.compare import compare

    named = recorded_runs(runs)
    if len(named) < _LEAST <= len(runs):
        raise UsageError(f"compare: these are one and the same run, {next(iter(named))}; name another one beside it")
    if len(named) < _LEAST:
        raise UsageError("compare: name two RUNs or more, or a folder that holds them")
    opened = {name: Followed(path).opened for name, path in named.items()}
    found = compare(opened, by.value)
    if found.by != by.value:
        raise UsageError(f"compare: not all runs tell {by.value}; align them by {' or '.join(found.alignments)}")
    told = comparison.to_json(found, opened) if output_format is Format.json else None
    emit(comparison.to_text(found, opened, width(sys.stdout)) if told is None else told)
