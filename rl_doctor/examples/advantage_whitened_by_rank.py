"""A recording in which each of two ranks whitens the advantages of its own tokens."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
rank = np.repeat([0, 1], 16)
with Recorder("example", {"config": {"adv_estimator": "gae"}}) as recorder:
    for step in range(1, 21):
        mask = np.arange(40) < rng.integers(20, 41, (32, 1))
        advantage = rng.normal(0, 1, mask.shape) + rng.normal(0, 1, (32, 1))
        for part in (0, 1):
            own = mask & (rank == part)[:, None]
            advantage[own] = (advantage[own] - advantage[own].mean()) / advantage[own].std()
        recorder.log_batch(step=step, rank=rank, response_mask=mask, advantage=advantage, reward=rng.random(32))
