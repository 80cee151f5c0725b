"""``rl-doctor import``: the log of a trainer or tracker as a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from rl_doctor.cli.output import emit
from rl_doctor.errors import UsageError

NAME: Final = "import"


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="SRC... DEST", help="Logs of one run, then the run folder to make.", show_default=False),
    ],
    trainer: Annotated[str | None, typer.Option(help="Trainer that wrote the log, where it does not tell.")] = None,
    trainer_version: Annotated[
        str | None, typer.Option(help="Its version: the same name may mean another thing by version.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Algorithm, e.g. grpo.")] = None,
) -> None:
    """Make a run folder of a log.

    Several logs of one run are joined by step; where two have the same value, the later one counts. Formats are recognised by
    content.
    """
    from rl_doctor.collectors.importers.opening import import_log
    from rl_doctor.report.wording import count, printable
    from rl_doctor.schema import RunInfo

    if len(paths) < 2:
        raise UsageError("import: name the log and the run folder to make: rl-doctor import SRC... DEST")
    *sources, folder = paths
    told = RunInfo(trainer=trainer, trainer_version=trainer_version, algorithm=algorithm)
    run = import_log(sources, folder, told)
    log, facts = run.metrics(), run.facts
    sizes = f"{count(len(log), 'value')} of {count(len(log.points), 'metric')}, steps {facts.first_step}-{facts.last_step}"
    lines = [f"{folder}: {sizes}", *(f"  {note}" for note in facts.notes)]
    emit("".join(f"{printable(line)}\n" for line in lines))
