"""A recording in which rollout logprobs that the engine did not return were filled with 0."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.5, (32, 20))
        rollout = np.where(np.arange(20) < 15, old, 0.0)
        recorder.log_batch(
            step=step, rollout_logprob=rollout, old_logprob=old, logprob=old, epoch=0, minibatch=0, reward=rng.random(32)
        )
