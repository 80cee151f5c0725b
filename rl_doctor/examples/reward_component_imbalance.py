"""A recording in which one part of the reward is a thousand times as large as the other."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 41):
        right, length = rng.integers(0, 2, 32).astype(float), -1000 * rng.random(32)
        parts = {"right": right, "length": length}
        recorder.log_batch(step=step, reward=right + length, reward_components=parts, group=np.repeat(np.arange(8), 4))
