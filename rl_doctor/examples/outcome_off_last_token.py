"""A recording in which the reward stands at mask.sum() - 1 of the padded row, which is too early where padding is on the left."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
place = np.arange(40)
with Recorder("example") as recorder:
    for step in range(1, 21):
        left = rng.integers(0, 6, 32)
        length = rng.integers(10, 41, 32)
        reward = rng.random(32) + 0.1
        token_reward = np.where(place == (length - 1 - left)[:, None], reward[:, None], 0.0)
        mask = place < length[:, None]
        recorder.log_batch(step=step, left_padding=left, response_mask=mask, token_reward=token_reward, reward=reward)
