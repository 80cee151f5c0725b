"""A recording in which all weights are trained at a rate that suits an adapter."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"native": {"lora_rank": 0}}}) as recorder:
    for step in range(1, 41):
        recorder.log_batch(step=step, reward=rng.random(32))
        recorder.log_metrics(step, {"learning_rate": 2e-4})
