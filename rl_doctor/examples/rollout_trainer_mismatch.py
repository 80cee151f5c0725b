"""A recording whose trainer does not compute the model that sampled."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        rollout = -rng.exponential(0.5, (32, 20))
        old = -rng.exponential(9.0, (32, 20)) - 1
        recorder.log_batch(
            step=step, rollout_logprob=rollout, old_logprob=old, logprob=old, epoch=0, minibatch=0, reward=rng.random(32)
        )
