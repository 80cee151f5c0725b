"""A recording of GRPO in which the advantage fades towards the end of each response."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"adv_estimator": "grpo", "kl_in_reward": False}}) as recorder:
    for step in range(1, 21):
        reward = rng.random((8, 4))
        advantage = (reward - reward.mean(1, keepdims=True)) / reward.std(1, ddof=1, keepdims=True)
        recorder.log_batch(
            step=step,
            group=np.repeat(np.arange(8), 4),
            reward=reward.ravel(),
            advantage=advantage.reshape(32, 1) * 0.98 ** np.arange(20),
        )
