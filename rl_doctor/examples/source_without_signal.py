"""A recording in which no response to a prompt of the data set "code" earns anything from step 11 on: its verifier is down."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
source = np.repeat(["math", "code"], 16)
with Recorder("example") as recorder:
    for step in range(1, 31):
        down = (source == "code") & (step > 10)
        reward = np.where(down, 0.0, rng.integers(0, 2, 32))
        recorder.log_batch(step=step, data_source=source, group=np.repeat(np.arange(8), 4), reward=reward)
