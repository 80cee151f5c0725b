"""A recording in which the importance weight of a response is the product over its 500 tokens, which hardly differ one by one."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"is_correction": "sequence"}}) as recorder:
    for step in range(1, 11):
        rollout = -rng.exponential(1.0, (16, 500)) - 1
        old = rollout + rng.normal(-0.005, 0.1, rollout.shape)
        weight = np.exp((old - rollout).sum(1)).clip(max=2)[:, None] * np.ones(500)
        recorder.log_batch(step=step, rollout_logprob=rollout, old_logprob=old, is_weight=weight, reward=rng.random(16))
