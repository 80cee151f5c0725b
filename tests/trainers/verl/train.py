"""Train a tiny random model with verl's own workers and print what came out, in a process of its own.

Usage: python -m tests.trainers.verl.train '{"record": "path", "log": "file.jsonl", ...}' (see ``DEFAULTS``).

The loop samples with the actor itself and does the rest with verl: its trainer's methods over a transfer queue in memory, its
workers with the FSDP2 engine, its ``Tracking``. With ``driver`` the update goes through the trainer's methods too, which tell the
workers where to record to; without, the loop calls the workers itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

DEFAULTS: dict[str, Any] = {
    "record": None,  # run folder, or None to train without a recorder
    "log": None,  # file that verl's own file logger writes
    "driver": False,  # update through the methods of verl's PPOTrainer, or with "v0" of its RayPPOTrainer
    "steps": 3,
    "configured": True,  # give Tracking the configuration
    "prompts": 4,  # per step
    "overrides": [],  # of verl's configuration, as on its command line
    "critic": False,
    "padding": 0,  # rows that only fill the batch
    "reject": None,  # rows of the batch that rollout correction rejects whole
    "mismatch": 0.0,  # size of the error of the log-probabilities that the sampler reports
    "break_at": None,  # step after which the run folder is replaced by a file
    "observations": False,  # responses hold tokens of an environment
}
SETTINGS = [
    "actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: fp32, reduce_dtype: fp32}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.kl_loss_coef=0.02",
    "actor_rollout_ref.actor.entropy_coeff=0.001", "actor_rollout_ref.actor.optim.lr=0.005",
    "actor_rollout_ref.rollout.name=none", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.response_length=12",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4", "actor_rollout_ref.rollout.temperature=0.9",
    "actor_rollout_ref.model.use_remove_padding=false", "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "+actor_rollout_ref.model.override_config={attn_implementation: sdpa}", "critic.strategy=fsdp2",
    "critic.fsdp.use_torch_compile=false", "+critic.fsdp.mixed_precision={param_dtype: fp32, reduce_dtype: fp32}",
    "critic.model.use_remove_padding=false", "+critic.model.override_config={attn_implementation: sdpa}",
    "critic.model.enable_gradient_checkpointing=false", "critic.ppo_micro_batch_size_per_gpu=4", "critic.optim.lr=0.005",
    "algorithm.adv_estimator=grpo", "data.train_batch_size=4", "data.max_response_length=12", "trainer.logger=[file]",
    "trainer.project_name=tests", "trainer.experiment_name=tests", "trainer.use_v1=true",
]  # fmt: skip
VOCABULARY, PAD, END, LIMIT = 64, 0, 1, 12


def save_model(folder: str) -> None:
    """A two-layer model with random weights, on disk with a tokenizer."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=128, pad_token_id=PAD, eos_token_id=END, bos_token_id=None,
            tie_word_embeddings=False,
        )
    )  # fmt: skip
    with torch.no_grad():  # a direction that all tokens share makes the end likely
        model.model.embed_tokens.weight += 0.05
        model.lm_head.weight[END] = 0.08
    model.save_pretrained(folder)
    names = [f"w{number}" for number in range(VOCABULARY)]
    words = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=names[2]))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token=names[PAD], eos_token=names[END]).save_pretrained(folder)


def configuration(folder: str, options: dict[str, Any]) -> Any:
    """verl's own configuration with the settings of this loop."""
    import verl
    from hydra import compose, initialize_config_dir

    own = Path(verl.__file__).parent / "trainer" / "config"
    paths = [f"actor_rollout_ref.model.path={folder}", f"critic.model.path={folder}", f"critic.enable={options['critic']}"]
    with initialize_config_dir(config_dir=str(own), version_base=None):
        return compose("ppo_trainer", overrides=[*SETTINGS, *paths, *options["overrides"]])


