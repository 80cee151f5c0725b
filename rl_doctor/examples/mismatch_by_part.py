"""A recording in which the engine of one of four ranks has another precision than the others."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
rank = np.repeat(np.arange(4), 8)
with Recorder("example") as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 20)) - 2
        rollout = old + rng.normal(0, np.where(rank == 1, 0.06, 0.005)[:, None], old.shape)
        recorder.log_batch(step=step, rank=rank, epoch=0, minibatch=0, rollout_logprob=rollout, old_logprob=old, logprob=old)
