"""The writer thread's side of recording: turns snapshots into rows and writes them as parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from rl_doctor.collectors.backlog import (
    Again,
    Backlog,
    Flush,
    Logged,
    LogprobDtype,
    Message,
    Rollout,
    StepDropped,
    StepEnd,
    Stop,
    UnknownColumn,
)
from rl_doctor.collectors.guard import Guard, one_line
from rl_doctor.collectors.halting import POLL_SECONDS, Halt
from rl_doctor.collectors.sampling import GroupSampler
from rl_doctor.collectors.snapshot import to_array
from rl_doctor.collectors.thinning import Thinner
from rl_doctor.schema import ROLES
from rl_doctor.store.coerce import unknown_roles
from rl_doctor.store.rows import Rows, concatenate, splits_of
from rl_doctor.store.writer import RunWriter

PART_BYTES: Final = 32 << 20
"""A part is written once complete steps hold about that much ..."""
PART_SECONDS: Final = 2.0
"""... or once that much time has passed since the last one."""
_THINNING_SECONDS: Final = 0.1
"""How long old parts are thinned before the next message is looked for."""


class Worker:
    """Takes messages from a backlog until it is told to stop.

    Rows of a step are held until the step is complete, so that a dropped step leaves nothing behind. All that touches the disk
    happens here, so that one that is slow or hangs holds up nobody else.

    Attributes:
        opened: set once the run was opened, or could not be.
        session: number of the session in the run, or None if it could not be opened.
        left_out: steps that were left out because rows could not be made of what was logged of them.

    Args:
        open_writer: opens the run, where parts go.
        backlog: where messages come from.
        guard: ends the recording at the first failure.
        on_part: called after each part with the steps that it completes.
        sampler: chooses the groups that keep their tokens; None keeps all.
        thinner: keeps the run within its quota.
        halt: checks the first steps; None checks nothing.
    """

    def __init__(
        self,
        open_writer: Callable[[], RunWriter],
        backlog: Backlog,
        guard: Guard,
        on_part: Callable[[tuple[int, ...]], object] | None,
        sampler: GroupSampler | None = None,
        thinner: Thinner | None = None,
        halt: Halt | None = None,
    ) -> None:
        self.opened = threading.Event()
        self.session: int | None = None
        self._open_writer = open_writer
        self._writer: RunWriter
        self._backlog = backlog
        self._guard = guard
        self._on_part = on_part
        self._sampler = sampler
        self._thinner = thinner
        self._halt = halt
        self._at_once = False
        self._open: dict[int, list[Rows]] = {}
        self._open_bytes: dict[int, int] = {}
        self.left_out = 0
        self._spoilt: set[int] = set()
        self._ready: list[Rows] = []
        self._ready_bytes = 0
        self._completed: list[int] = []
        self._metrics: list[Mapping[str, Any]] = []
        self._highest: int | None = None
        self._last_part = time.monotonic()

    def run(self) -> None:
        """Open the run, and work until stopped or failed."""
        try:
            with self._guard("open the run"):
                self._writer = self._open_writer()
                self.session = self._writer.session
                if self._thinner is not None:
                    self._thinner.begin(self._writer)
                if self._halt is not None:
                    self._halt.begin(self._writer)
            self.opened.set()
            self._work()
        except BaseException as error:  # noqa: BLE001 - even what ends threads (SystemExit) must not end the recording unsaid
            self._guard.fail(f"its writer thread has died: {one_line(error)}")
        if self._guard.failed.is_set() and self.session is not None:
            self._salvage()

    def _work(self) -> None:
        running = True
        while running and not self._guard.failed.is_set():
            message = self._backlog.get(self._patience())
            with self._guard("write what was recorded"):
                if message is not None:
                    running = self._take(message)
                if self._backlog.pressed():
                    self._write_all()
                elif self._due():
                    self._write_part()
            self._backlog.hold(sum(self._open_bytes.values()) + self._ready_bytes)
            if isinstance(message, Flush):
                message.done.set()
            if self._thinner is not None:
                self._thinner.work(_THINNING_SECONDS)
            if self._halt is not None:
                self._halt.work()
        if self._thinner is not None:
            self._thinner.close()
        if self._halt is not None:
            self._halt.stop()

    def _salvage(self) -> None:
        """After a failure, save the complete steps and say in ``run.json`` that recording ended, as far as the disk lets."""
        self._on_part = None
        for attempt in (self._write_part, lambda: self._writer.set_status("detached", self._guard.reason)):
            with suppress(Exception):  # the failure has been logged, and this may be the same one
                attempt()

    def _patience(self) -> float | None:
        """Seconds to wait for a message: until the next part is due, or without end; none while parts wait to be thinned."""
        if self._thinner is not None and self._thinner.pending:
            return 0.0
        most = POLL_SECONDS if self._halt is not None and self._halt.pending else None
        if not (self._completed or self._metrics):
            return most
        due = max(0.0, self._last_part + PART_SECONDS - time.monotonic())
        return due if most is None else min(due, most)

    def _due(self) -> bool:
        if not (self._completed or self._metrics):
            return False
        return self._at_once or self._ready_bytes >= PART_BYTES or time.monotonic() - self._last_part >= PART_SECONDS

    def _take(self, message: Message) -> bool:
        """Handle one message; whether to go on."""
        match message:
            case Rollout():
                self._add(message)
            case Logged():
                self._metrics.extend(_records(message))
            case StepEnd(step):
                self._complete(step)
            case LogprobDtype(dtype):
                self._writer.update_info(replace(self._writer.info, logprob_dtype=dtype))
            case UnknownColumn(name):
                names = tuple(sorted({*(self._writer.info.unknown_columns or ()), name}))
                self._writer.update_info(replace(self._writer.info, unknown_columns=names))
            case StepDropped(step):
                self._drop(step)
            case Again(step):
                self._go_back(step)
            case Flush():
                self._write_all()
            case Stop(status):
                self._write_all()
                self._writer.close(status)
        return not isinstance(message, Stop)

    def _drop(self, step: int) -> None:
        self._forget(step)
        if step in self._spoilt:
            self.left_out -= 1  # whoever dropped it counts it, too
        else:
            self._writer.count_dropped(1)

    def _add(self, message: Rollout) -> None:
        """Hold the rows of one call. Where they cannot be made of it, the whole step is left out."""
        step = message.step
        if step in self._spoilt:
            return
        try:
            rows = message.copies.rows(step, full_width=message.full_width)
            unknown = unknown_roles(to_array(roles)) if (roles := message.copies.columns.get("role")) is not None else ()
        except Exception as error:  # noqa: BLE001 - what was handed over may be anything; nothing of the writer's is touched here
            self._guard.fault(f"step {step} is left out, as each with this fault", error)
            self._forget(step)
            self._spoilt.add(step)
            self.left_out += 1
            self._writer.count_dropped(1)
            return
        if unknown:
            known = ", ".join(ROLES)
            self._guard.tell(f"no role, and taken as unknown: {', '.join(map(repr, unknown[:5]))}; roles are {known}")
        self._open.setdefault(step, []).append(rows)
        self._open_bytes[step] = self._open_bytes.get(step, 0) + _bytes_of(rows)

    def _complete(self, step: int) -> None:
        for begun in sorted(self._open):
            if begun <= step:
                self._release(begun)
        if step not in self._spoilt:
            self._completed.append(step)
            if self._halt is not None and self._halt.completed(step):
                self._at_once = True
        self._highest = step if self._highest is None else max(self._highest, step)

    def _go_back(self, step: int) -> None:
        """Forget what is held of the step and of later ones, and let what follows replace what is not held any more."""
        for begun in [begun for begun in self._open if begun >= step]:
            self._forget(begun)
        self._spoilt = {spoilt for spoilt in self._spoilt if spoilt < step}
        if self._highest is not None and self._highest >= step:
            if self._ready or self._completed:
                self._write_part()
            self._writer.begin_attempt()
            self._highest = None

    def _forget(self, step: int) -> list[Rows]:
        self._open_bytes.pop(step, None)
        return self._open.pop(step, [])

    def _release(self, step: int) -> None:
        rows = self._forget(step)
        self._highest = step if self._highest is None else max(self._highest, step)
        if self._sampler is not None:
            rows = self._sampler.thin(rows, self._writer.rank)
        self._ready.extend(rows)
        self._ready_bytes += sum(map(_bytes_of, rows))

    def _write_all(self) -> None:
        for step in list(self._open):
            self._release(step)
        if self._ready or self._completed or self._metrics:
            self._write_part()

    def _write_part(self) -> None:
        completed = tuple(self._completed)
        if self._metrics:
            self._writer.write_metrics(self._metrics)
        if self._ready or completed:
            rows = concatenate(self._ready) if self._ready else Rows({"step": np.empty(0, np.int64)}, splits_of(np.empty(0)))
            if self._thinner is not None:
                rows = self._thinner.fit(rows)
            self._writer.write_part(rows, completes=completed)
            if self._thinner is not None:
                self._thinner.after_part(rows)
        self._metrics, self._ready, self._completed, self._ready_bytes = [], [], [], 0
        self._at_once = False
        self._last_part = time.monotonic()
        if self._on_part is not None:
            self._on_part(completed)


def _bytes_of(rows: Rows) -> int:
    return sum(array.nbytes for array in rows.columns.values())


def _records(message: Logged) -> list[Mapping[str, Any]]:
    """Long-form records of what was logged; values that are no numbers are left out."""
    records: list[Mapping[str, Any]] = []
    for event in message.events:
        event.synchronize()
    for name, value in message.values.items():
        number = _number(value)
        if number is not None:
            records.append(
                {
                    "step": message.step,
                    "time": message.time,
                    "name": _text(name),
                    "value": number,
                    "split": _text(message.split),
                    "source": _text(message.source),
                }
            )
    return records


def _text(value: Any) -> str:
    return str(value).encode(errors="backslashreplace").decode()


def _number(value: Any) -> float | None:
    """The value as a number, NaN for None; None where it is not one."""
    if value is None:
        return float("nan")
    try:
        array = to_array(value)
    except Exception:  # noqa: BLE001 - whatever has no array is no number
        return None
    if array.size != 1 or array.dtype.kind not in "biuf":
        return None
    return float(array.reshape(-1)[0])
