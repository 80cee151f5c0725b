"""A recording in which the KL penalty in the reward is ten times the configured one."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"kl_coef": 0.01, "kl_in_reward": True}}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 40)) - 1
        ref = old + rng.normal(0, 0.2, old.shape)
        recorder.log_batch(step=step, old_logprob=old, logprob=old, ref_logprob=ref, token_reward=-0.1 * (old - ref))
