"""A recording in which the rewards are the right ones, but stand in other rows than their components."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        parts = {"right": rng.integers(0, 2, 32), "format": 0.2 * rng.random(32)}
        reward = rng.permutation(parts["right"] + parts["format"])
        recorder.log_batch(step=step, reward=reward, reward_components=parts, group=np.repeat(np.arange(8), 4))
