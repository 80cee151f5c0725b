"""A recording in which one of eight ranks has a wrong forward pass."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
rank = np.repeat(np.arange(8), 4)
with Recorder("example") as recorder:
    for step in range(1, 21):
        rollout = -rng.exponential(1.0, (32, 20)) - 2
        old = rollout + rng.normal(0, np.where(rank == 5, 0.3, 0.01)[:, None], rollout.shape)
        recorder.log_batch(step=step, rank=rank, epoch=0, minibatch=0, rollout_logprob=rollout, old_logprob=old, logprob=old)
