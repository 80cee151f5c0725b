"""A recording in which responses of more than 30 tokens are not trained."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 21):
        length = rng.integers(5, 41, (32, 1))
        attention = np.arange(40) < length
        recorder.log_batch(step=step, attention_mask=attention, response_mask=attention & (length <= 30), reward=rng.random(32))
