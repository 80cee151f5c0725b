"""A recording in which wrong answers become longer and longer, and right ones do not."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 101):
        right = rng.integers(0, 2, 32)
        length = np.where(right, 200, 200 + 4 * step) * rng.lognormal(0, 0.1, 32)
        recorder.log_batch(step=step, group=np.repeat(np.arange(8), 4), reward=right, response_length=length.astype(int))
