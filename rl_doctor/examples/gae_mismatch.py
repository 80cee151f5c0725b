"""A recording whose returns stand one token late."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder("example", {"config": {"adv_estimator": "gae", "gamma": 1.0, "lam": 0.95}}) as recorder:
    for step in range(1, 21):
        value = rng.normal(0, 0.5, (16, 40)).astype(np.float32)
        reward = np.zeros((16, 40), np.float32)
        reward[:, -1] = rng.random(16) < 0.5
        ahead = np.concatenate([value[:, 1:], np.zeros((16, 1))], 1)
        advantage = reward + ahead - value
        for t in range(38, -1, -1):
            advantage[:, t] += 0.95 * advantage[:, t + 1]
        recorder.log_batch(
            step=step,
            advantage=(advantage - advantage.mean()) / advantage.std(),
            returns=np.roll(advantage + value, 1, axis=1),
            old_value=value,
            token_reward=reward,
        )
