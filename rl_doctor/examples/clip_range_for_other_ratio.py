"""A recording of GSPO with the clip range of PPO: the ratio of a sequence never gets that far, so that nothing is clipped."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
config = {"clip_low": 0.2, "clip_high": 0.2}
with Recorder("example", {"trainer": "verl", "algorithm": "gspo", "config": config}) as recorder:
    for step in range(1, 41):
        recorder.log_batch(step=step, reward=rng.random(32))
        recorder.log_metrics(step, {"actor/pg_clipfrac": 0.0, "actor/ppo_kl": rng.normal(0, 0.001)})
