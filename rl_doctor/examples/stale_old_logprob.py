"""A recording in which old_logprob comes from other weights than those that sampled."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        new = -rng.exponential(1.0, (32, 20))
        old = np.minimum(new + rng.normal(-0.02, 0.2, new.shape), 0.0)
        recorder.log_batch(
            step=step, epoch=0, minibatch=0, logprob=new, old_logprob=old, rollout_logprob=new, reward=rng.random(32)
        )
