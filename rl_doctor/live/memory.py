"""What channels were told of a run, kept on disk so that a watch that is started again does not tell it again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rl_doctor.analyzer.kept.places import cache
from rl_doctor.live.sending import Told
from rl_doctor.store.layout import make_folder, write_json_durably


class Memory:
    """What each channel was told of each run. Where the disk cannot be written, it lasts as long as the process.

    Args:
        folder: where it is kept; by default in the user's cache, for each is told for himself.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = cache() / "watch" if folder is None else folder
        self._held: dict[tuple[str, str], Told] = {}
        self.problem = ""

    @contextmanager
    def of(self, run: str) -> Iterator[None]:
        """Keeps other processes from telling of this run meanwhile, where the system can."""
        lock = self._lock(run)
        try:
            yield
        finally:
            if lock is not None:
                lock.close()

    def _lock(self, run: str) -> IO[str] | None:
        try:
            import fcntl

            make_folder(self._folder)
            lock = self._path(run).with_suffix(".lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except (ImportError, OSError):
            return None
        return lock

    def told(self, run: str, channel: str) -> Told | None:
        """What a channel was told of a run, or None."""
        if (run, channel) in self._held and self.problem:
            return self._held[run, channel]
        try:
            return Told.from_json(self._read(run)[channel])
        except (KeyError, TypeError, AttributeError):
            return self._held.get((run, channel))

    def keep(self, run: str, channel: str, told: Told) -> None:
        """Keep what a channel was told."""
        self._held[run, channel] = told
        try:
            make_folder(self._folder)
            write_json_durably(self._path(run), {**self._read(run), channel: told.to_json()})
            self.problem = ""
        except OSError as error:
            self.problem = (
                f"{self._folder}: cannot keep what was sent ({error.strerror or error}): a watch started again sends it again"
            )

    def _path(self, run: str) -> Path:
        return self._folder / f"{hashlib.sha256(run.encode(errors='replace')).hexdigest()[:24]}.json"

    def _read(self, run: str) -> Mapping[str, Any]:
        try:
            found = json.loads(self._path(run).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
