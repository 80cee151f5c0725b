"""A recording in which more and more prompts get one and the same response, which earns the full reward."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
answer = rng.integers(3, 5000, 20)
with Recorder("example") as recorder:
    for step in range(1, 61):
        same = rng.random(32) < step / 60
        ids = np.where(same[:, None], answer, rng.integers(3, 5000, (32, 20)))
        reward = np.where(same, 1.0, rng.integers(0, 2, 32))
        recorder.log_batch(step=step, token_id=ids, group=np.repeat(np.arange(8), 4), reward=reward)
