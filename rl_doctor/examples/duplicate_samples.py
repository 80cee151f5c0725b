"""A recording in which the samples of a group are copies of each other, because engines share a seed."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        ids = np.repeat(rng.integers(3, 5000, (8, 20)), 4, axis=0)
        old = -rng.exponential(2.0, (8, 20)).repeat(4, axis=0)
        recorder.log_batch(
            step=step, token_id=ids, old_logprob=old, logprob=old, group=np.repeat(np.arange(8), 4), reward=rng.random(32)
        )
