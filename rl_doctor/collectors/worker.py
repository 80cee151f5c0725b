"""The writer thread's side of recording: turns snapshots into rows and writes them as parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from rl_doctor.collectors.backlog import (
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
from rl_doctor.collectors.guard import Guard
from rl_doctor.collectors.sampling import GroupSampler
from rl_doctor.collectors.snapshot import to_array
from rl_doctor.store.normalise import normalise
from rl_doctor.store.rows import Rows, concatenate, splits_of
from rl_doctor.store.writer import RunWriter

PART_BYTES: Final = 32 << 20
"""A part is written once complete steps hold about that much ..."""
PART_SECONDS: Final = 2.0
"""... or once that much time has passed since the last one."""


class Worker:
    """Takes messages from a backlog until it is told to stop.

    Rows of a step are held until the step is complete, so that a dropped step leaves nothing behind.

    Args:
        writer: where parts go.
        backlog: where messages come from.
        guard: ends the recording at the first failure.
        on_part: called after each part with the steps that it completes.
        sampler: chooses the groups that keep their tokens; None keeps all.
    """

    def __init__(
        self,
        writer: RunWriter,
        backlog: Backlog,
        guard: Guard,
        on_part: Callable[[tuple[int, ...]], object] | None,
        sampler: GroupSampler | None = None,
    ) -> None:
        self._writer = writer
        self._backlog = backlog
        self._guard = guard
        self._on_part = on_part
        self._sampler = sampler
        self._open: dict[int, list[Rows]] = {}
        self._ready: list[Rows] = []
        self._ready_bytes = 0
        self._completed: list[int] = []
        self._metrics: list[Mapping[str, Any]] = []
        self._last_part = time.monotonic()

    def run(self) -> None:
        """Work until stopped or failed."""
        running = True
        while running and not self._guard.failed.is_set():
            message = self._backlog.get(self._patience())
            with self._guard("write what was recorded"):
                if message is not None:
                    running = self._take(message)
                if self._due():
                    self._write_part()
            if isinstance(message, Flush):
                message.done.set()
        if self._guard.failed.is_set():
            self._salvage()

    def _salvage(self) -> None:
        """After a failure, save the complete steps and say in ``run.json`` that recording ended, as far as the disk lets."""
        self._on_part = None
        for attempt in (self._write_part, lambda: self._writer.set_status("detached", self._guard.reason)):
            with suppress(Exception):  # the failure has been logged, and this may be the same one
                attempt()

    def _patience(self) -> float | None:
        """Seconds to wait for a message: until the next part is due, or without end."""
        if not (self._completed or self._metrics):
            return None
        return max(0.0, self._last_part + PART_SECONDS - time.monotonic())

    def _due(self) -> bool:
        if not (self._completed or self._metrics):
            return False
        return self._ready_bytes >= PART_BYTES or time.monotonic() - self._last_part >= PART_SECONDS

    def _take(self, message: Message) -> bool:
        """Handle one message; whether to go on."""
        match message:
            case Rollout(step, columns):
                arrays = {name: to_array(value) for name, value in columns.items()}
                rows = normalise({"step": np.int64(step), **arrays}, full_width=message.full_width)
                self._open.setdefault(step, []).append(rows)
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
                self._open.pop(step, None)
                self._writer.count_dropped(1)
            case Flush() | Stop():
                self._release_all()
                if self._ready or self._completed or self._metrics:
                    self._write_part()
        return not isinstance(message, Stop)

    def _complete(self, step: int) -> None:
        for begun in sorted(self._open):
            if begun <= step:
                self._release(begun)
        self._completed.append(step)

    def _release(self, step: int) -> None:
        rows = self._open.pop(step, [])
        if self._sampler is not None:
            rows = self._sampler.thin(rows, self._writer.rank)
        self._ready.extend(rows)
        self._ready_bytes += sum(array.nbytes for part in rows for array in part.columns.values())

    def _release_all(self) -> None:
        for step in list(self._open):
            self._release(step)

    def _write_part(self) -> None:
        completed = tuple(self._completed)
        if self._metrics:
            self._writer.write_metrics(self._metrics)
        if self._ready or completed:
            rows = concatenate(self._ready) if self._ready else Rows({"step": np.empty(0, np.int64)}, splits_of(np.empty(0)))
            self._writer.write_part(rows, completes=completed)
        self._metrics, self._ready, self._completed, self._ready_bytes = [], [], [], 0
        self._last_part = time.monotonic()
        if self._on_part is not None:
            self._on_part(completed)


def _records(message: Logged) -> list[Mapping[str, Any]]:
    """Long-form records of what was logged; values that are no numbers are left out."""
    records: list[Mapping[str, Any]] = []
    for name, value in message.values.items():
        number = _number(value)
        if number is not None:
            records.append(
                {
                    "step": message.step,
                    "time": message.time,
                    "name": str(name),
                    "value": number,
                    "split": message.split,
                    "source": message.source,
                }
            )
    return records


def _number(value: Any) -> float | None:
    """The value as a number, NaN for None; None where it is not one."""
    if value is None:
        return float("nan")
    array = to_array(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        return None
    return float(array.reshape(-1)[0])
