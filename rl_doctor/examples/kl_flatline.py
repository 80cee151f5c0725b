"""A recording whose reference is the policy itself, so that the KL is 0 throughout."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"kl_coef": 0.01}}) as recorder:
    for step in range(1, 61):
        old = -rng.exponential(1.0, (32, 20))
        recorder.log_metrics(step, {"grad_norm": 0.3, "learning_rate": 1e-6})
        recorder.log_batch(step=step, logprob=old, old_logprob=old, ref_logprob=old, epoch=0, minibatch=0, reward=rng.random(32))
