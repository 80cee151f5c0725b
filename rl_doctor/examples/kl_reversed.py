"""A recording whose KL takes the reference for the policy."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"kl_estimator": "k3", "kl_coef": 0.01}}) as recorder:
    for step in range(1, 21):
        ref = -rng.exponential(1.0, (32, 20))
        new = np.minimum(ref + rng.normal(0, 0.3, ref.shape), 0.0)
        x = new - ref  # the samples are of the policy: it must be ref - new
        recorder.log_batch(
            step=step,
            logprob=new,
            old_logprob=new,
            ref_logprob=ref,
            kl=np.exp(x) - 1 - x,
            epoch=0,
            minibatch=0,
            reward=rng.random(32),
        )
