"""A recording whose KL penalty outweighs the reward."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"kl_coef": 0.5, "kl_in_reward": False}}) as recorder:
    for step in range(1, 61):
        new = -rng.exponential(1.0, (32, 20))
        ref = np.minimum(new - rng.exponential(1.5, new.shape), 0.0)
        reward = rng.normal(0, 0.1, 32)
        recorder.log_batch(
            step=step,
            logprob=new,
            old_logprob=new,
            ref_logprob=ref,
            reward=reward,
            advantage=np.repeat(reward[:, None], 20, 1),
            epoch=0,
            minibatch=0,
        )
