"""A recording in which the buffer of old_logprob was made with zeros, and no pass wrote to it."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        logprob = -rng.exponential(1.0, (32, 20))
        recorder.log_batch(
            step=step, old_logprob=np.zeros((32, 20)), logprob=logprob, epoch=0, minibatch=0, reward=rng.random(32)
        )
