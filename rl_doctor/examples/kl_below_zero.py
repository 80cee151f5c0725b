"""A recording whose samples come from another distribution than the one that is scored: the mean log-ratio is negative."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 21):
        new = -rng.exponential(1.0, (32, 20)) - 1
        ref = new + rng.normal(0.05, 0.1, new.shape)
        recorder.log_batch(step=step, epoch=0, minibatch=0, logprob=new, old_logprob=new, ref_logprob=ref, reward=rng.random(32))
