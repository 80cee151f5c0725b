"""A recording whose mask covers the padding of responses without an end token."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
info = {"pad_token_id": 0, "eos_token_ids": [2]}
with Recorder("example", info) as recorder:
    for step in range(1, 11):
        ids = rng.integers(3, 50, (32, 20))
        length = rng.integers(5, 20, 32)
        real = np.arange(20) < length[:, None]
        ids = np.where(real, ids, 0)
        recorder.log_batch(step=step, token_id=ids, attention_mask=real, response_mask=np.ones_like(real), reward=rng.random(32))
