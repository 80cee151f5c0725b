"""A recording whose trainer leaves out the temperature of the sampler."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"temperature": 0.7}}) as recorder:
    for step in range(1, 21):
        logits = rng.normal(0, 2, (32, 20, 50))
        cold = logits / 0.7
        cold -= np.log(np.exp(cold).sum(-1, keepdims=True))
        warm = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        ids = (cold + rng.gumbel(size=cold.shape)).argmax(-1)[..., None]  # sampled at .7
        rollout, old = (np.take_along_axis(table, ids, -1)[..., 0] for table in (cold, warm))
        recorder.log_batch(
            step=step, rollout_logprob=rollout, old_logprob=old, logprob=old, epoch=0, minibatch=0, reward=rng.random(32)
        )
