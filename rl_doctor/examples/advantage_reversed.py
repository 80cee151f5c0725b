"""A recording in which the advantage is the mean of the group less the reward, and not the other way around."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"adv_estimator": "grpo"}}) as recorder:
    for step in range(1, 21):
        reward = rng.random((8, 4))
        advantage = (reward.mean(1, keepdims=True) - reward) / reward.std(1, ddof=1, keepdims=True)
        recorder.log_batch(
            step=step,
            group=np.repeat(np.arange(8), 4),
            reward=reward.ravel(),
            advantage=np.repeat(advantage.reshape(32, 1), 20, 1),
        )
