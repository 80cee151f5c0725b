"""A recording sampled at temperature 0.7, whose logprobs and entropies are those of temperature 1."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example") as recorder:
    for step in range(1, 21):
        logits = rng.normal(0, 2, (32, 20, 50))
        table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        ids = (logits / 0.7 + rng.gumbel(size=logits.shape)).argmax(-1)
        logprob = np.take_along_axis(table, ids[..., None], -1)[..., 0]
        entropy = -(np.exp(table) * table).sum(-1)
        recorder.log_batch(step=step, epoch=0, minibatch=0, logprob=logprob, entropy=entropy, reward=rng.random(32))
