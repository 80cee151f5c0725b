"""A recording whose trainer logs the KL with the opposite sign."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 20))
        new = np.minimum(old + rng.normal(0, 0.1, old.shape), 0.0)
        recorder.log_metrics(step, {"policy.kl_old_k1": float((new - old).mean())})  # it is old - new
        recorder.log_batch(step=step, logprob=new, old_logprob=old, epoch=0, minibatch=0)
