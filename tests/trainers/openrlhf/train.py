"""Train tiny random models with OpenRLHF's own classes and print what came out, in a process of its own.

Usage: python -m tests.trainers.openrlhf.train '{"record": "path", "args": {"train.max_epochs": 2}, ...}' (see ``OPTIONS``).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.trainers.openrlhf import cpu
from tests.trainers.openrlhf.rollouts import EOS, PAD, VOCABULARY, responses
from tests.trainers.openrlhf.settings import arguments

OPTIONS: dict[str, Any] = {
    "record": None,  # run folder, or None to train without a recorder
    "break_at": None,  # step before which the run folder is replaced by a file
    "steps": 3,
    "args": {},  # arguments that differ from settings.DEFAULTS
}
Local = dict[str, Callable[..., Any]]


class Group:
    """A group of processes with one model, as ``RayActorGroup``: rank 0 calls, and all do what they are told together."""

    def __init__(self, name: str, methods: Local, ranks: int) -> None:
        self.name, self.methods, self.ranks = name, methods, ranks

    def async_run_method(self, method_name: str, **kwargs: Any) -> list[Any]:
        return call(self, method_name, [kwargs] * self.ranks)

    def async_run_method_batch(self, method_name: str, **kwargs: Any) -> list[Any]:
        total = len(next(iter(kwargs.values())))
        size = -(-total // self.ranks)
        parts = [slice(rank * size, (rank + 1) * size) for rank in range(self.ranks)]
        return call(self, method_name, [{"batch": {name: values[part] for name, values in kwargs.items()}} for part in parts])

    def run(self, method_name: str, kwargs: dict[str, Any]) -> Any:
        if method_name == "save_checkpoint":
            return None
        method = self.methods[method_name]
        if "batch" not in kwargs:
            return method(**kwargs)
        batch = kwargs["batch"]
        return [method(**dict(zip(batch, values, strict=True))) for values in zip(*batch.values(), strict=True)]


def call(group: Group, method: str, kwargs: list[dict[str, Any]]) -> list[Any]:
    """Let every rank run the method with its arguments; what each returned."""
    import torch.distributed as dist

    order = [(group.name, method, kwargs)]
    if group.ranks > 1:
        dist.broadcast_object_list(order, src=0)
    return gathered(group.run(method, kwargs[0]), group.ranks)


def gathered(result: Any, ranks: int) -> list[Any]:
    import torch.distributed as dist

    if ranks == 1:
        return [result]
    results = [None] * ranks
    dist.all_gather_object(results, result)
    return results


def serve(groups: dict[str, Group]) -> None:
    """What the other ranks do: wait for orders."""
    import torch.distributed as dist

    while True:
        order: list[Any] = [None]
        dist.broadcast_object_list(order, src=0)
        if order[0] is None:
            return
        name, method, kwargs = order[0]
        gathered(groups[name].run(method, kwargs[dist.get_rank()]), groups[name].ranks)


def strategy(settings: Any) -> Any:
    """OpenRLHF's strategy with DeepSpeed's engine on the CPU: Adam is PyTorch's, and so are the other kernels."""
    import openrlhf.utils.utils as conversions
    import torch
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy
    from torch.distributed.device_mesh import init_device_mesh

    named = conversions.convert_to_torch_dtype
    conversions.convert_to_torch_dtype = lambda name: torch.float32 if name == "fp32" else named(name)

    class Strategy(DeepspeedStrategy):  # type: ignore[misc]
        def get_ds_train_config(self, optim_dict: Any = None, **kwargs: Any) -> Any:
            if optim_dict is not None:
                optim_dict["params"]["torch_adam"] = True
            return super().get_ds_train_config(optim_dict, **kwargs)

        def setup(self) -> None:
            self.world_size = torch.distributed.get_world_size()
            self.ds_device_mesh = init_device_mesh("cpu", (self.world_size, 1, 1), mesh_dim_names=("dp", "sp", "tp"))
            self.accumulated_gradient = self.train_batch_size // self.micro_train_batch_size // self.world_size

    made = Strategy(
        seed=settings.train.seed, micro_train_batch_size=settings.train.micro_batch_size,
        train_batch_size=settings.train.batch_size, zero_stage=settings.ds.zero_stage, args=settings,
    )  # fmt: skip
    made.setup()
    return made


def save_model(folder: str) -> str:
    """A two-layer model with random weights, on disk."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=None,
        tie_word_embeddings=False,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def shared_model(rank: int, ranks: int) -> str:
    """Rank 0's model, which all ranks load."""
    import torch.distributed as dist

    found = [save_model(tempfile.mkdtemp()) if rank == 0 else ""]
    if ranks > 1:
        dist.broadcast_object_list(found, src=0)
    return found[0]


def optimizer_settings(settings: Any, of: Any) -> dict[str, Any]:
    return {
        "optim": "adam", "muon": {}, "lr_scheduler": "constant", "lr_warmup_ratio": 0.0, "min_lr_ratio": 0.1,
        "max_norm": settings.actor.max_norm, "scheduler_steps": 100, "adam": vars(settings.actor.adam) | {"lr": of.adam.lr},
    }  # fmt: skip


class Tokens:
    """As much of a tokenizer as the controller uses."""

    pad_token_id, eos_token_id = PAD, EOS

    def decode(self, ids: Any, **_kwargs: Any) -> list[str]:
        return [str(row) for row in ids.tolist()]


