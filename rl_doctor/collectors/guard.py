"""Keeps every failure of recording away from the training: the first one is logged in one line and ends the recording."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rl_doctor.errors import DoctorError

logger = logging.getLogger("rl_doctor")


class Guard:
    """Catches what recording raises, logs the first failure, and remembers that recording has ended.

    Attributes:
        path: the run, as named in the log.
        reason: the first failure in one line, or None while all is well.
        failed: set from the first failure on.
        on_failure: called once, after the first failure was logged; what it raises is dropped, for it has been said already
            that recording has ended.
    """

    def __init__(self, path: str) -> None:
        self.path = _printable(path)
        self.reason: str | None = None
        self.failed = threading.Event()
        self.on_failure: Callable[[], None] | None = None
        self._first = threading.Lock()
        self._told: set[str] = set()

    @contextmanager
    def __call__(self, doing: str) -> Iterator[None]:
        """Run a block; an exception in it ends the recording and goes no further.

        Args:
            doing: what the block does, for the log ("write a part").
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a defect of the recorder must not become one of the training
            self.fail(f"could not {doing}: {one_line(error)}")

    def fault(self, what: str, error: BaseException) -> None:
        """Log what a fault of the caller costs, in one line and once for each kind of fault; recording goes on."""
        why = " ".join(str(error).split()) if isinstance(error, DoctorError) else one_line(error)
        self.tell(f"{what}: {_printable(why)}", kind=re.sub(r"[0-9]+", "#", why))

    def tell(self, what: str, kind: str = "") -> bool:
        """Log what the user must know, in one line and once; whether it was new.

        Args:
            what: the line.
            kind: what is to be said once, where that is not this very line.
        """
        key = kind or what
        new = key not in self._told
        if new:
            self._told.add(key)
            logger.warning("rl-doctor, recording %s: %s", self.path, what)
        return new

    def refuse(self, reason: str) -> None:
        """Record nothing at all, for that reason: nothing has begun, so nothing has to be ended."""
        if self._first.acquire(blocking=False):
            self.reason = _printable(reason)
            self.failed.set()
            logger.warning("rl-doctor records nothing (training goes on): %s", self.reason)

    def fail(self, reason: str) -> None:
        """End the recording for that reason; only the first call does anything."""
        # Taken once and never given back, so that no process that was forked meanwhile can wait for it in vain.
        if not self._first.acquire(blocking=False):
            return
        self.reason = _printable(reason)
        logger.error("rl-doctor stopped recording %s (training goes on): %s", self.path, self.reason)
        self.failed.set()
        if self.on_failure is not None:
            try:
                self.on_failure()
            except Exception as error:  # noqa: BLE001 - the disk may be the very thing that failed
                logger.debug("rl-doctor could not mark %s as detached: %s", self.path, error)


def one_line(error: BaseException) -> str:
    """An exception as one line: its message, or its type where the message is empty."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _printable(text: str) -> str:
    """The text with escapes for what no log and no document can hold: bytes of a path that are no text."""
    return text.encode(errors="backslashreplace").decode()
