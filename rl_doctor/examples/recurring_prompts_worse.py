"""A recording in which engine and trainer disagree about prompts that come back, as with a prefix cache that is never emptied."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 31):
        group = np.repeat([f"prompt {i}" if i < 4 else f"prompt {step}.{i}" for i in range(8)], 4)
        gap = np.where((np.arange(32) < 16) & (step > 1), 0.01 * step, 0.01)[:, None]
        rollout = -rng.exponential(1.0, (32, 20)) - 1
        old = rollout + rng.normal(-(gap**2) / 2, gap, rollout.shape)
        recorder.log_batch(step=step, group=group, epoch=0, minibatch=0, rollout_logprob=rollout, old_logprob=old, logprob=old)
