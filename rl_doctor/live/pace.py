"""How long a run may be quiet: judged by how often it has been written to before."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from rl_doctor.store import layout

LEAST: Final = 60.0
"""Seconds that any run may be quiet."""
UNKNOWN: Final = 600.0
"""Seconds that a run may be quiet whose pace is not known yet."""
BEGINNING: Final = 1800.0
"""Seconds that a run may take to its first step: models are loaded and compiled, and the first responses are sampled."""
_TIMES: Final = 5.0
_TIMES_LONGEST: Final = 2.0
_USUAL: Final = 0.95
_FEWEST: Final = 3
_LATEST: Final = 200


def allowed(intervals: Sequence[float]) -> float:
    """Seconds that a run may be quiet.

    Five times the median interval between writes, or twice what 95% of them stay within, so that an evaluation every tenth step
    is no alarm; at least a minute. One long pause among few intervals does not count.

    Args:
        intervals: seconds between writes, at least one write a step unless steps are shorter than two seconds.
    """
    if len(intervals) < _FEWEST:
        return UNKNOWN
    ordered = sorted(intervals)
    longest = ordered[int(_USUAL * (len(ordered) - 1))]
    return max(LEAST, _TIMES * median(ordered), _TIMES_LONGEST * longest)


def intervals_of(path: Path) -> list[float]:
    """Seconds between the latest writes of a run folder's first writer, by the times of its parts; none for other runs.

    Pauses between sessions are left out: a resume may come hours after.
    """
    if not path.is_dir():
        return []
    names = [part for entry in path.iterdir() if (part := layout.parse_part(entry.name)) and part.table == "sequences"]
    if not names:
        return []
    rank = min(part.rank for part in names)
    latest = sorted(part for part in names if part.rank == rank)[-_LATEST - 1 :]
    times = [(part.session, (path / str(part)).stat().st_mtime) for part in latest]
    pairs = itertools.pairwise(times)
    return [max(0.0, later - earlier) for (one, earlier), (other, later) in pairs if one == other]


class Pace:
    """The pace of one run, as its files tell it and as it was watched.

    Args:
        path: the run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: float | None = None
        self._seen: list[float] = []
        self._since: float | None = None
        self._intervals: tuple[float, list[float]] | None = None

    def quiet(self, written: float, now: float, clock: float, *, running: bool) -> float | None:
        """Seconds since the run was written to, where that is too long; else None.

        Args:
            written: Unix time of the last write, by the clock of the disk.
            now: Unix time.
            clock: time of a clock that nobody sets.
            running: whether the run says that it is running. One that says nothing (a log) is taken to be running only where it
                grew while it was watched.
        """
        if self._written is not None and written != self._written:
            if self._since is not None:
                self._seen.append(clock - self._since)
            self._since = clock
        self._written = written
        if not running and self._since is None:
            return None
        # The clock of a file server may be another: what was watched is counted by our own.
        silence = now - written if self._since is None else clock - self._since
        if silence <= LEAST:
            return None
        if self._intervals is None or self._intervals[0] != written:
            self._intervals = (written, intervals_of(self._path))
        return silence if silence > allowed(self._intervals[1] or self._seen[-_LATEST:]) else None
