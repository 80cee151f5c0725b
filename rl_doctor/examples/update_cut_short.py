"""A recording of a PPO that stops its four epochs after the first one."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"epochs": 4, "minibatches": 1}}) as recorder:
    for step in range(1, 41):
        old = -rng.exponential(1.0, (32, 20))
        new = np.minimum(old + rng.normal(0, 0.3, old.shape), 0.0)
        recorder.log_batch(
            step=step,
            rollout_step=step,
            epoch=0,
            minibatch=0,
            uid=[f"{step}.{i}" for i in range(32)],
            logprob=new,
            old_logprob=old,
        )
