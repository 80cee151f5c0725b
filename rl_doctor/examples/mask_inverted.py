"""A recording whose mask is 0 where it should be 1."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        tool = np.zeros((32, 20), bool)
        tool[:, 8:14] = True
        role = np.where(tool, "tool", "assistant")
        recorder.log_batch(step=step, role=role, response_mask=tool, reward=rng.random(32))
