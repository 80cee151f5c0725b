"""A recording whose trainer computes logprobs in half precision: all lie on the grid of float16."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 21):
        rollout = -rng.exponential(1.0, (32, 20))
        old = rollout.astype(np.float16)
        recorder.log_batch(step=step, rollout_logprob=rollout, old_logprob=old, logprob=old, reward=rng.random(32))
