"""Has states kept of a run that is being recorded, by a process of its own and of the lowest priority."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rl_doctor.collectors.gently import started

_FIRST_SECONDS: Final = 10.0
_PAUSE: Final = 10.0
"""How many times as long as it took until the next one: with one of many cores, a small share of the machine."""


class StatesProcess:
    """Starts, after a part was written, the process that keeps states; nobody waits for it, and one runs at a time.

    Computing all metrics takes some ten times what writing the rows takes. In a thread of the training that would hold its
    interpreter; in a process it takes nothing of it but a share of another core.

    Args:
        folder: the run folder.
        tell: logs a line, once.
        command: what to start, before the folder; by default what keeps states.
    """

    def __init__(self, folder: Path, tell: Callable[[str], object], command: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._tell = tell
        self._command = command or (sys.executable, "-m", "rl_doctor.live.keep")
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._next = time.monotonic() + _FIRST_SECONDS
        self._failed = False

    def after_part(self, completes: tuple[int, ...]) -> None:
        """Look whether it is time; raises nothing."""
        if self._failed or not completes or self._running() or time.monotonic() < self._next:
            return
        try:
            self._process = started([*self._command, str(self._folder)])
        except OSError as error:
            self._failed = True
            self._tell(f"states are not kept while recording ({error}): the first check or app reads all")
            return
        self._started = time.monotonic()

    def stop(self) -> None:
        """End what still runs; what it has not written the next check computes."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def _running(self) -> bool:
        if self._process is None:
            return False
        if self._process.poll() is None:
            return True
        self._process = None
        now = time.monotonic()
        self._next = now + _PAUSE * (now - self._started)
        return False
