"""A recording of responses of 1,000 tokens with gamma 0.99: their first tokens see 4e-5 of the reward."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"algorithm": "ppo", "config": {"gamma": 0.99, "adv_estimator": "gae"}}) as recorder:
    for step in range(1, 21):
        recorder.log_batch(step=step, response_length=rng.integers(900, 1100, 32), reward=rng.integers(0, 2, 32))
