"""A recording whose old_logprob is computed anew in every mini-batch."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"minibatches": 4}}) as recorder:
    for step in range(1, 21):
        recorder.log_metrics(step, {"grad_norm": 0.3, "learning_rate": 1e-6})
        old = -rng.exponential(1.0, (32, 20))
        recorder.log_batch(
            step=step,
            epoch=0,
            minibatch=2,
            logprob=old,
            old_logprob=old,
            advantage=rng.normal(0, 1, (32, 20)),
            reward=rng.random(32),
        )
