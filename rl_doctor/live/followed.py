"""A run that may still grow, judged again as it does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rl_doctor.api import open_run
from rl_doctor.checking.check import Judged, Measured, judged, measure
from rl_doctor.checking.keeping import Keep
from rl_doctor.checking.reading import Progress
from rl_doctor.errors import ChangedError, DoctorError, InputError, unreadable
from rl_doctor.live.pace import Pace
from rl_doctor.live.sight import ENDED
from rl_doctor.rules.registry import Rule, rules
from rl_doctor.store import layout
from rl_doctor.store.growing import Growing
from rl_doctor.store.run import Run, is_stored
from rl_doctor.views.opened import Opened

_ATTEMPTS: Final = 3
"""How often a run is read whose recorder thins it meanwhile."""
_JUDGING_SHARE: Final = 0.1
"""Share of the time that judging may take; in between the verdict is that of some steps before."""
_CHEAP: Final = 0.3
"""Seconds of the processor that judging may take every time."""
_NEW_SHARE: Final = 0.1
_NEW_STEPS: Final = 16
"""States are written once so many steps came, and that share of all."""


class Followed:
    """A run that may still grow.

    What the rules need is known of all complete steps at each ``refresh``. The verdict, histograms and further series cost more:
    they are as old as ``Opened.judged`` says, and renewed as often as a tenth of the time allows.

    Args:
        path: run folder, Parquet file or log.
        more: further logs of the same run.
        keep: whether states are read and written.
        everything: compute every metric that the run has the columns for, not only those that the rules ask for.
    """

    def __init__(self, path: Path, more: tuple[Path, ...] = (), *, keep: bool = True, everything: bool = True) -> None:
        self.path = path
        self._more = more
        self._keeps = keep
        self._everything = everything
        self._keep: Keep | None = None
        self._pace = Pace(path)
        self._growing: Growing | None = None
        self._opened: Opened | None = None
        self._found: Judged | None = None
        self._stamp: object = None
        self._next_judged = 0.0
        self._saved = 0
        self._problem: DoctorError | None = None
        self.share = 0.0
        """How much of the run was read, from 0 to 1, while it is read for the first time."""

    @property
    def opened(self) -> Opened:
        """What is known of the run as of the last ``refresh``.

        Raises:
            InputError: the run cannot be read.
            NothingToJudgeError: there is nothing in it that could be judged (yet).
        """
        if self._opened is None:
            Followed.refresh(self)  # not that of one who shares it, and holds it while it is opened
        if self._opened is None:
            raise self._problem or InputError(f"{self.path}: cannot be read")
        return self._opened

    def refresh(self) -> bool:
        """Read what was written since; whether there was anything new. Raises as ``opened`` does.

        After an error the next call tries again, and ``opened`` is what it was before.
        """
        try:
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._refreshed()
                except ChangedError:
                    self._forget()
            return self._refreshed()
        except DoctorError as error:
            self._problem = error
            self._forget()
            raise
        except OSError as error:
            self._forget()
            gone = isinstance(error, FileNotFoundError)
            self._problem = InputError(f"{self.path}: no such file or folder") if gone else unreadable(self.path, error)
            raise self._problem from error

    @property
    def stalled(self) -> float | None:
        """Seconds since the run was written to, where that is too long for one that has not ended; else None.

        How long is too long is judged as ``Pace`` does, by how often it was written to before.
        """
        opened = self.opened
        status = opened.run.info.status
        if status in ENDED:
            return None
        return self._pace.quiet(opened.written, time.time(), time.monotonic(), running=status == "running")

    def close(self) -> None:
        """Write the states that were not written yet."""
        if self._keep is not None and self._opened is not None:
            self._keep.save(self._opened.run)

    def _forget(self) -> None:
        """What was read of files is of no use any more."""
        self._growing, self._stamp, self._keep = None, None, None

    def _refreshed(self) -> bool:
        run = self._new_run() or self._unjudged()
        if run is None:
            return False
        self._open(run)
        return True

    def _unjudged(self) -> Run | None:
        """The run as it is known, where steps came since it was judged and it may be judged again; else None."""
        opened = self._opened
        if opened is None or self._found is None or time.monotonic() < self._next_judged:
            return None
        return None if opened.judged == _last(opened.run) else opened.run

    def _new_run(self) -> Run | None:
        """The run where there is anything new."""
        if self._growing is None and (self._more or not self.path.is_dir() or not is_stored(self.path)):
            stamp = self._look()
            if self._opened is not None and stamp == self._stamp:
                return None
            run = open_run(self.path, *self._more)
            self._stamp = stamp
            return run
        if self._growing is None:
            self._growing = self._grow()
        if not self._growing.refresh() and self._opened is not None and self._opened.run.path == self.path:
            return None
        return self._growing.run()

    def _grow(self) -> Growing:
        if not self._keeps:
            return Growing(self.path)
        self._keep = Keep(self.path, complete=True)
        return Growing(self.path, *self._keep.parts)

    def _open(self, run: Run) -> None:
        chosen = tuple(rules().values())
        if self._keeps and run.columns and self._keep is None:
            self._keep = Keep(run.path, complete=True)
        keep = self._keep if run.columns else None
        measured = None if keep is None else self._measured(run, chosen, keep, self._progress)
        last = self._opened.judged if self._opened is not None else None
        if self._found is None or measured is None or run.info.status != "running" or time.monotonic() >= self._next_judged:
            started = time.thread_time()
            self._found, last = judged(run, chosen, (), self._progress, everything=self._everything, keep=keep), _last(run)
            cost = time.thread_time() - started
            self._next_judged = time.monotonic() + (cost / _JUDGING_SHARE if cost > _CHEAP else 0)
            measured = None
        found = self._found
        series, logged = found.series, found.logged
        if measured is not None:
            series, logged = {**series, **measured.analysis.series}, measured.reading.logged
        self._opened = Opened(
            self.path, run, found.report, series, found.missing, found.comparisons, logged, self._written(), found.histograms,
            last,
        )  # fmt: skip
        if self._growing is not None:
            self._growing.keep_known(run)
        if keep is not None:
            self._save(run, keep)

    @property
    def _progress(self) -> Progress | None:
        """Notes how far the first reading is; later ones are short."""
        return self._note_share if self._found is None else None

    def _note_share(self, done: int, total: int) -> None:
        self.share = min(done / total, 1.0) if total else 0.0

    @staticmethod
    def _measured(run: Run, chosen: Sequence[Rule], keep: Keep, progress: Progress | None) -> Measured | None:
        """What the rules need; None where that cannot be had with what is kept, for a defect that ``judged`` gets around."""
        try:
            return measure(run, chosen, progress, everything=False, keep=keep)
        except (DoctorError, OSError, MemoryError):
            raise
        except Exception:  # noqa: BLE001 - see above
            return None

    def _save(self, run: Run, keep: Keep) -> None:
        steps = len(run.digests)
        if run.info.status != "running" or steps - self._saved >= max(_NEW_STEPS, _NEW_SHARE * steps):
            keep.save(run)
            self._saved = steps

    def _written(self) -> float:
        if self._growing is not None:
            return self._growing.written
        return max(path.stat().st_mtime for path in self._files())

    def _look(self) -> object:
        return sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self._files())

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path, *self._more]
        return [path for path in self.path.iterdir() if not path.name.endswith(layout.TEMPORARY_SUFFIX)] or [self.path]


def _last(run: Run) -> int | None:
    return max(run.digests, default=None)
