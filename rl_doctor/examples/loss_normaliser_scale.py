"""A recording in which the loss of one of four mini-batches is divided by the tokens of all four."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"epochs": 1, "minibatches": 4}}) as recorder:
    for step in range(1, 21):
        mask = np.arange(40) < rng.integers(10, 41, (32, 1))
        for part in range(4):
            rows = mask[8 * part : 8 * part + 8]
            recorder.log_batch(
                step=step,
                epoch=0,
                minibatch=part,
                response_mask=rows,
                batch_num_tokens=mask.sum(),
                logprob=-rng.exponential(1.0, rows.shape),
            )
