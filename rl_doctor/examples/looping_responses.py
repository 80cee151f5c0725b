"""A recording in which more and more responses repeat the same four tokens to their end, a third of them at last."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 61):
        ids = rng.integers(3, 5000, (32, 80))
        for row in np.flatnonzero(rng.random(32) < step / 180):
            ids[row, 20:] = np.tile(ids[row, 20:24], 15)
        recorder.log_batch(step=step, token_id=ids, finish_reason=["stop"] * 32, reward=rng.integers(0, 2, 32))
