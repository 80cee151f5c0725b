"""Starts a process beside a training, which takes nothing of it but a share of another core."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import IO

Output = int | IO[bytes]


def started(
    command: Sequence[str], niceness: int = 19, *, stdout: Output = subprocess.DEVNULL, stderr: Output = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a command of our own with one thread and no GPU.

    Args:
        command: what to start.
        niceness: from 0 for a priority like the training's to 19 for the lowest, which a busy machine may not get to for long.
        stdout: where its output goes.
        stderr: where its errors go.

    Raises:
        OSError: it cannot be started.
    """
    gently = [nice, "-n", str(niceness)] if (nice := shutil.which("nice")) else []
    return subprocess.Popen(  # noqa: S603 - our own command
        [*gently, *command], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
