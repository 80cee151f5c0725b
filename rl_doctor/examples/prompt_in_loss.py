"""A recording in which prompt tokens are trained on."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 20))
        recorder.log_batch(
            step=step, logprob=old, old_logprob=old, prompt_length=np.full(32, 12), prompt_loss_tokens=np.full(32, 12)
        )
