"""A recording in which the KL is in the loss by the settings, and in the reward of each token as well."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"kl_coef": 0.05, "kl_in_reward": False}}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 20)) - 1
        ref = old + rng.normal(0, 0.2, old.shape)
        token_reward = -0.05 * (old - ref)
        token_reward[:, -1] += rng.integers(0, 2, 32)
        recorder.log_batch(
            step=step, old_logprob=old, logprob=old, ref_logprob=ref, token_reward=token_reward, reward=rng.random(32)
        )
