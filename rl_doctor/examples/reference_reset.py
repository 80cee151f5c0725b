"""A recording in which the reference is replaced by the policy at step 13."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"kl_coef": 0.01}}) as recorder:
    for step in range(1, 21):
        away = 0.02 * (step if step < 13 else step - 13) + 1e-3
        policy = -rng.exponential(1.0, (32, 40)) - 1
        recorder.log_batch(step=step, logprob=policy, ref_logprob=policy + rng.normal(0, away, policy.shape))
