"""A recording in which each of two ranks divides its loss by the number of its own tokens."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"loss_agg": "token-mean"}}) as recorder:
    for step in range(1, 21):
        for rank, longest in enumerate((20, 40)):
            length = rng.integers(10, longest + 1, (16, 1))
            mask = np.arange(40) < length
            recorder.log_batch(
                step=step,
                rank=rank,
                response_mask=mask,
                batch_num_tokens=2 * length.sum(),
                logprob=-rng.exponential(1.0, mask.shape),
            )
