"""A recording of negative log-likelihoods instead of logprobs."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 20))
        recorder.log_batch(step=step, logprob=-old, old_logprob=-old)