class Queue:
    """verl's transfer queue, in memory: keys with fields and tags."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> Any:
        import torch
        from transfer_queue import KVBatchMeta

        for at, key in enumerate(keys):
            row = self.rows.setdefault(key, {})
            for name in fields.keys() if fields is not None else ():
                value = fields.get(name)
                row[name] = (value.unbind() if isinstance(value, torch.Tensor) else value.tolist())[at]
        names = list(self.rows[keys[0]])
        return KVBatchMeta(keys=list(keys), tags=tags or [{} for _ in keys], partition_id=partition_id, fields=names)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str] | None = None) -> Any:
        del partition_id  # there is one partition
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        known = self.rows[keys[0]]
        names = [name for name in select_fields or known if name in known]
        return list_of_dict_to_tensordict([{name: self.rows[key][name] for name in names} for key in keys])


class Group:
    """A worker group with the worker of this process; ``update`` gives it its part of the batch, as verl's dispatch does."""

    def __init__(self, worker: Any, queue: Queue, rank: int, ranks: int) -> None:
        self.worker, self.queue, self.rank, self.ranks = worker, queue, rank, ranks
        self._dispatch_info = {"actor": list(range(ranks)), "train": list(range(ranks))}

    def compute_log_prob(self, batch: Any) -> Any:
        return self._put(batch, self.worker.infer_batch(self.fetch(batch)), ("log_probs", "entropy"))

    def compute_ref_log_prob(self, batch: Any) -> Any:
        return self._put(batch, self.worker.infer_batch(self.fetch(batch)), ("log_probs",))

    def update_actor(self, batch: Any) -> Any:
        import torch

        told = [batch.extra_info]  # there is one driver, that of rank 0
        torch.distributed.broadcast_object_list(told, src=0)
        batch.extra_info = told[0]
        return self.worker.train_mini_batch(data=self.fetch(batch.chunk(self.ranks)[self.rank]))

    def train_mini_batch(self, batch: Any) -> Any:
        output = self.update_actor(batch)
        return type("Future", (), {"get": lambda _self: output})()

    def fetch(self, batch: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        data = self.queue.kv_batch_get(batch.keys, batch.partition_id)
        tu.assign_non_tensor(data, **batch.extra_info)
        return data

    def _put(self, batch: Any, output: Any, names: tuple[str, ...]) -> Any:
        self.queue.kv_batch_put(batch.keys, batch.partition_id, fields=output.select(*names))
        return batch


def load_value_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """What verl's function of this purpose does, without its flash attention."""
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, attn_implementation="sdpa", trust_remote_code=trust_remote_code
    )


def build_worker(part: Any, model: Any, kind: str, loss: Any) -> Any:
    """A worker as ``ActorRolloutRefWorker`` and ``PPOTrainer`` build theirs."""
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    engine = part.engine
    engine.use_dynamic_bsz = part.use_dynamic_bsz
    engine.infer_micro_batch_size_per_gpu = engine.micro_batch_size_per_gpu = part.ppo_micro_batch_size_per_gpu
    engine.infer_max_token_len_per_gpu = engine.max_token_len_per_gpu = part.ppo_max_token_len_per_gpu
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type=kind,
            model_config=model,
            engine_config=engine,
            optimizer_config=part.optim,
            checkpoint_config=part.checkpoint,
        )
    )
    worker.reset()
    if loss is not None:
        worker.set_loss_fn(loss)
    return worker


