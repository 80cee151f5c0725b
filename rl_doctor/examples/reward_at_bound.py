"""A recording whose reward model is clamped at 3, where most answers have arrived."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 101):
        reward = np.minimum(rng.normal(0.05 * step, 1.0, 32), 3.0)
        recorder.log_batch(step=step, reward=reward, group=np.repeat(np.arange(8), 4))
