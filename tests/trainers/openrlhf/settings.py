"""OpenRLHF's arguments, as its command makes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

DEFAULTS: Mapping[str, Any] = {
    "local_rank": -1,
    "actor.num_nodes": 1, "actor.num_gpus_per_node": 1, "actor.eps_clip": 0.2, "actor.eps_clip_low_high": (0.2, 0.2),
    "actor.dual_clip": None, "actor.loss_agg_mode": "token-mean", "actor.policy_loss_type": "ppo", "actor.aux_loss_coef": 0,
    "actor.entropy_coef": None, "actor.gradient_checkpointing_enable": False, "actor.max_norm": 1.0, "actor.optim": "adam",
    "actor.adam.lr": 5e-3, "actor.adam.betas": (0.9, 0.95), "actor.adam.eps": 1e-8, "actor.adam.weight_decay": 0.0,
    "critic.num_nodes": 1, "critic.num_gpus_per_node": 1, "critic.value_clip": 0.5, "critic.freezing_steps": -1,
    "critic.adam.lr": 5e-3,
    "algo.kl.init_coef": 0.01, "algo.kl.target": None, "algo.kl.horizon": 10000, "algo.kl.estimator": "k1",
    "algo.kl.use_loss": False, "algo.kl.unbiased_gradient": False,
    "algo.advantage.estimator": "group_norm", "algo.advantage.gamma": 1.0, "algo.advantage.lambd": 1.0,
    "algo.advantage.no_std_norm": False, "algo.advantage.is_correction_level": "off",
    "algo.advantage.is_correction_mode": "mask", "algo.advantage.is_correction_gating": "ratio",
    "algo.advantage.is_correction_threshold": [0.5, 5.0], "algo.dynamic_filtering_enable": False,
    "algo.dynamic_filtering_range": (0, 1),
    "data.max_len": 24,
    "ds.packing_samples": False, "ds.zero_stage": 0, "ds.param_dtype": "fp32", "ds.ring_attn_size": 1,
    "ds.tensor_parallel_size": 1,
    "reward.clip_range": (-10, 10), "reward.overlong_buffer_len": None, "reward.overlong_penalty_factor": 1,
    "reward.stop_properly_penalty_coef": None,
    "rollout.batch_size": 4, "rollout.n_samples_per_prompt": 4, "rollout.micro_batch_size": 4, "rollout.max_new_tokens": 16,
    "rollout.temperature": 1.0, "rollout.top_p": 1.0, "rollout.max_tokens_per_gpu": 64,
    "train.batch_size": 8, "train.micro_batch_size": 2, "train.max_epochs": 2, "train.dynamic_batch_enable": False,
    "train.max_tokens_per_gpu": 64, "train.async_enable": False, "train.colocate_all": False,
    "train.colocate_actor_ref": False, "train.colocate_critic_reward": False, "train.seed": 7,
    "vllm.sync_backend": "gloo", "vllm.enable_sleep": False, "ds.enable_sleep": False,
    "logger.wandb.key": None, "logger.tensorboard_dir": None, "logger.logging_steps": 1,
    "ckpt.save_steps": float("inf"), "ckpt.best_metric_key": "",
}  # fmt: skip


def arguments(own: Mapping[str, Any]) -> SimpleNamespace:
    """The arguments, with those that differ from ``DEFAULTS`` by dotted name."""
    from openrlhf.utils.config import hierarchize

    found: SimpleNamespace = hierarchize(SimpleNamespace(**{**DEFAULTS, **own}))
    return found
