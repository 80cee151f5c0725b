"""Channels that are told of onsets: each knows what it was told, is tried again where it fails, and never raises."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from rl_doctor.live.changes import changes
from rl_doctor.live.looking import Look
from rl_doctor.live.memory import Memory
from rl_doctor.live.sending import Told, after, due, messages, settled
from rl_doctor.live.sight import Sight
from rl_doctor.live.words import Message, Words
from rl_doctor.report.model import Severity

SPACING: Final = 30.0
"""Seconds between messages: what comes up meanwhile is told together."""
_RETRY: Final = 10.0
_RETRY_MOST: Final = 300.0


class NotSentError(Exception):
    """A message could not be sent; the text says why, without any secret."""


class Channel(Protocol):
    """Something that messages are sent to."""

    @property
    def name(self) -> str:
        """How it is named to the user, without any secret."""

    @property
    def ident(self) -> str:
        """Identity by which what it was told is kept."""

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            NotSentError: it could not be sent.
        """


class Alerts:
    """Tells one channel of a run.

    Args:
        channel: the channel.
        memory: what was told before.
        words: puts events into words.
        at: the least severity that is told.
        complain: tells the user a line.
        now: tells the Unix time.
    """

    def __init__(
        self,
        channel: Channel,
        memory: Memory,
        words: Words,
        at: Severity,
        complain: Callable[[str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._channel = channel
        self._memory = memory
        self._words = words
        self._at = at
        self._complain = complain
        self._now = now
        self._told: Told | None = None
        self._failures = 0
        self._next = 0.0
        self._complained = ""

    def take(self, look: Look, *, last: bool = False) -> None:
        """Send what is new. A look at which it is too soon, or at which sending fails, is made up for by a later one.

        Args:
            look: the look.
            last: whether no other look follows, so that nothing can wait.
        """
        sight = look.sight
        if sight is None:
            return
        if self._told is not None and not changes(self._told.sight, sight):
            self._told = settled(self._told, sight)
            return
        now = self._now()
        soon = max(self._next, 0.0 if self._told is None else self._told.last + SPACING)
        if last or now >= soon:
            with self._memory.of(sight.key):
                self._tell(sight, now)

    def _tell(self, sight: Sight, now: float) -> None:
        told = self._memory.told(sight.key, self._channel.ident)
        for events, message in messages(due(told, sight, now, self._at), sight, self._words):
            if not self._sent(message, now):
                return
            told = self._kept(after(told, events, sight, now), sight.key)
        self._told = self._kept(settled(after(told, (), sight, now), sight), sight.key)

    def _kept(self, told: Told, run: str) -> Told:
        self._memory.keep(run, self._channel.ident, told)
        if self._memory.problem and self._complained != self._memory.problem:
            self._complained = self._memory.problem
            self._complain(self._memory.problem)
        return told

    def _sent(self, message: Message, now: float) -> bool:
        try:
            self._channel.send(message)
        except NotSentError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - its text may hold the address, which is a secret
            why = type(error).__name__
        else:
            if self._failures:
                self._complain(f"alerts: {self._channel.name} can be reached again")
            self._failures, self._next = 0, 0.0
            return True
        pause = min(_RETRY_MOST, _RETRY * 2**self._failures)
        if not self._failures:
            self._complain(
                f"alerts: could not be sent to {self._channel.name} ({why}); tried again in {pause:.0f} s, then less often"
            )
        self._failures += 1
        self._next = now + pause
        return False
