"""A process that records steps into a small quota, so that it thins all the time, and waits to be killed."""

from __future__ import annotations

import itertools
import sys

import numpy as np

from rl_doctor import Recorder
from rl_doctor.collectors import thinning
from rl_doctor.collectors.findings import FindingsCheck

ROWS, WIDTH = 8, 256


def noise(step: int) -> np.ndarray:
    """Log-probabilities that tell the step that they belong to."""
    return np.random.default_rng(step).normal(-5, 0.5, (ROWS, WIDTH)).astype(np.float32)


def say(step: int) -> None:
    """Tell the parent which step is the last on disk."""
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    thinning._MEASURE_SECONDS = thinning._MEASURE_PAUSE = thinning._SETTLE_SECONDS = 0.0  # type: ignore[misc]
    FindingsCheck.start = lambda *_: None  # type: ignore[method-assign]
    say(0)
    recorder = Recorder(sys.argv[1], info={"trainer": "custom"}, quota=8 * 4 * ROWS * WIDTH + 40_000)
    for step in itertools.count(1):
        for number in (2 * step, 2 * step + 1):  # two steps in a part
            recorder.log_batch(
                step=number, response_mask=np.ones((ROWS, WIDTH), bool), response_length=np.full(ROWS, WIDTH),
                logprob=noise(number), reward=np.full(ROWS, number), uid=[f"{number}-{row}" for row in range(ROWS)],
            )  # fmt: skip
        if recorder.flush():
            say(2 * step + 1)
