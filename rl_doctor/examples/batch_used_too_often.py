"""A recording in which each generation batch is used for 4 epochs of 32 optimizer steps."""

from rl_doctor import Recorder

with Recorder("example", {"config": {"epochs": 4, "minibatches": 32}}) as recorder:
    for step in range(1, 21):
        recorder.log_batch(step=step, reward=[0.0, 1.0, 1.0, 0.0])
