"""trackio's SQLite files: one row per ``trackio.log``, its metrics as JSON, the runs of a project in one file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rl_doctor.collectors.importers.columns import Columns
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer, part_of
from rl_doctor.collectors.importers.row_steps import COUNTER
from rl_doctor.collectors.importers.rows import assemble_columns
from rl_doctor.collectors.importers.tracker_config import info_of
from rl_doctor.collectors.importers.unfolding import media_note, unfold
from rl_doctor.errors import InputError, NothingToJudgeError

if TYPE_CHECKING:
    import sqlite3

_MAGIC: Final = b"SQLite format 3\0"
_COLUMNS: Final = frozenset({"run_name", "step", "metrics"})
_JOURNAL: Final = 18
"""Byte of the header that is 2 where changes go to a log beside the file first."""
_WAIT: Final = 10.0
"""Seconds to wait for a process that is writing."""
_LISTED: Final = 12
_SHOWN: Final = 120
"""Characters of SQLite's message that are shown: it may quote the whole schema."""


def _recognises(sample: Sample) -> Fit:
    if not sample.head.startswith(_MAGIC):
        return Fit.NO
    import sqlite3

    try:
        with _opened(part_of(sample.path)[0]) as database:
            return Fit.SIGNATURE if _names(database) >= _COLUMNS else Fit.NO
    except (sqlite3.Error, OSError, ValueError):
        # A file whose table cannot be listed is damaged: reading it says so.
        return Fit.SHAPE if b"run_name" in sample.head and b"metrics" in sample.head else Fit.NO


@importer("trackio", "a SQLite file of trackio", _recognises, parts=True)
def read(path: Path) -> Imported:
    """Read a run; one that another process writes at this moment is read as it stands. ``FILE#RUN`` is one of several runs."""
    import sqlite3

    file, wanted = part_of(path)
    try:
        with _opened(file) as database:
            return _read(database, file, wanted)
    except (sqlite3.Error, OSError, UnicodeError) as error:  # also SQLite's own messages may be no text
        reason = " ".join(str(error).split())[:_SHOWN]
        raise InputError(f"{file}: cannot be read as SQLite ({reason}); copy it again, with its -wal file beside it") from error


def _read(database: sqlite3.Connection, file: Path, wanted: str | None) -> Imported:
    key = "run_id" if "run_id" in _names(database) else "run_name"
    run, name = _chosen(database, key, file, wanted)
    columns, media, unreadable = Columns(), set[str](), 0
    for step, text in database.execute(f"SELECT step, metrics FROM metrics WHERE {key} = ? ORDER BY rowid", (run,)):  # noqa: S608
        row = _object(text)
        if row is None:
            unreadable += 1
            continue
        values, others = unfold(row)
        media |= others
        columns.add({COUNTER: step, **values})
    notes = [f"run {name!r}", *([f"{unreadable:,} rows that are no JSON left out"] if unreadable else [])]
    made = assemble_columns(columns, file)
    return Imported(made.log, info_of(_config(database, key, run), str(run)), (*notes, *media_note(media), *made.notes))


def _chosen(database: sqlite3.Connection, key: str, file: Path, wanted: str | None) -> tuple[Any, str]:
    """The id and the name of the run that is wanted, or of the only one."""
    runs = database.execute(
        f"SELECT {key}, max(run_name), count(*), min(step), max(step) FROM metrics GROUP BY {key} ORDER BY max(rowid) DESC"  # noqa: S608
    ).fetchall()
    named = [run for run in runs if wanted is None or wanted in (run[0], run[1])]
    if not runs:
        raise NothingToJudgeError(f"{file}: no run in it has logged anything")
    if len(named) == 1:
        return named[0][0], named[0][1]
    shown = named if named and wanted is not None else runs
    labels = [str(run[0] if shown is named and wanted is not None else run[1]) for run in shown[:_LISTED]]
    listed = "; ".join(
        f"{label} (steps {first}-{last}, {rows:,} rows)" for label, (_, _, rows, first, last) in zip(labels, shown, strict=False)
    )
    more = f"; and {len(shown) - _LISTED:,} older ones" if len(shown) > _LISTED else ""
    what = f"holds {len(runs):,} runs" if wanted is None else f"has {len(named) or 'no'} run{'s' if named else ''} {wanted!r}"
    raise InputError(f"{file}: {what}; give one of them as {file.name}#{labels[0]}, the newest first: {listed}{more}")


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """The file, opened so that nothing is written, neither to it nor beside it."""
    import sqlite3

    with file.open("rb") as opened:
        logged_ahead = opened.read(_JOURNAL + 1)[_JOURNAL:] == b"\x02"
    # With its log (-wal) gone nobody has the file open; to open it as one that may change would make a new log.
    unchanging = logged_ahead and not file.with_name(f"{file.name}-wal").exists()
    address = f"{file.resolve().as_uri()}?mode=ro{'&immutable=1' if unchanging else ''}"
    with closing(sqlite3.connect(address, uri=True, timeout=_WAIT)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        yield database


def _names(database: sqlite3.Connection) -> set[str]:
    return {str(row[1]) for row in database.execute("PRAGMA table_info(metrics)")}


def _config(database: sqlite3.Connection, key: str, run: Any) -> dict[str, Any]:
    import sqlite3

    try:
        found = database.execute(f"SELECT config FROM configs WHERE {key} = ?", (run,)).fetchone()  # noqa: S608
    except sqlite3.Error:  # written by a version that keeps none
        return {}
    config = _object(found[0]) if found else None
    return {name: value for name, value in (config or {}).items() if name not in _OWN}


_OWN: Final = frozenset({"_Username", "_Created", "_Group"})


def _object(text: Any) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
