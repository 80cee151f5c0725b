"""Stops a wrong job after its first steps: they are checked once, in another process, while the training goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.check_process import CheckProcess
from rl_doctor.collectors.guard import one_line
from rl_doctor.collectors.written import has_written
from rl_doctor.store import layout
from rl_doctor.store.members import STOP_MEMBER
from rl_doctor.store.writer import RunWriter

POLL_SECONDS: Final = 0.2
_OTHERS_SECONDS: Final = 120.0
_NICENESS: Final = 10
"""It takes a second or two, and that must come to pass in the first steps of a busy machine."""
_FOUND: Final = 1
_NOTHING_JUDGED: Final = 3


def _gently(arguments: Sequence[str]) -> CheckProcess:
    return CheckProcess(arguments, _NICENESS)


class Halt:
    """Whether the training should stop, as the check of its first steps says.

    All but ``reason`` and ``decided`` belongs to the writer thread, which is the only one that works here. It starts the check
    when all writers have written the first steps, looks at it now and then, and never waits for it.

    Attributes:
        reason: why the training should stop, with the cause; None while that is not known, and where all is well.
        decided: whether the check is over, whatever it said.
        command: what shows more.

    Args:
        codes: codes or names of the rules of which an error stops the training.
        after: number of steps that are checked.
        tell: logs a line, once.
        check: starts the check, given its arguments.
    """

    def __init__(
        self,
        codes: Sequence[str],
        after: int,
        tell: Callable[[str], object],
        check: Callable[[Sequence[str]], CheckProcess] = _gently,
    ) -> None:
        self.reason: str | None = None
        self.decided = False
        self.command = ""
        self._codes = tuple(codes)
        self._after = after
        self._tell = tell
        self._check = check
        self._writer: RunWriter | None = None
        self._deciding = False
        self._steps: set[int] = set()
        self._last: int | None = None
        self._process: CheckProcess | None = None
        self._deadline = 0.0
        self._next = 0.0

    def begin(self, writer: RunWriter) -> None:
        """The run was opened. A run that goes on is not judged by the steps of an earlier session."""
        self._writer = writer
        self._deciding = writer.rank == 0
        self.command = f"rl-doctor check {writer.path} --first-steps {self._after}"
        if self._deciding and writer.session > 1:
            self._give_up("the run has steps of an earlier session, and its first steps are not judged again")

    def completed(self, step: int) -> bool:
        """This writer has completed a step; whether it should be written at once."""
        if self._last is not None or self.decided:
            return False
        self._steps.add(step)
        if len(self._steps) < self._after:
            return False
        self._last = step
        self._deadline = time.monotonic() + _OTHERS_SECONDS
        return True

    @property
    def pending(self) -> bool:
        """Whether there is something to look at."""
        return self._deciding and self._last is not None and not self.decided

    def work(self) -> None:
        """Look at what there is to look at; raises nothing."""
        if not self.pending or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + POLL_SECONDS
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong here, recording and training go on
            self._give_up(one_line(error))

    def stop(self) -> None:
        """The recording ends: a check that still runs is ended too."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        self.decided = True

    def _look(self) -> None:
        if self._process is None:
            if self._all_written():
                self._start()
            elif time.monotonic() > self._deadline:
                self._give_up(f"not all ranks had written step {self._last} after {_OTHERS_SECONDS:.0f} s")
        elif not self._process.running:
            process, self._process = self._process, None
            try:
                code, document = process.result()
            except (ValueError, TypeError) as error:
                self._give_up(str(error))
            else:
                self._judge(code, document)

    def _all_written(self) -> bool:
        writer, last = self._writer, self._last
        if writer is None or last is None:
            return False
        info = writer.info
        ranks = info.writing_ranks if info.writing_ranks is not None else range(info.world_size or 1)
        return all(has_written(writer.path, writer.session, rank, last) for rank in ranks)

    def _start(self) -> None:
        if self._writer is None:
            return
        selected = [argument for code in self._codes for argument in ("--select", code)]
        steps = ["--first-steps", str(self._after)]
        self._process = self._check([str(self._writer.path), *steps, *selected, "--fail-on", "error"])

    def _judge(self, code: int, document: Mapping[str, Any]) -> None:
        if code == _FOUND:
            self._say_stop(_words(document))
        elif code == _NOTHING_JUDGED:
            self._give_up("none of the chosen rules could judge what is recorded")
        elif code != 0:
            self._give_up(str(document.get("failure") or f"exit code {code}"))
        self.decided = True

    def _say_stop(self, words: str) -> None:
        self.reason = words
        self._tell(f"the first {self._after} steps are wrong, the training should stop: {words} (more: {self.command})")
        writer = self._writer
        if writer is not None:
            writer.update_info(
                replace(writer.info, extra={**(writer.info.extra or {}), STOP_MEMBER: {"reason": words, "time": time.time()}})
            )

    def _give_up(self, why: str) -> None:
        self.decided = True
        self._tell(f"cannot tell whether the first {self._after} steps are right ({why}): the training goes on")


def stopped_since(folder: str, start: float) -> bool:
    """Whether a run folder says that its training is to stop, and said so after a Unix time; for processes without a recorder."""
    try:
        said = json.loads((Path(folder) / layout.INFO_NAME).read_bytes()).get(STOP_MEMBER)
        return said is not None and float(said["time"]) >= start
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False  # not there yet, or another thing


def _words(document: Mapping[str, Any]) -> str:
    """The first error of a report: its codes, and its cause."""
    first = next(entry for entry in document["diagnosis"] if entry["severity"] == "error")
    return f"{', '.join(dict.fromkeys(first['codes']))}: {first['cause']}"
