"""What a process said of rl-doctor itself: paths of a checkout or an environment may have the name in them too."""

from __future__ import annotations

import re
import time
from pathlib import Path

_OURS = re.compile(r"\brl-doctor[ ,:]")


def of_ours(output: str) -> list[str]:
    """The lines that the recording wrote into the output of a training."""
    return [line for line in output.splitlines() if _OURS.search(line)]


def wait_for(words: str, seconds: float = 120.0) -> None:
    """Wait until this process's standard error, which must be a file, says something: a busy machine takes its time."""
    end = time.monotonic() + seconds
    while words not in Path("/proc/self/fd/2").read_text("utf-8") and time.monotonic() < end:
        time.sleep(0.1)
