"""OpenRLHF's arguments in canonical terms (OpenRLHF 0.11, ``openrlhf.cli.train_ppo_ray``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rl_doctor.schema import RunConfig, RunInfo

_NATIVE: Final = (
    "actor.eps_clip_low_high", "actor.dual_clip", "actor.policy_loss_type", "actor.loss_agg_mode", "actor.entropy_coef",
    "actor.aux_loss_coef", "actor.gradient_checkpointing_enable", "actor.adam.lr",
    "actor.lr_warmup_ratio", "actor.max_norm", "actor.optim",
    "algo.kl.init_coef", "algo.kl.estimator", "algo.kl.use_loss", "algo.kl.target", "algo.kl.unbiased_gradient",
    "algo.advantage.estimator", "algo.advantage.gamma", "algo.advantage.lambd", "algo.advantage.no_std_norm",
    "algo.advantage.is_correction_level", "algo.advantage.is_correction_mode", "algo.advantage.is_correction_gating",
    "algo.advantage.is_correction_threshold", "algo.dynamic_filtering_enable", "algo.dynamic_filtering_range",
    "critic.value_clip", "critic.freezing_steps", "critic.adam.lr", "data.max_len",
    "ds.lora.rank", "ds.packing_samples", "ds.param_dtype", "ds.ring_attn_size", "ds.tensor_parallel_size", "ds.zero_stage",
    "reward.clip_range", "reward.overlong_buffer_len", "reward.overlong_penalty_factor", "reward.stop_properly_penalty_coef",
    "rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.micro_batch_size", "rollout.max_new_tokens",
    "rollout.temperature", "rollout.top_p",
    "train.batch_size", "train.micro_batch_size", "train.max_epochs", "train.dynamic_batch_enable", "train.async_enable",
    "train.partial_rollout_enable", "train.seed",
)  # fmt: skip
"""Arguments that the numbers depend on; none of them names a person, a key or a path."""
_ESTIMATORS: Final[Mapping[str, str]] = {
    "gae": "gae",
    "reinforce": "reinforce_plus_plus",  # without a baseline, whitened over the batch
    "reinforce_baseline": "reinforce_plus_plus",
    "rloo": "rloo",
    "group_norm": "grpo",
    "dr_grpo": "dr_grpo",
    "flash_reinforce": "flash_reinforce",
}
_ALGORITHMS: Final[Mapping[str, str]] = {"gae": "ppo", "group_norm": "grpo", "flash_reinforce": "reinforce"}
_LOG_RATIO_CLAMP: Final = 20.0
_KL_CLAMP: Final = 10.0


def describe(trainer: Any, version: str) -> RunInfo:
    """What ``run.json`` says of a run.

    Args:
        trainer: OpenRLHF's ``BasePPOTrainer``.
        version: OpenRLHF's version.

    Raises:
        AttributeError, TypeError, ValueError: its arguments have another form.
    """
    args = trainer.args
    ranks = data_parallel_ranks(args)
    settings = of_args(args)
    estimator, loss = str(settings["algo.advantage.estimator"]), str(settings["actor.policy_loss_type"])
    return RunInfo(
        trainer="openrlhf",
        trainer_version=version,
        algorithm="gspo" if loss == "gspo" else _ALGORITHMS.get(estimator, _ESTIMATORS.get(estimator, estimator)),
        world_size=ranks,
        writing_ranks=tuple(range(ranks + 1)),  # the controller writes as 0, each data-parallel rank as its number plus 1
        logprob_dtype="float32",  # the model's logits are converted before
        pad_token_id=getattr(trainer.tokenizer, "pad_token_id", None),
        eos_token_ids=_ids(getattr(trainer.tokenizer, "eos_token_id", None)),
        config=of_settings(settings),
    )


def data_parallel_ranks(args: Any) -> int:
    """Number of data-parallel ranks that train the policy."""
    copies = int(args.ds.ring_attn_size) * int(args.ds.tensor_parallel_size)
    return int(args.actor.num_nodes) * int(args.actor.num_gpus_per_node) // copies


def critic_ranks(args: Any) -> int:
    """Number of data-parallel ranks that train the critic."""
    copies = int(args.ds.ring_attn_size) * int(args.ds.tensor_parallel_size)
    return int(args.critic.num_nodes) * int(args.critic.num_gpus_per_node) // copies


def of_args(args: Any) -> dict[str, Any]:
    """The arguments by dotted name, as far as they are there."""
    found: dict[str, Any] = {}
    for name in _NATIVE:
        value = args
        for part in name.split("."):
            value = getattr(value, part, None)
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def of_settings(settings: Mapping[str, Any]) -> RunConfig:
    """The arguments in canonical terms.

    Args:
        settings: by dotted name, as ``of_args`` gives them.

    Raises:
        TypeError, ValueError: a value is not what the argument takes.
    """
    low, high = settings["actor.eps_clip_low_high"]
    estimator, loss = str(settings["algo.advantage.estimator"]), str(settings["actor.policy_loss_type"])
    level = str(settings["algo.advantage.is_correction_level"])
    samples = _whole(settings["rollout.n_samples_per_prompt"]) or 1
    prompts, batch = _whole(settings["rollout.batch_size"]), _whole(settings["train.batch_size"])
    grouped = estimator == "group_norm"
    whitened = estimator in {"gae", "reinforce", "reinforce_baseline"} and not settings["algo.advantage.no_std_norm"]
    return RunConfig(
        clip_low=float(low),
        clip_high=float(high),
        dual_clip=_number(settings["actor.dual_clip"]),
        log_ratio_clamp=_LOG_RATIO_CLAMP if loss == "ppo" else None,
        kl_coef=_number(settings["algo.kl.init_coef"]) if settings["algo.kl.target"] is None else None,
        kl_estimator=settings["algo.kl.estimator"],
        kl_in_reward=not settings["algo.kl.use_loss"],
        kl_output_clamp=_KL_CLAMP,
        entropy_coef=_number(settings["actor.entropy_coef"]),
        loss_agg="seq-mean-token-mean" if loss == "gspo" else settings["actor.loss_agg_mode"],
        adv_estimator=_ESTIMATORS.get(estimator, estimator),
        adv_eps=1e-9 if grouped else None,
        adv_ddof=1 if grouped else 0 if whitened else None,
        adv_norm="group" if grouped else "batch" if whitened else "none",
        gamma=_number(settings["algo.advantage.gamma"]) if estimator in {"gae", "reinforce"} else 1.0,
        lam=_number(settings["algo.advantage.lambd"]) if estimator == "gae" else None,
        value_clip=_number(settings["critic.value_clip"]) if estimator == "gae" else None,
        temperature=_number(settings["rollout.temperature"]),
        top_p=_number(settings["rollout.top_p"]),
        max_response_length=_whole(settings["rollout.max_new_tokens"]),
        group_size=samples,
        epochs=_whole(settings["train.max_epochs"]),
        minibatches=max(1, prompts * samples // batch) if prompts and batch else None,
        max_grad_norm=_number(settings["actor.max_norm"]),
        is_correction="none" if level == "off" else f"{level}_{settings['algo.advantage.is_correction_mode']}",
        native=settings,
    )


def _ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    return tuple(int(token) for token in value) if isinstance(value, (list, tuple)) else (int(value),)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
