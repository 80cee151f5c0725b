"""A recording with 1,000 warm-up steps in a run of 200."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"native": {"warmup_steps": 1000, "max_steps": 200}}}) as recorder:
    for step in range(1, 201):
        recorder.log_batch(step=step, reward=rng.random(32))
        recorder.log_metrics(step, {"learning_rate": 1e-6 * step / 1000})
