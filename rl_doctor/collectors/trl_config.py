"""TRL's configuration in canonical terms (TRL 1.16, ``GRPOConfig`` and ``RLOOConfig``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rl_doctor.schema import RunConfig, RunInfo

_LOSS_AGGREGATION: Final[Mapping[str, str]] = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "vespo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}
_CLIPPED: Final = frozenset({"grpo", "bnpo", "dr_grpo", "dapo", "luspo"})
_NATIVE: Final = (
    "loss_type", "importance_sampling_level", "use_bias_correction_kl", "delta", "epsilon", "epsilon_high", "beta",
    "scale_rewards", "multi_objective_aggregation", "normalize_advantages", "reward_clip_range", "mask_truncated_completions",
    "off_policy_mask_threshold", "top_entropy_quantile", "entropy_coef", "use_adaptive_entropy", "entropy_target",
    "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg",
    "use_vllm", "vllm_mode", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max", "use_transformers_continuous_batching",
    "num_generations", "num_iterations", "steps_per_generation", "generation_batch_size", "gradient_accumulation_steps",
    "per_device_train_batch_size", "max_completion_length", "pad_to_multiple_of", "temperature", "top_p", "top_k", "min_p",
    "repetition_penalty", "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps", "disable_dropout",
    "shuffle_dataset", "logging_steps", "logging_first_step", "logging_nan_inf_filter", "max_steps", "num_train_epochs",
    "learning_rate", "max_grad_norm", "weight_decay", "bf16", "fp16", "gradient_checkpointing", "seed",
)  # fmt: skip


def describe(trainer: Any, algorithm: str, version: str) -> RunInfo:
    """What ``run.json`` says of a run of the trainer.

    Args:
        trainer: a ``GRPOTrainer`` or ``RLOOTrainer``.
        algorithm: ``grpo`` or ``rloo``.
        version: TRL's version.
    """
    processes = int(trainer.accelerator.num_processes)
    model_config = getattr(trainer.model, "config", None)
    return RunInfo(
        trainer="trl",
        trainer_version=version,
        algorithm=algorithm,
        world_size=processes,
        writing_ranks=tuple(range(processes)),
        pad_token_id=trainer.processing_class.pad_token_id
        if not hasattr(trainer, "_tokenizer")
        else trainer._tokenizer.pad_token_id,  # noqa: SLF001
        eos_token_ids=tuple(int(token) for token in trainer.eos_token_ids),
        vocab_size=getattr(model_config, "vocab_size", None),
        config=_grpo(trainer) if algorithm == "grpo" else _rloo(trainer),
    )


def _grpo(trainer: Any) -> RunConfig:
    args = trainer.args
    loss_type = str(args.loss_type)
    clipped = loss_type in _CLIPPED
    return RunConfig(
        clip_low=float(trainer.epsilon_low) if clipped else None,
        # CISPO's bound is the largest ratio itself, not its distance from 1.
        clip_high=float(trainer.epsilon_high) - (loss_type == "cispo") if clipped or loss_type == "cispo" else None,
        kl_estimator="k3",
        kl_in_reward=False,
        entropy_coef=None if args.use_adaptive_entropy else float(args.entropy_coef),
        loss_agg=_LOSS_AGGREGATION.get(loss_type),
        adv_estimator="dr_grpo" if trainer.scale_rewards == "none" else "grpo",
        adv_norm=str(trainer.scale_rewards),
        is_correction=args.vllm_importance_sampling_mode
        if args.use_vllm and args.vllm_importance_sampling_correction
        else "none",
        **_shared(trainer),
    )


def _rloo(trainer: Any) -> RunConfig:
    return RunConfig(
        clip_low=float(trainer.epsilon_low),
        clip_high=float(trainer.epsilon_high),
        kl_estimator="k1",
        kl_in_reward=True,
        adv_estimator="rloo",
        adv_norm="batch" if trainer.normalize_advantages else "none",
        is_correction="none",
        **_shared(trainer),
    )


def _shared(trainer: Any) -> dict[str, Any]:
    args = trainer.args
    accumulation, per_generation = int(args.gradient_accumulation_steps), int(args.steps_per_generation)
    weights = [float(weight) for weight in trainer.reward_weights.tolist()]
    native = {name: _plain(getattr(args, name)) for name in _NATIVE if hasattr(args, name)}
    native["trainer_class"] = f"{type(trainer).__module__}.{type(trainer).__qualname__}"
    return {
        "kl_coef": float(args.beta),
        "adv_eps": 1e-4,
        "adv_ddof": 1,
        "temperature": float(args.temperature),
        "top_p": float(args.top_p),
        "top_k": int(args.top_k or 0),
        "max_response_length": args.max_completion_length,
        "group_size": int(args.num_generations),
        "epochs": int(args.num_iterations),
        "minibatches": max(1, per_generation // accumulation) if per_generation % accumulation == 0 else None,
        "max_grad_norm": float(args.max_grad_norm),
        "reward_weights": dict(zip(trainer.reward_func_names, weights, strict=True)),
        "native": native,
    }


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return getattr(value, "value", value)
    return str(value)
