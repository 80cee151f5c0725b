"""A recording in which the output of a tool is trained on."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        role = np.full((32, 20), "assistant", object)
        role[:, 8:14] = "tool"
        recorder.log_batch(step=step, role=role, response_mask=np.ones((32, 20), bool), reward=rng.random(32))
