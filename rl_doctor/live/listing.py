"""The runs that were asked for: paths as given, or what lies in a folder of runs, looked at anew while it fills."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from rl_doctor.api import open_run
from rl_doctor.errors import DoctorError
from rl_doctor.live.known import alive, remembered, written
from rl_doctor.store.run import is_stored

_MOST: Final = 500
"""Entries of a folder that are looked at."""
_LEAST_SECONDS: Final = 0.5
"""Folders are looked at no more often than this."""
_RECORD: Final = "record"
_NONE: Final = ""
_TABLES: Final = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".log", ".txt", ".out"})
"""Endings of files of which it is enough that they hold records: of others something has to speak for a trainer or tracker."""
_SMALL_BYTES: Final = 1 << 22
"""Logs up to this size are read to see whether they can be."""


class Listing:
    """The runs of some paths, by the names that the reader sees.

    Args:
        paths: runs, and folders that are no runs themselves; these stand for the recorded runs and logs in them.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = tuple(paths)
        self.left_out = 0
        """Number of entries of the folders that are no runs, as of the last look."""
        self._known: dict[str, Path] = {}
        self._runs: dict[str, Path] = {}
        self._kinds: dict[Path, tuple[object, str]] = {}
        self._times: dict[Path, tuple[int, float]] = {}
        self._next = 0.0
        self._lock = Lock()

    def runs(self) -> Mapping[str, Path]:
        """Name of each run that is there now, unique and as short as that allows -> its path.

        They are in the order given; those of a folder newest first, by when they were last written to.
        """
        with self._lock:
            if time.monotonic() >= self._next:
                self._look()
                self._next = time.monotonic() + _LEAST_SECONDS
            return dict(self._runs)

    def path(self, name: str) -> Path | None:
        """The path of a run that is there or was; None if there was none of that name."""
        return self.runs().get(name) or self._known.get(name)

    @property
    def first(self) -> str | None:
        """The run to open where none is asked for; None without any.

        It is the first one where that was given itself. Of a folder it is the newest that is being recorded, else the newest of
        those whose verdict is known to be worst, if that is an error or a warning, else the newest.
        """
        runs = self.runs()
        names = list(runs)
        if not names or runs[names[0]] in self.paths:
            return names[0] if names else None
        if (living := next((name for name in names if alive(runs[name])), None)) is not None:
            return living
        levels = {name: remembered(path, written(path)) for name, path in runs.items()}
        return next((name for level in ("error", "warning") for name in names if levels[name] == level), names[0])

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in which further runs may appear."""
        return tuple(path for path in self.paths if path.is_dir() and not _stored(path))

    def unreadable(self) -> Iterator[tuple[Path, DoctorError]]:
        """The given files that cannot be read as they are, each with the reason; long logs are only recognised."""
        for path in self.paths:
            try:
                if path.is_dir() or (path.is_file() and not _stored(path) and path.stat().st_size > _SMALL_BYTES):
                    continue
                open_run(path)
            except DoctorError as error:
                yield path, error
            except OSError:
                continue

    def _look(self) -> None:
        self.left_out = 0
        self._runs = _named(run for path in self.paths for run in self._within(path))
        self._known |= self._runs

    def _within(self, path: Path) -> list[Path]:
        """The runs that a path stands for."""
        try:
            if not path.is_dir() or _stored(path):
                return [path]
            inside = _inside(path)
        except OSError:
            return [path]
        kinds = {entry: kind for entry in inside if (kind := self._kind(entry))}
        told = list(kinds.values())
        if _RECORD not in told and len(set(told)) == len(told) and self._kind(path):
            return [path]  # the logs of one run, one of each kind
        self.left_out += len(inside) - len(kinds)
        return sorted(kinds, key=self._written, reverse=True)

    def _written(self, path: Path) -> float:
        """As of ``known.written``; a recording's folder is looked through only where its own time has changed."""
        seen = path.stat().st_mtime_ns if path.exists() else 0
        before = self._times.get(path)
        if before is None or before[0] != seen or self._kinds.get(path, (None, _NONE))[1] != _RECORD:
            before = self._times[path] = seen, written(path)
        return before[1]

    def _kind(self, path: Path) -> str:
        """What a path is: a recorded run, a log (the name of its importer), or "" for neither; only what changed is read."""
        try:
            seen = path.stat()
        except OSError:
            return _NONE
        stamp = seen.st_mtime_ns, seen.st_size
        before = self._kinds.get(path)
        if before is not None and (before[0] == stamp or before[1] not in {_NONE, _RECORD}):
            return before[1]
        kind = _RECORD if _stored(path) else _log(path)
        self._kinds[path] = stamp, kind
        return kind


def recorded_runs(paths: Iterable[Path]) -> dict[str, Path]:
    """The paths by name as ``Listing`` names them; folders that are no runs stand for the recorded runs in them, not for logs."""
    return _named(run for path in paths for run in _recorded(path))


def _recorded(path: Path) -> list[Path]:
    try:
        inside = _inside(path) if path.is_dir() and not is_stored(path) else []
    except OSError:
        inside = []
    return [entry for entry in inside if _stored(entry)] or [path]


def _inside(folder: Path) -> list[Path]:
    """The entries of a folder that are looked at."""
    return [entry for entry in sorted(folder.iterdir())[:_MOST] if not entry.name.startswith(".")]


def _named(runs: Iterable[Path]) -> dict[str, Path]:
    """Each run once, by a name that is unique and as short as that allows."""
    found = list(dict.fromkeys(runs))
    counted = Counter(run.name for run in found)
    return {run.name if counted[run.name] == 1 else str(run): run for run in found}


def _stored(path: Path) -> bool:
    try:
        return is_stored(path)
    except OSError:
        return False


def _log(path: Path) -> str:
    """The importer of a log, judged by its beginning; "" if it is none."""
    from rl_doctor.collectors.importers.registry import Fit, find, sample

    try:
        seen = replace(sample(path), tail=b"")
        found = find(seen)
        sure = found is not None and (seen.folder or bool(_TABLES & set(path.suffixes)) or found.recognises(seen) > Fit.CONTAINER)
    except (DoctorError, OSError):
        return _NONE
    return found.name if found is not None and sure else _NONE
