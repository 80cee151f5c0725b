"""A recording whose gradient is cut at every step, to a fifth."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"max_grad_norm": 0.1}}) as recorder:
    for step in range(1, 21):
        recorder.log_batch(step=step, reward=rng.random(32), logprob=-rng.exponential(1.0, (32, 20)))
        recorder.log_metrics(step, {"grad_norm": float(0.5 * np.exp(0.1 * rng.standard_normal()))})
