"""The followed runs: one for each path, shared by all who look at it."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

import streamlit as st

from rl_doctor.live.followed import Followed
from rl_doctor.live.known import remember, written
from rl_doctor.views.opened import Opened

_LEAST_SECONDS: Final = 1.0
"""However many look at a run, its files are looked at no more often than this."""
_LEAST_SHARE: Final = 1.0
"""Nor more often than this times as long as looking took."""
_LOOK_SECONDS: Final = 0.3
"""How often the share that was read is told."""


class Shared(Followed):
    """A followed run that several sessions look at: read by one of them at a time, for all."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock = threading.Lock()
        self._next = 0.0
        self.known: Opened | None = None
        """What was last read; None if nothing could be."""
        self._opening = threading.Lock()
        self._opener: threading.Thread | None = None

    def open(self) -> Iterator[float]:
        """Open the run in a thread of its own, which reads on where whoever waits leaves.

        Yields:
            How much of it was read, from 0 to 1, until that is done.
        """
        with self._opening:
            if self._opener is None or not self._opener.is_alive():
                self._opener = threading.Thread(target=self._open_quietly, daemon=True)
                self._opener.start()
            opener = self._opener
        while opener.is_alive():
            yield self.share
            opener.join(_LOOK_SECONDS)

    def _open_quietly(self) -> None:
        with suppress(Exception):  # whoever asks for what was opened is told
            _ = self.opened

    def close(self) -> None:
        """As of ``Followed``; nothing where it is being read."""
        if self._lock.acquire(blocking=False):
            try:
                with suppress(Exception):  # what is not kept is computed again
                    super().close()
            finally:
                self._lock.release()

    @property
    def opened(self) -> Opened:
        """As of ``Followed``. Who comes while it is read the first time waits; later on the state before is handed out."""
        if self.known is None:
            with self._lock:
                if self.known is None:
                    stamp = written(self.path)
                    self.known = super().opened
                    self._remember(stamp)
        return self.known

    def refresh(self) -> bool:
        """As of ``Followed``; False at once where another session is reading, or has just looked."""
        if time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return False
        begun = time.monotonic()
        try:
            stamp = written(self.path)
            found = super().refresh()
            self.known = super().opened
            if found:
                self._remember(stamp)
            return found
        finally:
            took = time.monotonic() - begun
            self._next = begun + took + max(_LEAST_SECONDS, _LEAST_SHARE * took)
            self._lock.release()

    def _remember(self, stamp: float) -> None:
        """Keep the verdict for the list of runs of the next one who looks; that of a run that goes on is old at once."""
        if self.known is not None and self.known.run.columns and self.known.run.info.status != "running":
            remember(self.path, self.known.report, stamp)


_FOLLOWED: Final[WeakValueDictionary[str, Shared]] = WeakValueDictionary()


@st.cache_resource(show_spinner=False, max_entries=64)
def following(path: str) -> Shared:
    """The followed run of a path; what was computed of it is kept when the app ends."""
    found = Shared(Path(path))
    atexit.register(found.close)
    _FOLLOWED[path] = found
    return found


def followed_before(path: str) -> Shared | None:
    """The followed run of a path, if anybody looks at it."""
    return _FOLLOWED.get(path)
