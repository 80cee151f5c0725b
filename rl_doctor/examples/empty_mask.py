"""A recording in which most responses have no trained token."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        mask = np.ones((32, 20), bool)
        mask[:24] = False
        recorder.log_batch(step=step, response_mask=mask, logprob=-rng.exponential(1.0, mask.shape), reward=rng.random(32))
