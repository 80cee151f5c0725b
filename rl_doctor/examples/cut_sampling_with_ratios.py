"""A recording that corrects by ratios to the engine, which samples with top_p 0.9 and renormalises over what it keeps."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"top_p": 0.9, "is_correction": "token"}}) as recorder:
    for step in range(1, 21):
        old = -rng.exponential(1.0, (32, 20)) - 0.11
        rollout = old - np.log(rng.uniform(0.9, 1.0, old.shape))
        recorder.log_batch(step=step, rollout_logprob=rollout, old_logprob=old, is_weight=np.exp(old - rollout))
