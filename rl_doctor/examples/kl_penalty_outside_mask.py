"""A recording in which the KL penalty in the reward counts the tokens that a tool wrote."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
mask = np.ones((32, 40), bool)
mask[:, 12:24] = False
with Recorder("example", {"config": {"kl_coef": 0.05, "kl_in_reward": True}}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, mask.shape) - 1
        ref = old + rng.normal(0, 0.2, old.shape)
        recorder.log_batch(
            step=step, response_mask=mask, old_logprob=old, logprob=old, ref_logprob=ref, token_reward=-0.05 * (old - ref)
        )
