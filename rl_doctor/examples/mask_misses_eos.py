"""A recording in which the token that ends a response is not trained on."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"pad_token_id": 2, "eos_token_ids": [2]}) as recorder:
    for step in range(1, 21):
        ids = rng.integers(3, 50, (32, 20))
        length = rng.integers(5, 20, 32)[:, None]
        place = np.arange(20)
        ids = np.where(place < length - 1, ids, 2)
        recorder.log_batch(
            step=step, token_id=ids, attention_mask=place < length, response_mask=place < length - 1, finish_reason=["stop"] * 32
        )
