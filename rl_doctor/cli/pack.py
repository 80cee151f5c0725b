"""``rl-doctor pack``: a run as one Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from rl_doctor.cli.output import emit, writable
from rl_doctor.errors import UsageError

NAME: Final = "pack"


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or Parquet file.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet file to write.")],
) -> None:
    """Write a run as one Parquet file, for exchange and CI.

    It has one row per sequence and update pass.
    """
    from rl_doctor.api import open_run
    from rl_doctor.report.wording import count, printable
    from rl_doctor.store.pack import pack

    opened = open_run(run)
    try:
        pack(opened, writable(file, [run]))
    except OSError as error:
        raise UsageError(f"{file}: cannot write: {error.strerror or error}") from error
    if not file.is_file():  # a pipe or a device has no size, and standard output may be that pipe
        return
    facts = opened.facts
    size = file.stat().st_size / 1e6
    emit(f"{printable(str(file))}: {count(facts.sequences, 'sequence')}, {count(facts.tokens, 'token')}, {size:.2f} MB\n")
