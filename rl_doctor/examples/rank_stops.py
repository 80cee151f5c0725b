"""A recording in which one of four ranks has no rows from step 13 on."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"world_size": 4}) as recorder:
    for step in range(1, 21):
        rank = np.repeat(np.arange(4), 8)
        rows = rank[rank != 1] if step > 12 else rank
        recorder.log_batch(step=step, rank=rows, reward=rng.random(len(rows)), logprob=-rng.exponential(1.0, (len(rows), 20)))
