"""A recording in which the rows were shuffled, but their groups were not: each group holds several prompts."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
group = np.repeat(np.arange(8), 4)
with Recorder("example") as recorder:
    for step in range(1, 21):
        prompt = rng.permutation(group)
        recorder.log_batch(step=step, group=group, prompt_length=50 + 3 * prompt, reward=rng.random(32))
