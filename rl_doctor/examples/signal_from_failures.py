"""A recording in which hardly any response is right, so that the reward for the format alone makes the advantage."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"adv_estimator": "grpo"}}) as recorder:
    for step in range(1, 101):
        right, form = rng.binomial(1, 0.02, (8, 4)), 0.1 * rng.random((8, 4))
        reward = right + form
        advantage = (reward - reward.mean(1, keepdims=True)) / reward.std(1, ddof=1, keepdims=True)
        recorder.log_batch(
            step=step,
            group=np.repeat(np.arange(8), 4),
            reward=reward.ravel(),
            reward_components={"correct": right.ravel(), "format": form.ravel()},
            advantage=np.repeat(advantage.reshape(32, 1), 20, 1),
        )
