"""A process that records steps, says which are flushed, and waits to be killed."""

from __future__ import annotations

import itertools
import sys

import numpy as np

from rl_doctor import Recorder


def values(step: int, microbatch: int) -> np.ndarray:
    """Log-probabilities that tell the step and the micro-batch that they belong to."""
    return np.full((8, 64), -(step + microbatch / 4), np.float32)


def say(step: int) -> None:
    """Tell the parent which step is the last on disk."""
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    say(0)
    recorder = Recorder(sys.argv[1], info={"trainer": "custom"})
    for step in itertools.count(1):
        for microbatch in range(3):
            recorder.log_batch(
                step=step, microbatch=microbatch, response_mask=np.ones((8, 64), bool), response_length=np.full(8, 64),
                logprob=values(step, microbatch), uid=[f"{step}-{microbatch}-{row}" for row in range(8)],
            )  # fmt: skip
        recorder.log_metrics(step, {"loss": float(step)})
        recorder.end_step(step)
        if recorder.flush():
            say(step)
