"""A recording in which the tokens with the id of the padding are left out wherever the policy writes them."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 21):
        ids = rng.integers(0, 50, (32, 60))
        rollout = -rng.exponential(1.0, ids.shape)
        recorder.log_batch(step=step, token_id=ids, rollout_logprob=rollout, response_mask=ids != 7, reward=rng.random(32))
