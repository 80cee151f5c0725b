"""A recording in which the rewards of a group differ by next to nothing."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        group = np.repeat(np.arange(8), 4)
        reward = rng.random(8)[group] + 1e-6 * rng.normal(size=32)
        recorder.log_batch(step=step, group=group, reward=reward, uid=[f"{step}.{i}" for i in range(32)])
