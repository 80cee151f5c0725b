"""Train with verl's trainer methods, its worker group in processes of Ray, and the real transfer queue, all on the CPU.

Usage: python -m tests.trainers.verl.cluster '{"record": "path", "ranks": 2, "steps": 2}'
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from tests.trainers.verl import train

SETTINGS = [
    "actor_rollout_ref.actor.use_kl_loss=false", "actor_rollout_ref.actor.entropy_coeff=0",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=naive", "trainer.device=cpu",
]  # fmt: skip


def rows_of(step: int, n: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Keys and rows as an agent loop writes them, of random tokens; one session has two outputs."""
    import torch

    generator = torch.Generator().manual_seed(step)
    keys, rows = [], []
    for number in range(4):
        for session in range(n):
            for index in range(2 if (number, session) == (1, 1) else 1):
                if (number, session) == (1, 2):
                    continue
                prompt = torch.randint(4, train.VOCABULARY, (3 + index,), generator=generator)
                response = torch.randint(4, train.VOCABULARY, (2 + (number + session) % 5 + index,), generator=generator)
                mask = torch.ones_like(response)
                scores = torch.zeros(len(response))
                scores[-1] = float(response[0] % 3)
                keys.append(f"{step}-{number}_{session}_{index}")
                rows.append(
                    {
                        "prompts": prompt, "responses": response, "input_ids": torch.cat([prompt, response]),
                        "position_ids": torch.arange(len(prompt) + len(response)), "response_mask": mask, "loss_mask": mask,
                        "rm_scores": scores, "rollout_log_probs": torch.full((len(response),), -4.0), "uid": f"{step}-{number}",
                        "session_id": session, "num_turns": 2, "data_source": "random", "global_steps": step,
                        "multi_modal_inputs": {},
                        "extra_fields": {
                            "min_global_steps": step - 1, "max_global_steps": step - 1, "reward_extra_info": {"acc": 1.0},
                        },
                    }
                )  # fmt: skip
    return keys, rows


def start_ray(attempts: int = 5) -> None:
    """Start Ray, which gives up after half a minute on a machine that is busy."""
    import ray

    for attempt in range(attempts):
        try:
            ray.init(num_cpus=6, include_dashboard=False, object_store_memory=100 << 20, logging_level="ERROR")
        except Exception:
            ray.shutdown()
            if attempt == attempts - 1:
                raise
        else:
            return


def end(workers: list[Any]) -> None:
    """End the training, and at once the workers, as a job does that is over."""
    import ray

    from rl_doctor.collectors import verl_driver

    for driver in verl_driver._drivers.values():
        driver.close("complete")
    for worker in workers:
        ray.kill(worker)


def main(options: dict[str, Any]) -> None:
    os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112 - Ray spells it so
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict
    from verl.utils.tracking import Tracking
    from verl.workers.engine_workers import ActorRolloutRefWorker

    folder = tempfile.mkdtemp()
    train.save_model(f"{folder}/model")
    config = train.configuration(f"{folder}/model", train.DEFAULTS | {"overrides": SETTINGS})
    start_ray()
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1, "total_storage_size": 1000}}}))
    os.environ["RL_DOCTOR_RUN"] = options["record"]  # of this process alone: the workers' were copied at ray.init
    group = RayWorkerGroup(
        resource_pool=RayResourcePool([options["ranks"]], use_gpu=False, max_colocate_count=1),
        ray_cls_with_init=RayClassWithInitArgs(ray.remote(ActorRolloutRefWorker), config=config.actor_rollout_ref, role="actor"),
        device_name="cpu",
    )
    group.init_model()
    kind = type("Trainer", (trainer_base.PPOTrainer,), {"on_step_end": None, "on_sample_end": None})
    trainer = kind.__new__(kind)
    trainer.config, trainer.actor_rollout_wg, trainer.global_steps = config, group, 0
    trainer.use_critic = trainer.use_reference_policy = False
    trainer.distillation_config, trainer.parameter_sync_step = None, 1
    trainer._rollout_moe_lb_metrics_accumulator = None
    trainer.tokenizer = type(
        "Words", (), {"eos_token_id": train.END, "pad_token_id": train.PAD, "__len__": lambda _: train.VOCABULARY}
    )()
    trainer._get_n_gpus_for_throughput = lambda: options["ranks"]
    logger = Tracking("tests", "tests", "file", config={})
    left = []
    for step in range(1, options["steps"] + 1):
        trainer.global_steps, metrics = step, {}
        keys, rows = rows_of(step, 4)
        tags = [
            {"prompt_len": len(row["prompts"]), "response_len": len(row["responses"]), "min_global_steps": step - 1,
             "max_global_steps": step - 1, "seq_len": len(row["input_ids"])}
            for row in rows[:-1]
        ]  # fmt: skip
        batch = tq.kv_batch_put(keys[:-1], "train", fields=list_of_dict_to_tensordict(rows[:-1]), tags=tags)
        batch = trainer._balance_batch(batch, metrics)
        batch.extra_info["temperature"] = config.actor_rollout_ref.rollout.temperature
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        batch = trainer._compute_old_log_prob(batch, metrics)
        batch = trainer._compute_advantage(batch, metrics)
        batch.tags = [tags[key] for key in batch.keys]
        batch = trainer._update_actor(batch, metrics)
        left.append([name for name in (*batch.extra_info, *batch.fields) if "rl_doctor" in name])
        timing = dict.fromkeys(("step", "gen", "old_log_prob", "adv", "update_actor"), 1.0)
        trainer._compute_metrics(batch, metrics, timing, step, 0)
        tq.kv_clear(batch.keys, "train")
        logger.log(data=metrics, step=step)
    logger.finish()
    end(group.workers)
    sys.stdout.write("RESULT " + json.dumps({"left": left}) + "\n")
    sys.stdout.flush()
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
