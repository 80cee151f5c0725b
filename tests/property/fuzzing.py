"""Opens and checks damaged logs within bounds of time and memory; a process of its own.

Usage: python -m tests.property.fuzzing FOLDER FIRST COUNT EVERY: seeds FIRST .. FIRST + COUNT - 1, each opened, every EVERY-th
checked by all rules. One JSON object per log goes to standard output.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Final

from tests.property.log_files import mutated

MEMORY: Final = 1 << 30
"""Bytes of address space that a log may make the process take, beyond what it has once everything is imported."""
SECONDS: Final = 10.0
"""Time on the clock for one log; a healthy one takes some hundredths of a second."""


class Overtime(BaseException):
    """A log took too long; no error that a reader could swallow."""


def main(folder: Path, first: int, count: int, every: int) -> None:
    """Go through the logs."""
    from rl_doctor import check, open_run
    from rl_doctor.errors import DoctorError

    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, _overtime)
    path = folder / "log"
    path.write_text('{"step": 1, "loss": 1}\n{"step": 2, "loss": 1}\n')
    check(open_run(path))
    limit = _address_space() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for seed in range(first, first + count):
        what, data = mutated(seed)
        path.write_bytes(data)
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            run = open_run(path)
            found = len(run.metrics())
            outcome = f"{found} values"
            if (seed - first) % every == 0:
                crashed = [result.code for result in check(run).results if result.outcome == "crashed"]
                outcome = f"crashed rules: {', '.join(crashed)}" if crashed else f"{found} values, checked"
        except DoctorError as error:
            outcome = f"{type(error).__name__}: {error}"
        except BaseException as error:  # noqa: BLE001 - what it is about
            outcome = f"FAULT {type(error).__name__}: {error} at {_where(error)}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        told = {"seed": seed, "what": what, "outcome": outcome, "seconds": round(time.perf_counter() - start, 3)}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _overtime(_number: int, _frame: FrameType | None) -> None:
    raise Overtime(f"more than {SECONDS} s")


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-4:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
