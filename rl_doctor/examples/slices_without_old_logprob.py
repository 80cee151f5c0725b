"""A recording with an older TRL whose accumulation, 6 micro-batches, does not end where a generation batch, 4 of them, does."""

from rl_doctor import Recorder

native = {"gradient_accumulation_steps": 6, "steps_per_generation": 4, "num_iterations": 1}
with Recorder("example", {"trainer": "trl", "trainer_version": "0.18.1", "config": {"native": native}}) as recorder:
    for step in range(1, 21):
        recorder.log_batch(step=step, reward=[0.0, 1.0, 1.0, 0.0])
