"""A recording in which only the first of the four prompts on every rank ever earns a reward."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
prompt = np.repeat(np.arange(8), 4)
with Recorder("example") as recorder:
    for step in range(1, 21):
        reward = np.where(prompt % 4 == 0, rng.integers(0, 2, 32), 0.0)
        group = [f"{step}.{i}" for i in prompt]
        recorder.log_batch(step=step, rank=prompt // 4, group=group, reward=reward)
