"""A recording whose reward, a reward model's score and a bonus for the format, is clipped at 1."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        parts = {"model": rng.normal(0.5, 0.8, 32), "format": 0.2 * rng.integers(0, 2, 32)}
        reward = np.minimum(parts["model"] + parts["format"], 1.0)
        recorder.log_batch(step=step, reward=reward, reward_components=parts, group=np.repeat(np.arange(8), 4))
