"""A recording with two responses to a prompt, divided by their standard deviation: only the order of the two is left."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
config = {"adv_estimator": "grpo", "adv_norm": "group", "group_size": 2}
with Recorder("example", {"config": config}) as recorder:
    for step in range(1, 21):
        recorder.log_batch(step=step, group=np.repeat(np.arange(16), 2), reward=rng.random(32))