def sample(model: Any, step: int, options: dict[str, Any], temperature: float, n: int) -> list[dict[str, Any]]:
    """Rows as verl's agent loop writes them, sampled from the model."""
    import torch

    generator = torch.Generator().manual_seed(1000 + step)
    prompts = [torch.randint(4, VOCABULARY, (2 + number % 3,), generator=generator) for number in range(options["prompts"])]
    rows = [(number, session) for number in range(options["prompts"]) for session in range(n)]
    ids = [prompts[number].tolist() for number, _ in rows]
    logprobs: list[list[float]] = [[] for _ in rows]
    masks: list[list[int]] = [[] for _ in rows]
    done = [False] * len(rows)
    for position in range(LIMIT):
        longest = max(map(len, ids))
        padded = torch.tensor([row + [PAD] * (longest - len(row)) for row in ids])
        attention = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        with torch.no_grad():
            logits = model(input_ids=padded, attention_mask=attention, use_cache=False).logits.float() / temperature
        last = logits[torch.arange(len(ids)), torch.tensor([len(row) - 1 for row in ids])].log_softmax(-1)
        drawn = torch.multinomial(last.exp(), 1, generator=generator).squeeze(1).tolist()
        for at, token in enumerate(drawn):
            if done[at]:
                continue
            observed = options["observations"] and position in (2, 3)
            ids[at].append(50 if observed else token)
            masks[at].append(0 if observed else 1)
            logprobs[at].append(0.0 if observed else float(last[at, token]))
            done[at] = token == END and not observed
    made = [
        _row(f"{step:08x}-{number}", session, len(prompts[number]), ids[at], logprobs[at], masks[at])
        for at, (number, session) in enumerate(rows)
    ]
    for at, row in enumerate(made):
        off = 3.0 if at in (options["reject"] or ()) else 0.0
        noise = torch.randn(len(row["responses"]), generator=generator) * options["mismatch"] + off
        row["rollout_log_probs"] -= noise * row["response_mask"]
        row["global_steps"] = step
        row["extra_fields"] |= {"min_global_steps": max(0, step - 1 - at % 2), "max_global_steps": step - 1}
    return made


def _row(uid: str, session: int, prompt_length: int, ids: list[int], logprobs: list[float], mask: list[int]) -> dict[str, Any]:
    import torch

    prompt, response = torch.tensor(ids[:prompt_length]), torch.tensor(ids[prompt_length:])
    even = float((response % 2 == 0).float().mean())
    scores = torch.zeros(len(response))
    scores[-1] = even - len(response) / 10
    number = int(uid.rpartition("-")[2])
    return {
        "prompts": prompt, "responses": response, "input_ids": torch.tensor(ids), "position_ids": torch.arange(len(ids)),
        "response_mask": torch.tensor(mask), "loss_mask": torch.tensor(mask), "rm_scores": scores,
        "rollout_log_probs": torch.tensor(logprobs), "uid": uid, "session_id": session, "num_turns": 2, "index": number,
        "data_source": "even" if number % 2 else "odd",
        "extra_fields": {"reward_extra_info": {"even": even, "length": -len(response) / 10}},
    }  # fmt: skip


def main(options: dict[str, Any]) -> None:
    os.environ |= {name: os.environ.get(name, value) for name, value in ONE_PROCESS.items()}
    folder = tempfile.mkdtemp()
    if options["record"]:
        os.environ["RL_DOCTOR_RUN"] = options["record"]
    os.environ["VERL_FILE_LOGGER_PATH"] = options["log"] or f"{folder}/log.jsonl"
    try:
        result = Loop(folder, options).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if os.environ["RANK"] == "0":
        sys.stdout.write("RESULT " + json.dumps(result) + "\n")


ONE_PROCESS = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29571"}


