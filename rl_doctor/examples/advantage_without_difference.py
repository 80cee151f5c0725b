"""A recording in which responses get an advantage though all of their group have the same reward."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"adv_estimator": "grpo"}}) as recorder:
    for step in range(1, 21):
        reward = rng.binomial(1, np.repeat(rng.choice([0.0, 0.5, 1.0], 8), 4))
        advantage = (reward - reward.mean()) / (reward.std(ddof=1) + 1e-6)
        recorder.log_batch(
            step=step, group=np.repeat(np.arange(8), 4), reward=reward, advantage=np.repeat(advantage[:, None], 20, 1)
        )
