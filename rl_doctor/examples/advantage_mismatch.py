"""A recording whose advantages belong to other rows than their rewards."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"adv_estimator": "grpo"}}) as recorder:
    for step in range(1, 21):
        group = np.repeat(np.arange(8), 4)
        reward = rng.random(32)
        centred = reward - reward.reshape(8, 4).mean(1)[group]
        advantage = rng.permutation(centred / reward.reshape(8, 4).std(1, ddof=1)[group])
        recorder.log_batch(
            step=step,
            group=group,
            uid=[f"{step}.{i}" for i in range(32)],
            reward=reward,
            advantage=np.repeat(advantage[:, None], 20, 1),
        )
