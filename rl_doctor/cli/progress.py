"""A progress bar on standard error, for work over a second that a person waits for."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from rl_doctor.cli.output import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

PATIENCE: Final = 1.0
"""Seconds before the bar appears."""


class Progress:
    """Called with what is done and the total; draws nothing unless it takes long and standard error is a terminal.

    Args:
        label: what is being read.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Tell how far the work is."""
        if self._bar is None:
            if time.monotonic() - self._started < PATIENCE or not is_terminal(sys.stderr):
                return
            self._start()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    def _start(self) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress as Bar

        self._bar = Bar(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(escape(self._label), total=None)
        self._bar.start()
