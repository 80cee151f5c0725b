"""``rl-doctor import``: the log of a trainer or tracker as a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from rl_doctor.cli.output import emit
from rl_doctor.errors import UsageError, suggestion

NAME: Final = "import"


def command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="SRC... DEST", help="Logs of one run, then the run folder to make.", show_default=False),
    ] = None,
    trainer: Annotated[str | None, typer.Option(help="Trainer that wrote the log, where it does not tell.")] = None,
    trainer_version: Annotated[
        str | None, typer.Option(help="Its version: the same name may mean another thing by version.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Algorithm, e.g. grpo.")] = None,
    *,
    formats: Annotated[bool, typer.Option("--list", help="List the formats that are read, and import nothing.")] = False,
) -> None:
    """Make a run folder of a log.

    Several logs of one run are joined by step; where two have the same value, the later one counts. Formats are recognised by
    content.
    """
    from rl_doctor.analyzer.dialects.recognise import find_trainer, kinds_of
    from rl_doctor.analyzer.dialects.registry import Bounds, bounds_of, trainers
    from rl_doctor.collectors.importers.opening import import_log
    from rl_doctor.report.wording import count, printable
    from rl_doctor.schema import RunInfo

    if formats:
        _list()
        return
    if paths is None or len(paths) < 2:
        raise UsageError("import: name the log and the run folder to make: rl-doctor import SRC... DEST")
    if trainer_version is not None and bounds_of(trainer_version) == Bounds():
        raise UsageError(f"import: --trainer-version {trainer_version!r} is no version; write it as 0.24 or 0.24.1")
    *sources, folder = paths
    told = RunInfo(trainer=trainer, trainer_version=trainer_version, algorithm=algorithm)
    run = import_log(sources, folder, told, kinds_of)
    log, facts = run.metrics(), run.facts
    sizes = f"{count(len(log), 'value')} of {count(len(log.points), 'metric')}, steps {facts.first_step}-{facts.last_step}"
    lines = [f"{folder}: {sizes}", *(f"  {note}" for note in facts.notes)]
    if trainer is not None and find_trainer(trainer) is None:
        meant = suggestion(trainer, trainers())
        lines.append(f"  trainer {trainer!r} has no names of its own here: read as any trainer's{meant}")
    emit("".join(f"{printable(line)}\n" for line in lines))


def _list() -> None:
    """Every format: its name, and what the report calls it."""
    from rl_doctor.collectors.importers.registry import importers

    known = sorted(importers().values(), key=lambda one: one.name)
    longest = max(len(one.name) for one in known)
    emit("".join(f"{one.name:<{longest}}  {one.label}\n" for one in known))
