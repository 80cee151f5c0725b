"""A recording in which the entropy bonus has the wrong sign, and the entropy falls."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"entropy_coef": -0.01}}) as recorder:
    for step in range(1, 41):
        entropy = rng.exponential(0.9**step, (32, 20))
        recorder.log_batch(step=step, entropy=entropy, reward=rng.integers(0, 2, 32))
