"""A recording in which every response has a group of its own."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"group_size": 4}}) as recorder:
    for step in range(1, 21):
        names = [f"{step}.{i}" for i in range(32)]
        recorder.log_batch(step=step, group=names, uid=names, reward=rng.random(32))
