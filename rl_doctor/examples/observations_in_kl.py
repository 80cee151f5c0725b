"""A recording in which the logged KL is the mean over all tokens, those that a tool wrote included."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
mask = np.ones((32, 40), bool)
mask[:, 12:24] = False
config = {"kl_coef": 0.01, "kl_estimator": "k3", "loss_agg": "token-mean"}
with Recorder("example", {"trainer": "verl", "trainer_version": "0.9.0", "config": config}) as recorder:
    for step in range(1, 21):
        new = -rng.exponential(1.0, mask.shape) - 1
        ref = np.minimum(new + rng.normal(0, np.where(mask, 0.1, 0.4)), 0.0)
        k3 = np.exp(ref - new) - 1 - (ref - new)
        recorder.log_batch(step=step, epoch=0, minibatch=0, response_mask=mask, logprob=new, ref_logprob=ref)
        recorder.log_metrics(step, {"actor/kl_loss": k3.mean()})
