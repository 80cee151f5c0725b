"""A recording in which the mask begins one token too early: the end of the tool's output is trained."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 21):
        role = np.full((32, 40), "assistant", object)
        role[:, 12:24] = "tool"
        mask = role == "assistant"
        mask[:, 23] = True
        recorder.log_batch(step=step, role=role, response_mask=mask, reward=rng.random(32))
