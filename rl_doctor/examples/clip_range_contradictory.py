"""A recording whose clip range is given by its bounds, 0.8 and 1.2, instead of their distances from 1."""

from rl_doctor import Recorder

with Recorder("example", {"config": {"clip_low": 0.8, "clip_high": 1.2}}) as recorder:
    for step in range(1, 21):
        recorder.log_batch(step=step, reward=[0.0, 1.0, 1.0, 0.0])
