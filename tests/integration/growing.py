"""A run that grows under a test, with or without a fault; also as a program, to be killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from rl_doctor import Recorder

INFO = {"trainer": "custom", "algorithm": "grpo", "config": {"clip_low": 0.2, "clip_high": 0.2}}
LENGTHS = np.array([3, 5, 6, 4])
WIDTH = 6


def log_step(recorder: Recorder, step: int, *, fault: bool = False) -> None:
    """One step on disk. With the fault the response mask covers the padding."""
    rng = np.random.default_rng(step)
    old = rng.normal(-1, 0.3, (4, WIDTH)).astype(np.float32)
    mask = np.arange(WIDTH) < LENGTHS[:, None]
    reward = np.array([1.0, 0.0, 1.0, 0.0]) if step % 2 else np.array([0.0, 1.0, 1.0, 0.0])
    recorder.log_batch(
        step=step, minibatch=0, response_mask=np.ones_like(mask) if fault else mask, response_length=LENGTHS, attention_mask=mask,
        old_logprob=old, logprob=old, advantage=np.where(reward > 0.5, 1.0, -1.0)[:, None] * mask, reward=reward,
        group=["a", "a", "b", "b"], uid=[f"{step}-{row}" for row in range(4)], finish_reason=["stop"] * 4,
    )  # fmt: skip
    recorder.end_step(step)
    recorder.flush()


def main() -> None:
    """Record steps until killed: the folder, and the step from which on there is the fault."""
    folder, fault = Path(sys.argv[1]), int(sys.argv[2])
    recorder = Recorder(folder, info=INFO)
    for step in range(1, 10_000):
        log_step(recorder, step, fault=step >= fault)
        print(step, flush=True)  # noqa: T201
        time.sleep(0.2)


if __name__ == "__main__":
    main()
