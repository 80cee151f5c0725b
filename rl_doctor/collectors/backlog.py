"""What the trainer has logged and the writer thread has not yet written: bounded in bytes, dropping whole steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import Any

from rl_doctor.collectors.copies import Copies
from rl_doctor.frozen import frozen

_POLL_SECONDS = 0.1


@frozen
class Rollout:
    """One call of ``log_batch``: copies of its columns; ``full_width`` if the token columns cover the prompt too."""

    step: int
    copies: Copies
    nbytes: int
    full_width: bool = False


@frozen
class Logged:
    """One call of ``log_metrics``: snapshots of its values, and what has to be waited for before they are read."""

    step: int
    time: float
    values: dict[str, Any]
    split: str
    source: str
    events: tuple[Any, ...] = ()


@frozen
class StepEnd:
    """This rank has logged all of the step."""

    step: int


@frozen
class StepDropped:
    """The step did not fit: what the writer holds of it goes too."""

    step: int


@frozen
class Again:
    """The training goes back to the step: what was logged of it and of later ones gives way to what comes now."""

    step: int


@frozen
class LogprobDtype:
    """Type of the trainer's log-probabilities, known once the first of them were logged."""

    dtype: str


@frozen
class UnknownColumn:
    """Something was logged under a name that is no column, and dropped."""

    name: str


@frozen
class Flush:
    """Everything before this is to be on disk when ``done`` is set."""

    done: threading.Event = field(default_factory=threading.Event)


@frozen
class Stop:
    """Nothing comes after this; ``status`` is the run's final one, None leaves it as it is."""

    status: str | None = None


Message = Rollout | Logged | StepEnd | StepDropped | Again | LogprobDtype | UnknownColumn | Flush | Stop


class Backlog:
    """A queue from the trainer to the writer thread.

    Args:
        limit: bytes of snapshots that wait here, and of rows that the writer thread holds, at most; a single larger one is taken
            when there is nothing else.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._nbytes = 0
        self._held = 0
        self._waiting = False
        self._messages: deque[Message] = deque()
        self._changed = threading.Condition()

    def fits(self, nbytes: int) -> bool:
        """Whether a message of that size can be put now."""
        with self._changed:
            used = self._nbytes + self._held
            return used == 0 or used + nbytes <= self._limit

    def wait_until_fits(self, nbytes: int, alive: Callable[[], bool]) -> None:
        """Wait for room, as long as ``alive()``."""
        while alive() and not self.fits(nbytes):
            with self._changed:
                self._waiting = True
                self._changed.notify_all()
                self._changed.wait(_POLL_SECONDS)
        self._waiting = False

    def pressed(self) -> bool:
        """Whether somebody waits for room that only the writer thread can make, by writing what it holds."""
        return self._waiting and self._held > 0 and not self._messages

    def put(self, message: Message, *, wake: bool = True) -> None:
        """Append a message.

        Args:
            message: the message.
            wake: whether to wake the writer thread, which then wants the interpreter; not where another message follows at once.
        """
        with self._changed:
            self._messages.append(message)
            self._nbytes += _size(message)
            if wake:
                self._changed.notify_all()

    def hold(self, nbytes: int) -> None:
        """Say how many bytes the writer thread holds."""
        with self._changed:
            self._held = nbytes
            self._changed.notify_all()

    def drop(self, step: int) -> None:
        """Forget the step's rollouts, and tell the writer to."""
        with self._changed:
            kept = [m for m in self._messages if not (isinstance(m, Rollout) and m.step == step)]
            self._messages = deque((*kept, StepDropped(step)))
            self._nbytes = sum(map(_size, kept))
            self._changed.notify_all()

    def get(self, timeout: float | None) -> Message | None:
        """Take the next message; None when ``timeout`` seconds have passed without one, or somebody waits for room.

        Its bytes count as held by whoever takes it, until that says otherwise.
        """
        with self._changed:
            if not self._messages:
                self._changed.wait_for(lambda: bool(self._messages) or self.pressed(), timeout)
            if not self._messages:
                return None
            message = self._messages.popleft()
            self._nbytes -= _size(message)
            self._held += _size(message)
            return message

    def clear(self) -> None:
        """Forget everything; whoever waits for a flush stops waiting."""
        with self._changed:
            for message in self._messages:
                if isinstance(message, Flush):
                    message.done.set()
            self._messages.clear()
            self._nbytes = self._held = 0
            self._changed.notify_all()


def _size(message: Message) -> int:
    """Bytes that count towards the limit: those of snapshots."""
    return message.nbytes if isinstance(message, Rollout) else 0
