"""A recording whose mini-batch, 256 prompts, is larger than the batch of 128 that is sampled."""

from rl_doctor import Recorder

native = {"data.train_batch_size": 128, "actor_rollout_ref.actor.ppo_mini_batch_size": 256}
with Recorder("example", {"trainer": "verl", "trainer_version": "0.9.0", "config": {"native": native}}) as recorder:
    for step in range(1, 21):
        recorder.log_batch(step=step, reward=[0.0, 1.0, 1.0, 0.0])
