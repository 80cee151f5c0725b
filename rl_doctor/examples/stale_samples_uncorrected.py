"""A recording of samples up to four versions old whose old_logprob is computed by the newest weights: nothing corrects for it."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(5, 45):
        lag = rng.integers(0, 5, 32)
        gap = 0.05 * lag[:, None]
        rollout = -rng.exponential(1.0, (32, 20)) - 1
        new = rollout + rng.normal(-(gap**2) / 2, gap, rollout.shape)
        recorder.log_batch(step=step, weight_version=step - lag, policy_version=step, old_logprob=new, rollout_logprob=rollout)
