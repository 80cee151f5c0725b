"""A recording whose rollout logprobs stand one token too late."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 20))
        recorder.log_batch(
            step=step,
            rollout_logprob=np.roll(old, 1, axis=1),
            old_logprob=old,
            logprob=old,
            epoch=0,
            minibatch=0,
            reward=rng.random(32),
        )
