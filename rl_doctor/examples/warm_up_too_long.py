"""A recording in which the learning rate rises for half of the run."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 101):
        recorder.log_batch(step=step, reward=rng.random(32))
        recorder.log_metrics(step, {"learning_rate": 1e-6 * min(1.0, step / 50)})
