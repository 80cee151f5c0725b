"""verl's own ``PPOTrainer.fit`` around steps that train nothing, and print which steps were made, saved and validated.

Usage: python -m tests.trainers.verl.fitting '{"wrong": true}' for rows with a mask that covers the padding.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.trainers.said import wait_for

STEPS = 12
CONFIG: dict[str, Any] = {
    "trainer": {
        "project_name": "tests", "experiment_name": "tests", "logger": ["console"], "val_before_train": False, "total_epochs": 3,
        "save_freq": 100, "test_freq": 100, "rollout_data_dir": None,
    },
    "global_profiler": {"steps": None},
    "actor_rollout_ref": {"rollout": {"n": 4, "skip": {"enable": False}}, "actor": {}},
}  # fmt: skip


def rows(step: int, *, wrong: bool) -> dict[str, Any]:
    """What the workers record of a step, as columns."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(3, 9, 32)
    inside = np.arange(10) < lengths[:, None]
    logprob = rng.normal(-1.0, 0.2, (32, 10)).clip(max=-0.01)
    mask = np.ones_like(inside) if wrong else inside
    return {
        "logprob": logprob, "old_logprob": logprob, "response_mask": mask, "response_length": lengths,
        "attention_mask": np.ones_like(inside), "reward": rng.random(32), "group": np.repeat(np.arange(8), 4),
        "token_id": np.where(inside, rng.integers(5, 30, (32, 10)), 0),
    }  # fmt: skip


def main(*, wrong: bool) -> None:
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import trainer_base

    import rl_doctor.collectors.verl  # noqa: F401 - as the plugin is loaded
    from rl_doctor.collectors import check_process, verl_driver

    check_process.shutil = SimpleNamespace(which=lambda _: None)  # at low priority a busy machine would not get to it

    made: dict[str, list[int]] = {"steps": [], "saved": [], "validated": []}

    class Trainer(trainer_base.PPOTrainer):  # type: ignore[misc]
        def step(self, metrics: dict[str, Any], _timing: Any) -> Any:
            made["steps"].append(self.global_steps)
            driver = next(iter(verl_driver._drivers.values()))
            driver.recorder(critic=False).log_batch(step=self.global_steps, **rows(self.global_steps, wrong=wrong))
            metrics["actor/grad_norm"] = 1.0
            time.sleep(0.5)
            if wrong and self.global_steps == 3:
                wait_for("the training should stop")
            return SimpleNamespace(keys=[], partition_id="train")

        def _save_checkpoint(self) -> None:
            made["saved"].append(self.global_steps)

        def _validate(self) -> dict[str, float]:
            made["validated"].append(self.global_steps)
            return {"val": 1.0}

    nothing = {
        name: lambda *_args, **_kwargs: {} for name in (
            "on_train_begin", "on_train_end", "on_step_begin", "on_step_end", "on_sample_end", "on_validate_begin",
            "on_validate_end", "_start_profiling", "_stop_profiling", "_reissue_inflight_prompts", "_consume_sync_metrics",
            "_compute_metrics", "_shutdown_dump_executor",
        )
    }  # fmt: skip
    trainer_base.tq = SimpleNamespace(kv_clear=lambda **_: None)
    trainer_base.SkipManager = SimpleNamespace(init=lambda _: None, set_step=lambda _: None)
    kind = type("Quiet", (Trainer,), nothing)
    trainer = kind.__new__(kind)
    trainer.config, trainer.global_steps, trainer.tokenizer = OmegaConf.create(CONFIG), 0, None
    trainer.steps_per_epoch, trainer.total_training_steps = STEPS // 3, STEPS
    trainer.fit(None)
    sys.stdout.write("RESULT " + json.dumps(made) + "\n")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
