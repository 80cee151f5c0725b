"""A recording whose engine takes the logprob before it penalises repetition, while it samples by what comes out of that."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 60)) - 0.1
        rollout = old + np.where(rng.random(old.shape) < 0.4, 0.06, -0.02)
        recorder.log_batch(step=step, epoch=0, minibatch=0, rollout_logprob=rollout, old_logprob=old, logprob=old)
