"""TRL's configuration in canonical terms (TRL 1.16, ``GRPOConfig`` and ``RLOOConfig``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    "learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "max_prompt_length", "vllm_max_model_length",
    "max_grad_norm", "weight_decay", "bf16", "fp16", "gradient_checkpointing", "seed",
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
        config=_of_trainer(trainer, algorithm),
    )


def _of_trainer(trainer: Any, algorithm: str) -> RunConfig:
    settings = {name: _plain(getattr(trainer.args, name)) for name in _NATIVE if hasattr(trainer.args, name)}
    weights = [float(weight) for weight in trainer.reward_weights.tolist()]
    native = {
        **settings,
        "trainer_class": f"{type(trainer).__module__}.{type(trainer).__qualname__}",
        "use_peft": bool(getattr(trainer.model, "peft_config", None)),
    }
    return replace(
        of_settings(settings, algorithm),
        reward_weights=dict(zip(trainer.reward_func_names, weights, strict=True)),
        native=native,
    )


def algorithm_of(settings: Mapping[str, Any]) -> str | None:
    """``grpo`` or ``rloo``, whose arguments these are; None where they are of neither."""
    if not {"num_generations", "max_completion_length", "beta"} <= settings.keys():
        return None
    return "rloo" if "normalize_advantages" in settings else "grpo" if "loss_type" in settings else None


def of_settings(settings: Mapping[str, Any], algorithm: str) -> RunConfig:
    """The arguments of a trainer in canonical terms.

    Args:
        settings: ``GRPOConfig`` or ``RLOOConfig`` by name, as the object has them once it is made; what another version does not
            have is unknown.
        algorithm: ``grpo`` or ``rloo``.

    Raises:
        TypeError, ValueError, ArithmeticError: a value is not what the argument takes.
    """
    own = _grpo(settings) if algorithm == "grpo" else _rloo(settings)
    accumulation, per_generation = (
        _number(settings.get(name)) for name in ("gradient_accumulation_steps", "steps_per_generation")
    )
    return replace(
        own,
        kl_coef=_number(settings.get("beta")),
        adv_eps=1e-4,
        adv_ddof=1,
        temperature=_number(settings.get("temperature")),
        top_p=_number(settings.get("top_p")),
        top_k=_whole(settings["top_k"] or 0) if "top_k" in settings else None,
        max_response_length=_whole(settings.get("max_completion_length")),
        group_size=_whole(settings.get("num_generations")),
        epochs=_whole(settings.get("num_iterations")),
        minibatches=max(1, int(per_generation // accumulation))
        if per_generation and accumulation and per_generation % accumulation == 0
        else None,
        max_grad_norm=_number(settings.get("max_grad_norm")),
    )


def _grpo(settings: Mapping[str, Any]) -> RunConfig:
    loss_type = str(settings.get("loss_type"))
    low, high = _clip(settings) if loss_type in _CLIPPED or loss_type == "cispo" else (None, None)
    scaled = settings.get("scale_rewards")
    scaling = None if scaled is None else {True: "group", False: "none"}.get(scaled, str(scaled))
    corrected = settings.get("use_vllm") and settings.get("vllm_importance_sampling_correction")
    return RunConfig(
        clip_low=None if loss_type == "cispo" else low,
        # CISPO's bound is the largest ratio itself, not its distance from 1.
        clip_high=None if high is None else high - (loss_type == "cispo"),
        kl_estimator="k3",
        kl_in_reward=False,
        entropy_coef=None if settings.get("use_adaptive_entropy") else _number(settings.get("entropy_coef")),
        loss_agg=_LOSS_AGGREGATION.get(loss_type),
        adv_estimator="dr_grpo" if scaling == "none" else "grpo",
        adv_norm=scaling,
        is_correction=settings.get("vllm_importance_sampling_mode") if corrected else "none",
    )


def _rloo(settings: Mapping[str, Any]) -> RunConfig:
    low, high = _clip(settings)
    return RunConfig(
        clip_low=low,
        clip_high=high,
        kl_estimator="k1",
        kl_in_reward=True,
        adv_estimator="rloo",
        adv_norm="batch" if settings.get("normalize_advantages") else "none",
        is_correction="none",
    )


def _clip(settings: Mapping[str, Any]) -> tuple[float | None, float | None]:
    low, high = _number(settings.get("epsilon")), _number(settings.get("epsilon_high"))
    return low, low if high is None else high


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return getattr(value, "value", value)
    return str(value)
