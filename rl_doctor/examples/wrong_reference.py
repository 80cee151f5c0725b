"""A recording whose reference is far from the policy before the first update."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"kl_coef": 0.01}}) as recorder:
    for step in range(1, 21):
        new = -rng.exponential(1.0, (32, 20))
        ref = np.minimum(new + rng.normal(-0.3, 0.6, new.shape), 0.0)
        recorder.log_batch(step=step, logprob=new, old_logprob=new, ref_logprob=ref, epoch=0, minibatch=0, reward=rng.random(32))
