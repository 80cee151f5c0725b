"""Watches a run until it ends: one look after the other, each handed to all that show or tell it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rl_doctor.live.looking import Look, Looker

_SETTLE: Final = 1.0
"""Seconds after which a run that has ended is looked at once more."""


class Sink(Protocol):
    """Something that looks are handed to."""

    def take(self, look: Look, *, last: bool = False) -> None:
        """Show or tell what is new.

        Args:
            look: the look.
            last: whether no other one follows.
        """


class Guarded:
    """A sink that cannot end the watch: what goes wrong in it is told once, in one line.

    Args:
        sink: the sink.
        name: how it is named to the user.
        complain: tells the user a line.
    """

    def __init__(self, sink: Sink, name: str, complain: Callable[[str], None]) -> None:
        self._sink = sink
        self._name = name
        self._complain = complain
        self._told = False

    def take(self, look: Look, *, last: bool = False) -> None:
        """As of ``Sink``."""
        try:
            self._sink.take(look, last=last)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is watched on
            if not self._told:
                self._told = True
                self._complain(f"{self._name}: {type(error).__name__}: {' '.join(str(error).split())[:200]} (the watch goes on)")


def watch(
    looker: Looker,
    sinks: Sequence[Sink],
    interval: float,
    *,
    fail_fast: bool = False,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """Look until the run has ended.

    Args:
        looker: looks at the run.
        sinks: are handed each look, in this order.
        interval: seconds between looks.
        fail_fast: end at the first error.
        sleep: waits.

    Returns:
        The exit code: that of ``check``; 1 where an error ended the watch.
    """
    while True:
        look = looker.look()
        failed = fail_fast and look.sight is not None and look.sight.worst == "error"
        for sink in sinks:
            sink.take(look, last=look.over or failed)
        if failed:
            return 1
        if look.over:
            return look.exit_code
        sleep(min(interval, _SETTLE) if look.closing else interval)