class Loop:
    """What ``PPOTrainer.fit`` does in a step, without Ray."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        from functools import partial

        import torch
        from verl.trainer.ppo.v1 import trainer_base
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.utils.losses import ppo_loss, value_loss

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
        self.rank, self.ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.options, self.queue = options, Queue()
        model_folder = f"{folder}/model"
        save_model(model_folder)
        self.config = configuration(model_folder, options)
        torch.manual_seed(7)
        part = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
        model = omega_conf_to_dataclass(self.config.actor_rollout_ref.model)
        self.actor = build_worker(part, model, "language_model", partial(ppo_loss, config=part))
        reference = build_worker(part, omega_conf_to_dataclass(self.config.actor_rollout_ref.model), "language_model", None)
        self.critic = None
        if options["critic"]:
            from verl.utils import model as model_module

            model_module.load_valuehead_model = load_value_model
            critic = omega_conf_to_dataclass(self.config.critic)
            self.critic = build_worker(critic, critic.model, "value_model", partial(value_loss, config=critic))
        trainer_base.tq = self.queue
        hooks = {"on_step_end": None, "on_sample_end": None}
        kind = type("Trainer", (trainer_base.PPOTrainer,), hooks)
        trainer = kind.__new__(kind)
        trainer.config, trainer.global_steps, trainer.tokenizer = self.config, 0, model.tokenizer
        trainer.use_critic, trainer.use_reference_policy, trainer.ref_in_actor = bool(options["critic"]), True, False
        trainer.distillation_config, trainer.parameter_sync_step = None, 1
        trainer._rollout_moe_lb_metrics_accumulator = None
        trainer.actor_rollout_wg = Group(self.actor, self.queue, self.rank, self.ranks)
        trainer.ref_policy_wg = Group(reference, self.queue, self.rank, self.ranks)
        trainer.critic_wg = Group(self.critic, self.queue, self.rank, self.ranks)
        trainer._get_n_gpus_for_throughput = lambda: self.ranks
        trainer.kl_ctrl_in_reward = type("Fixed", (), {"value": 0.05, "update": lambda *_a, **_k: None})()
        self.trainer = trainer

    def run(self) -> dict[str, Any]:
        import torch
        from omegaconf import OmegaConf
        from verl.utils.tracking import Tracking

        settings = OmegaConf.to_container(self.config, resolve=False) if self.options["configured"] else None
        logger = None
        if self.rank == 0:
            logger = Tracking("tests", "tests", self.config.trainer.logger, config=settings)
        for step in range(1, self.options["steps"] + 1):
            metrics = self.step(step)
            if logger is not None:
                logger.log(data=metrics, step=step)
            if step == self.options["break_at"]:
                Path(self.options["record"]).rename(f"{self.options['record']}-moved")
                Path(self.options["record"]).write_text("in the way")
        if logger is not None:
            logger.finish()
        weights = hashlib.sha256()
        for worker in (self.actor, self.critic):
            if worker is not None:
                for name, tensor in sorted(worker.engine.module.state_dict().items()):
                    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                    weights.update(name.encode() + full.detach().contiguous().numpy().tobytes())
        return {
            "weights": weights.hexdigest(),
            "rng": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
            "fields": sorted(next(iter(self.last.values()))),
        }

    def step(self, step: int) -> dict[str, Any]:
        rollout, trainer = self.config.actor_rollout_ref.rollout, self.trainer
        trainer.global_steps, metrics = step, {}
        batch = self._sampled(step, rollout)
        for method in (trainer._compute_old_log_prob, trainer._compute_ref_log_prob):
            batch.extra_info["temperature"] = rollout.temperature
            method(batch, metrics)
        if self.critic is not None:
            self._values(batch, rollout)
        trainer._compute_advantage(batch, metrics)
        batch.extra_info.clear()
        if self.options["driver"] == "v0":
            self._update_padded(batch, metrics)
        elif self.options["driver"]:
            for method in [trainer._update_critic] * bool(self.critic) + [trainer._update_actor]:
                own = method.__func__ if self.rank == 0 else getattr(method.__func__, "__wrapped__", method.__func__)
                own(trainer, batch, metrics)
        else:
            self._update(batch, metrics)
        timing = dict.fromkeys(("step", "gen", "old_log_prob", "adv", "update_actor", "ref"), 1.0)
        trainer._compute_metrics(batch, metrics, timing, step, 0)
        self.last, self.queue.rows = self.queue.rows, {}
        return metrics

    def _sampled(self, step: int, rollout: Any) -> Any:
        from verl.trainer.ppo import padding_utils
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        rows = sample(self.actor.engine.module, step, self.options, rollout.temperature, rollout.n)
        keys = [f"{row['uid']}_{row['session_id']}_0" for row in rows]
        tags = [
            {"prompt_len": len(row["prompts"]), "response_len": len(row["responses"])}
            | {name: row["extra_fields"][name] for name in ("min_global_steps", "max_global_steps")}
            for row in rows
        ]
        batch = self.queue.kv_batch_put(keys, "train", fields=list_of_dict_to_tensordict(rows), tags=tags)
        if self.options["padding"]:
            padding_utils.tq = self.queue
            self.queue.rows = {key: dict(row) for key, row in self.queue.rows.items()}
            batch = padding_utils.upsample_batch_to_divisible_size(batch, len(batch) + self.options["padding"], END)
        return batch

    def _values(self, batch: Any, rollout: Any) -> None:
        from verl.utils import tensordict_utils as tu
        from verl.workers.utils.padding import response_from_nested

        data = self.trainer.critic_wg.fetch(batch)
        tu.assign_non_tensor(data, compute_loss=False, temperature=rollout.temperature)
        output = self.critic.infer_batch(data)
        values = response_from_nested(output["values"], data["response_mask"])
        self.queue.kv_batch_put(batch.keys, "train", fields=tu.get_tensordict({"values": values}))

    def _update(self, batch: Any, metrics: dict[str, Any]) -> None:
        """Update by calling the workers, as ``PPOTrainer`` would have them called."""
        from verl.utils import tensordict_utils as tu
        from verl.utils.metric import reduce_metrics
        from verl.utils.py_functional import rename_dict

        rollout = self.config.actor_rollout_ref.rollout
        workers = {"critic": (self.critic, self.config.critic), "actor": (self.actor, self.config.actor_rollout_ref.actor)}
        for name, (worker, part) in workers.items():
            if worker is None:
                continue
            size = part.ppo_mini_batch_size * rollout.n
            data = self.trainer.actor_rollout_wg.fetch(batch.chunk(self.ranks)[self.rank])
            tu.assign_non_tensor(
                data, calculate_entropy=True, global_batch_size=size, mini_batch_size=size, epochs=part.ppo_epochs,
                seed=part.data_loader_seed, dataloader_kwargs={"shuffle": part.shuffle}, temperature=rollout.temperature,
            )  # fmt: skip
            output = tu.get(worker.train_mini_batch(data), "metrics")
            metrics.update(reduce_metrics(rename_dict(output, f"{name}/")))

    def _update_padded(self, batch: Any, metrics: dict[str, Any]) -> None:
        """Update through ``RayPPOTrainer``, whose batch holds the data itself, padded to the left and to the right."""
        import numpy as np
        import torch
        from verl import DataProto
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer
        from verl.utils.metric import reduce_metrics

        rows = [self.queue.rows[key] for key in batch.keys]
        width = max(len(row["prompts"]) for row in rows)

        def right(name: str) -> Any:
            padded = [torch.nn.functional.pad(row[name], (0, LIMIT - len(row[name]))) for row in rows]
            return torch.stack(padded)

        prompts = torch.stack([torch.nn.functional.pad(row["prompts"], (width - len(row["prompts"]), 0)) for row in rows])
        attention = torch.tensor(
            [
                [0] * (width - len(row["prompts"])) + [1] * len(row["input_ids"]) + [0] * (LIMIT - len(row["responses"]))
                for row in rows
            ]
        )
        names = ("responses", "response_mask", "old_log_probs", "ref_log_prob", "advantages", "returns", "rollout_log_probs")
        tensors = {name: right(name) for name in names if name in rows[0]}
        tensors |= {"token_level_scores": right("rm_scores"), "token_level_rewards": right("rm_scores")}
        tensors |= {"prompts": prompts, "input_ids": torch.cat([prompts, tensors["responses"]], 1), "attention_mask": attention}
        tensors["position_ids"] = (attention.cumsum(1) - 1).clamp(min=0)
        texts = {name: np.array([row[name] for row in rows], object) for name in ("uid", "data_source")}
        data = DataProto.from_single_dict(tensors | texts)
        trainer = RayPPOTrainer.__new__(RayPPOTrainer)
        trainer.config, trainer.global_steps, trainer.tokenizer = self.config, self.trainer.global_steps, self.trainer.tokenizer
        trainer.distillation_config, trainer.use_critic = None, False
        trainer.actor_rollout_wg = type("Group", (), {})()
        trainer.actor_rollout_wg.update_actor = lambda given: self.actor.train_mini_batch(data=given)
        trainer.actor_rollout_wg._dispatch_info = {"actor": [0]}
        self.padded = getattr(self, "padded", None) or trainer
        self.padded.global_steps = self.trainer.global_steps
        output = self.padded._update_actor(data)
        metrics.update(reduce_metrics(output.meta_info["metrics"]))


if __name__ == "__main__":
    main(DEFAULTS | json.loads(sys.argv[1]))
