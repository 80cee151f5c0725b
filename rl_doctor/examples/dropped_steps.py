"""A recording in which one step could not be recorded: its columns do not fit together."""

import numpy as np

from rl_doctor import Recorder

with Recorder("example") as recorder:
    for step in range(1, 6):
        width = 7 if step == 3 else 8
        recorder.log_batch(step=step, response_mask=np.ones((4, 8), bool), logprob=-np.ones((4, width)), reward=np.zeros(4))
