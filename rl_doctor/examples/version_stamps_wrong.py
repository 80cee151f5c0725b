"""A recording in which every sample has a version of its own: what was stamped is a counter of samples."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 21):
        stamp = 32 * step + np.arange(32)
        recorder.log_batch(step=step, weight_version=stamp, policy_version=step, reward=rng.random(32))
