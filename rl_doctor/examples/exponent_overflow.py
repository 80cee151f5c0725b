"""A recording in which logprob - old_logprob is 200 where a tool wrote: exp overflows there before the mask makes it 0."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
mask = np.ones((32, 40), bool)
mask[:, 12:24] = False
with Recorder("example") as recorder:
    for step in range(1, 21):
        new = -rng.exponential(1.0, mask.shape)
        old = np.where(mask, new, -200.0)
        recorder.log_batch(step=step, response_mask=mask, logprob=new, old_logprob=old, reward=rng.random(32))
