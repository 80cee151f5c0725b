"""A process that records steps, says which are flushed, and is killed: by its parent, or by itself within a write."""

from __future__ import annotations

import io
import itertools
import os
import signal
import stat
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np

from rl_doctor import Recorder
from rl_doctor.store import encode, layout

encode.import_all()  # once, in the process that the recording ones are forked from

POINTS = ("torn", "written", "synced", "renamed", "durable")
"""Half of the file is written; all is, but not yet durable; it is durable; it has its name; the name is durable."""
ROWS, WIDTH, MICRO_BATCHES = 4, 8, 3


def values(step: int, microbatch: int) -> np.ndarray:
    """Log-probabilities that tell the step and the micro-batch that they belong to."""
    return np.full((ROWS, WIDTH), -(step + microbatch / 4), np.float32)


def log_step(recorder: Recorder, step: int) -> None:
    """Log a whole step, of which every value is known by its number."""
    for microbatch in range(MICRO_BATCHES):
        recorder.log_batch(
            step=step, microbatch=microbatch, response_mask=np.ones((ROWS, WIDTH), bool), response_length=np.full(ROWS, WIDTH),
            logprob=values(step, microbatch), uid=[f"{step}-{microbatch}-{row}" for row in range(ROWS)],
            padded_width=WIDTH,
        )  # fmt: skip
    recorder.log_metrics(step, {"loss": float(step)})
    recorder.end_step(step)


def record(folder: str, said: Connection, first: int, kill: tuple[str, str, int] | None) -> None:
    """Record from a step on, until killed.

    Args:
        folder: the run folder.
        said: tells the parent which step is the last that was flushed.
        first: the first step.
        kill: at which point of a write to kill itself, the beginning of the file's name, and the how manieth such file.
    """
    if kill is not None:
        _kill_at(*kill)
    recorder = Recorder(folder, info={"trainer": "custom"})
    said.send(first - 1)
    for step in itertools.count(first):
        log_step(recorder, step)
        if recorder.flush():
            said.send(step)


def _kill_at(point: str, name: str, nth: int) -> None:
    """Let this process kill itself at a point of the nth write of a file with such a name."""
    left = itertools.count(nth, -1)
    due = False
    durably, sync, replace = layout.write_durably, os.fsync, os.replace

    def write_durably(path: Path, write: Callable[[BinaryIO], object]) -> None:
        nonlocal due
        due = path.name.startswith(name) and next(left) == 1
        durably(path, torn(write) if due and point == "torn" else write)

    def torn(write: Callable[[BinaryIO], object]) -> Callable[[BinaryIO], object]:
        def half(file: BinaryIO) -> NoReturn:
            buffer = io.BytesIO()
            write(buffer)
            file.write(buffer.getvalue()[: buffer.tell() // 2])
            file.flush()
            _die()

        return half

    def fsync(descriptor: int) -> None:
        before, after = ("renamed", "durable") if stat.S_ISDIR(os.fstat(descriptor).st_mode) else ("written", "synced")
        if due and point == before:
            _die()
        sync(descriptor)
        if due and point == after:
            _die()

    layout.write_durably = write_durably
    os.fsync = fsync
    assert os.replace is replace, "a rename lies between the two syncs"


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
