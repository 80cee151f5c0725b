"""A recording in which the KL penalty of the tokens that a tool wrote is part of the reward."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
mask = np.ones((32, 40), bool)
mask[:, 12:24] = False
with Recorder("example") as recorder:
    for step in range(1, 21):
        reward = rng.integers(0, 2, 32)
        token_reward = -0.01 * rng.exponential(1.0, mask.shape)
        token_reward[:, -1] += reward
        returns = token_reward[:, ::-1].cumsum(1)[:, ::-1]
        recorder.log_batch(step=step, response_mask=mask, token_reward=token_reward, returns=returns, reward=reward)
