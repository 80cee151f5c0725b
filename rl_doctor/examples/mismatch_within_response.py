"""A recording in which every 32nd response was tokenised anew after sampling: past some token, other tokens are scored."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
mask = np.ones((32, 60), bool)
with Recorder("example") as recorder:
    for step in range(1, 21):
        rollout = -rng.exponential(1.0, mask.shape)
        old = np.minimum(rollout + rng.normal(0, 0.01, mask.shape), 0.0)
        old[0, 30:] = -rng.exponential(1.0, 30)
        recorder.log_batch(step=step, response_mask=mask, rollout_logprob=rollout, old_logprob=old, reward=rng.random(32))
