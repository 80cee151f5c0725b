"""A recording whose advantages stand at tokens that are not trained, too."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        mask = np.ones((32, 20), bool)
        mask[:, 8:14] = False
        advantage = np.where(mask, 0.5, 0.0) + np.where(mask, 0.0, rng.normal(0, 1, mask.shape))
        recorder.log_batch(step=step, response_mask=mask, advantage=advantage, reward=rng.random(32))
