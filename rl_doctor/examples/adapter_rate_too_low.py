"""A recording in which an adapter is trained at 1e-6, and the policy stays where the reference is."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"native": {"lora_rank": 16}}}) as recorder:
    for step in range(1, 41):
        ref = -rng.exponential(1.0, (32, 20))
        new = np.minimum(ref + rng.normal(0, 0.002, ref.shape), 0.0)
        recorder.log_batch(step=step, logprob=new, ref_logprob=ref, reward=rng.random(32))
        recorder.log_metrics(step, {"learning_rate": 1e-6})
