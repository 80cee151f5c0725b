"""Where a recording stands: the step that is logged, those that ended, were dropped, or come again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rl_doctor.collectors.backlog import Again, Backlog, StepEnd


class Progress:
    """The steps of a recording, as the training logs them. Used by the training's thread alone.

    Attributes:
        dropped: number of steps that were dropped.

    Args:
        backlog: where the writer learns of it.
        tell: logs a line, once.
    """

    def __init__(self, backlog: Backlog, tell: Callable[[str], object]) -> None:
        self.dropped = 0
        self._backlog = backlog
        self._tell = tell
        self._step: int | None = None
        self._last: int | None = None
        self._ended: int | None = None
        self._dropping: int | None = None
        self._went_back = False
        self._caller: int | None = None

    def advance(self, step: int) -> bool:
        """A batch of a step comes: a later one ends the step before, an earlier one begins again. Whether to record it."""
        if self._caller is None:
            self._caller = threading.get_ident()
        if self._last is not None and step < self._last:
            self._say_back(step, self._last)
            self._went_back = True
            self.go_back(step)
        self._last = step
        if self._step is not None and step > self._step:
            self.end(self._step, wake=False)
        self._step = step
        return self._dropping != step

    def go_back(self, step: int) -> None:
        """What was logged of this step and of later ones is void."""
        self._step = self._ended = self._last = None
        if self._dropping is not None and self._dropping > step:
            self._dropping = None
        self._backlog.put(Again(step))

    def end(self, step: int, *, wake: bool = True) -> None:
        """All of a step was logged."""
        if self._step is None and self._ended is not None and step <= self._ended:
            return
        self._ended = step
        if self._step is not None and self._step <= step:
            self._step = None
        if self._dropping != step:
            self._backlog.put(StepEnd(step), wake=wake)

    def end_current(self) -> None:
        """All of the step that is being logged was logged, if there is one."""
        if self._step is not None:
            self.end(self._step)

    def drop(self, step: int) -> None:
        """A step cannot be recorded: nothing of it is."""
        self._backlog.drop(step)
        self._dropping = step
        self.dropped += 1

    def _say_back(self, step: int, last: int) -> None:
        if self._caller != threading.get_ident():
            self._tell(
                f"step {step} after step {last} comes from another thread: log from one thread only, or the threads "
                "replace what the others logged of the same steps"
            )
        elif not self._went_back:
            self._tell(
                f"step {step} after step {last} is taken as the training going back: what is logged from now on "
                "replaces what was logged of the same steps before; let step count over the whole training"
            )
