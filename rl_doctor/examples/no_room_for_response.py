"""A recording in which prompts of 512 tokens and responses of 2,048 share a context of 2,048, so that every fourth is cut."""

import numpy as np

from rl_doctor import Recorder

rng = np.random.default_rng(0)
config = {"max_response_length": 2048, "native": {"max_model_len": 2048, "max_prompt_length": 512}}
with Recorder("example", {"config": config}) as recorder:
    for step in range(1, 21):
        length = np.where(np.arange(32) % 4 == 0, 1536, rng.integers(400, 1200, 32))
        finish = np.where(length == 1536, "length", "stop")
        recorder.log_batch(step=step, response_length=length, finish_reason=finish, reward=rng.random(32))
