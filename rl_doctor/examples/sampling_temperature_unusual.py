"""A recording of greedy sampling: the responses to a prompt are copies of each other."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"temperature": 0.0, "group_size": 4}}) as recorder:
    for step in range(1, 21):
        ids = np.repeat(rng.integers(3, 5000, (8, 20)), 4, axis=0)
        recorder.log_batch(step=step, token_id=ids, group=np.repeat(np.arange(8), 4), reward=np.repeat(rng.random(8), 4))
