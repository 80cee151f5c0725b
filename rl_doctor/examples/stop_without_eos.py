"""A recording whose responses stopped by themselves, without the token that says so."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"pad_token_id": 0, "eos_token_ids": [2]}) as recorder:
    for step in range(1, 21):
        ids = rng.integers(3, 50, (32, 20))
        mask = np.arange(20) < rng.integers(5, 20, 32)[:, None]
        recorder.log_batch(step=step, token_id=ids, attention_mask=mask, response_mask=mask, finish_reason=["stop"] * 32)
