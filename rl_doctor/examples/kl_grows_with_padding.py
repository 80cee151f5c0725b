"""A recording whose reference sees the padding on the left: the more there is, the larger the KL."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 21):
        left = rng.integers(0, 32, 32)
        gap = (0.005 + 0.004 * left)[:, None]
        new = -rng.exponential(1.0, (32, 20)) - 1
        ref = new + rng.normal(-(gap**2) / 2, gap, new.shape)
        recorder.log_batch(step=step, epoch=0, minibatch=0, left_padding=left, logprob=new, old_logprob=new, ref_logprob=ref)
