"""A recording whose engine renormalises over the tokens that top_p keeps; the trainer does not."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"top_p": 0.9}}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 20)) - 0.11
        kept = rng.uniform(0.9, 1.0, old.shape)
        recorder.log_batch(
            step=step,
            rollout_logprob=old - np.log(kept),
            old_logprob=old,
            logprob=old,
            epoch=0,
            minibatch=0,
            reward=rng.random(32),
        )
