"""What is known of a run without opening it: when it was written to, whether it still is, and the verdict of the last check."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast, get_args

from rl_doctor import __version__
from rl_doctor.analyzer.kept.cupboard import Cupboard
from rl_doctor.analyzer.kept.places import places
from rl_doctor.analyzer.kept.sheet import Sheet
from rl_doctor.live.pace import Pace
from rl_doctor.report.model import Report
from rl_doctor.rules.registry import rules
from rl_doctor.store import layout
from rl_doctor.views.verdict import Level, level_of

_VERDICT: Final = "verdict"
_MOST_FILES: Final = 200
"""Files of a folder without parts that are looked at."""
_RUNNING: Final = "running"


def written(path: Path) -> float:
    """Unix time at which a run was last written to; 0 for what is not there.

    Of a recording its description and the last part of each rank tell it, however many parts there are; ``FILE#RUN`` is a file's.
    """
    file = path if path.exists() else path.with_name(path.name.partition("#")[0] or path.name)
    return max(map(_changed, _telling(file) if file.is_dir() else [file]), default=0.0)


def alive(path: Path, now: float | None = None) -> bool:
    """Whether a recording says that it goes on, and is written to as often as it was before; a log never says so.

    Args:
        path: the run.
        now: Unix time; by default that of this machine.
    """
    try:
        status = json.loads((path / layout.INFO_NAME).read_text("utf-8")).get("status")
    except (OSError, ValueError, AttributeError):
        return False
    if status != _RUNNING:
        return False
    try:
        return Pace(path).quiet(written(path), time.time() if now is None else now, 0.0, running=True) is None
    except OSError:
        return False


def remember(path: Path, report: Report, stamp: float) -> None:
    """Keep the verdict of all rules on a recording with its states; that of some of the rules alone is none.

    Args:
        path: the run, as it was given.
        report: what was found.
        stamp: ``written`` of the run, from before it was read; 0 keeps nothing.
    """
    judged = {result.code for result in report.results}
    whole = not report.required and judged >= {rule.code for rule in rules().values()}
    if report.failure is None and stamp and whole:
        document = {"level": level_of(report), "written": stamp, "version": __version__}
        Cupboard(places(path)).save(_VERDICT, Sheet(document))


def remembered(path: Path, stamp: float) -> Level | None:
    """The verdict that is kept of a run, where that has not been written to since and this version gave it.

    Args:
        path: the run.
        stamp: ``written`` of it, now.
    """
    found = Cupboard(places(path)).load(_VERDICT, lambda sheet: sheet.document)
    if found is None or (found.get("written"), found.get("version")) != (stamp, __version__):
        return None
    return cast("Level", found["level"]) if found.get("level") in get_args(Level) else None


def _telling(folder: Path) -> Iterator[Path]:
    """The files of a folder whose times tell when it was last written to."""
    try:
        names = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return
    last: dict[tuple[int, str], layout.PartName] = {}
    for name in names:
        if (part := layout.parse_part(name)) is not None:
            place = part.rank, part.table
            last[place] = max(part, last.get(place, part), key=lambda each: (each.session, each.number, each.version))
    if last:
        yield folder / layout.INFO_NAME
        yield from (folder / str(part) for part in last.values())
    else:
        yield from (folder / name for name in names[:_MOST_FILES])


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