def models(settings: Any, plan: Any, path: str) -> tuple[dict[str, Group], list[Any]]:
    """The groups of this rank, and the trainers of the policy and of the critic."""
    import torch
    from openrlhf.models import Actor, get_llm_for_sequence_regression
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
    from openrlhf.trainer.ray.ppo_critic import CriticPPOTrainer

    ranks = plan.world_size
    load = {"attn_implementation": "eager", "param_dtype": settings.ds.param_dtype}
    actor = Actor(path, temperature=settings.rollout.temperature, **load)
    reference = Actor(path, temperature=settings.rollout.temperature, **load).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in reference.parameters():
        parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    if settings.actor.gradient_checkpointing_enable:
        actor.gradient_checkpointing_enable({"use_reentrant": False})
    actor, optimizer, scheduler = plan.prepare((actor, optimizer_settings(settings, settings.actor)))
    trainer = ActorPPOTrainer(
        plan, actor, None, optimizer, scheduler, micro_train_batch_size=settings.train.micro_batch_size,
        dataloader_pin_memory=False,
    )  # fmt: skip

    def scores(model: Any) -> Callable[..., Any]:
        def forward(sequences: Any, action_mask: Any, attention_mask: Any, **_kwargs: Any) -> Any:
            model.eval()
            with torch.no_grad():
                found = model(sequences, action_mask, attention_mask)
            model.train()
            return found

        return forward

    def fit(kl_ctl: float) -> Any:
        status = trainer.ppo_train(kl_ctl)
        trainer.replay_buffer.clear()
        return status

    groups = {
        "actor": Group(
            "actor", {"append": trainer.replay_buffer.append, "fit": fit, "forward": scores(actor)},
            ranks,
        ),
        "reference": Group("reference", {"forward": scores(reference)}, ranks),
    }  # fmt: skip
    trainers = [trainer]
    if settings.algo.advantage.estimator == "gae":
        critic = get_llm_for_sequence_regression(path, "critic", init_value_head=True, **load)
        if settings.actor.gradient_checkpointing_enable:
            critic.gradient_checkpointing_enable({"use_reentrant": False})
        critic, optimizer, scheduler = plan.prepare((critic, optimizer_settings(settings, settings.critic)))
        values = CriticPPOTrainer(
            plan, critic, optimizer, scheduler, micro_train_batch_size=settings.train.micro_batch_size,
            value_clip=settings.critic.value_clip, dataloader_pin_memory=False,
        )  # fmt: skip

        def fit_critic() -> Any:
            status = values.ppo_train()
            values.replay_buffer.clear()
            return status

        groups["critic"] = Group(
            "critic",
            {"append": values.replay_buffer.append, "fit": fit_critic, "forward": scores(critic)},
            ranks,
        )
        trainers.append(values)
    return groups, trainers


def drive(settings: Any, plan: Any, groups: dict[str, Group], options: dict[str, Any]) -> list[dict[str, float]]:
    """The controller: OpenRLHF's own, with groups of this process in the place of Ray's; what it logged."""
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ppo_trainer import BasePPOTrainer
    from openrlhf.trainer.ppo_utils import experience_maker

    class Ray:
        """Ray within one process: a reference is the value itself."""

        get = staticmethod(lambda references: references)
        put = staticmethod(lambda value: value)

    ppo_trainer.ray = experience_maker.ray = Ray
    trainer = BasePPOTrainer(
        plan, groups["actor"], groups.get("critic"), None, groups["reference"] if settings.algo.kl.init_coef > 0 else None, None,
        Tokens(),
    )  # fmt: skip
    return run(trainer, settings, options)


def run(trainer: Any, settings: Any, options: dict[str, Any]) -> list[dict[str, float]]:
    """The steps, as OpenRLHF's ``fit`` makes them, on answers of ours."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    logged = []

    class Logger:
        def log_train(self, step: int, logs: dict[str, Any]) -> None:
            numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
            logged.append({"step": step} | {name: value for name, value in numbers.items() if not name.startswith("timing/")})

    trainer.tensorboard_logger = Logger()
    step = 0
    while step < options["steps"]:
        if options["break_at"] == step and options["record"]:
            folder = Path(options["record"])
            folder.rename(folder.with_name("gone"))  # at once, whatever the writer does at this moment
            folder.write_text("in the way")
        answers = responses(step, settings.rollout.batch_size, settings.rollout.n_samples_per_prompt, settings)
        samples = [
            SamplesGenerator._process_response_into_experience(None, answer, max_len=settings.data.max_len) for answer in answers
        ]
        status, step = trainer.train_step(samples, step)
        trainer.save_logs_and_checkpoints(step, status, {})
        trainer.save_best_checkpoint({"eval_default_pass1": 0.5}, step)
    return logged


def main(options: dict[str, Any]) -> None:
    cpu.prepare()
    if options["record"]:
        from rl_doctor.collectors.openrlhf import install

        install(options["record"])
    import deepspeed
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    settings = arguments({"actor.num_gpus_per_node": ranks, "critic.num_gpus_per_node": ranks, **options["args"]})
    folder = shared_model(rank, ranks)
    plan = strategy(settings)
    torch.manual_seed(settings.train.seed)
    groups, trainers = models(settings, plan, folder)
    logged: list[dict[str, float]] = []
    if rank == 0:
        logged = drive(settings, plan, groups, options)
        if ranks > 1:
            torch.distributed.broadcast_object_list([None], src=0)
    else:
        serve(groups)
    weights = hashlib.sha256()
    for model in (getattr(trainer, name) for trainer, name in zip(trainers, ("actor", "critic"), strict=False)):
        for name, tensor in sorted(model.state_dict().items()):
            weights.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    if rank == 0:
        result = {
            "weights": weights.hexdigest(),
            "log": logged,
            "rng": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
        }
        sys.stdout.write("RESULT " + json.dumps(result) + "\n")
    if ranks > 1:
        torch.distributed.barrier()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(OPTIONS | json.loads(sys.argv[1]))
