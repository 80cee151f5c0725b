"""OpenRLHF's own ``PPOTrainer.fit`` and ``generate_samples`` around steps that train nothing, and print what was made.

Usage: python -m tests.trainers.openrlhf.fitting '{"wrong": true}' for rows with a mask that covers the padding.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.trainers.openrlhf import cpu
from tests.trainers.said import wait_for

STEPS = 12


def rows(step: int, *, wrong: bool) -> dict[str, Any]:
    """What the processes that train record of a step, as columns."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(3, 9, 32)
    inside = np.arange(10) < lengths[:, None]
    logprob = rng.normal(-1.0, 0.2, (32, 10)).clip(max=-0.01)
    return {
        "logprob": logprob, "old_logprob": logprob, "response_mask": np.ones_like(inside) if wrong else inside,
        "response_length": lengths, "attention_mask": np.ones_like(inside), "reward": rng.random(32),
        "group": np.repeat(np.arange(8), 4), "token_id": np.where(inside, rng.integers(5, 30, (32, 10)), 0),
    }  # fmt: skip


def main(*, wrong: bool) -> None:
    cpu.prepare()
    from rl_doctor.collectors.openrlhf import install

    install()
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    from rl_doctor import Recorder
    from rl_doctor.collectors import check_process, openrlhf_driver
    from rl_doctor.collectors.plugin import recorder_options, run_path

    check_process.shutil = SimpleNamespace(which=lambda _: None)  # at low priority a busy machine would not get to it
    made: dict[str, Any] = {"steps": [], "saved": [], "closed": 0}
    path = run_path()
    assert path is not None
    recorder = Recorder(path, {"trainer": "openrlhf"}, **recorder_options())

    class Generator(SamplesGenerator):  # type: ignore[misc]
        def _generate_vllm(self, dataloader_iter: Any, **_: Any) -> Any:
            prompt = next(dataloader_iter, None)
            return ([], 0, True) if prompt is None else ([prompt], 1, False)

    class Trainer(ppo_trainer.BasePPOTrainer):  # type: ignore[misc]
        def train_step(self, _samples: Any, step: int) -> Any:
            made["steps"].append(step + 1)
            recorder.log_batch(step=step + 1, **rows(step + 1, wrong=wrong))
            time.sleep(0.5)
            if wrong and step == 2:
                wait_for("the training should stop")
            return {"policy_loss": 0.1}, step + 1

        def init_checkpoint_states(self) -> dict[str, Any]:
            return {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}

        def restore_best_checkpoint_state(self, _states: Any) -> None:
            return None

    def close() -> None:
        made["closed"] += 1

    class Prompts(list):  # type: ignore[type-arg]
        def state_dict(self) -> dict[str, Any]:
            return {}

    never = float("inf")
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=1, n_samples_per_prompt=1), vllm=SimpleNamespace(enable_sleep=False),
        algo=SimpleNamespace(dynamic_filtering_enable=False), train=SimpleNamespace(num_episodes=3),
        eval=SimpleNamespace(steps=never), ckpt=SimpleNamespace(save_steps=never), logger=SimpleNamespace(logging_steps=1),
    )  # fmt: skip
    trainer, generator = Trainer.__new__(Trainer), Generator.__new__(Generator)
    trainer.args = generator.args = args
    trainer.prompts_dataloader = generator.prompts_dataloader = Prompts(range(STEPS // 3))
    trainer.samples_generator, trainer.eval_dataloader, trainer.generate_kwargs = generator, None, {}
    trainer.wandb_logger, trainer.best_eval_metric_key = None, ""
    trainer.tensorboard_logger = SimpleNamespace(log_train=lambda *_: None, close=close)
    setattr(trainer, openrlhf_driver._STATE, openrlhf_driver.Driver(recorder, None))
    ppo_trainer.PPOTrainer.__ray_metadata__.modified_class.fit(trainer)
    recorder.close()
    sys.stdout.write("RESULT " + json.dumps(made) + "\n")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
