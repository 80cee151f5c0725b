"""TRL: GRPO, RLOO, PPO, preference, reward-model and supervised trainers. Their names stand in ``trl_policy`` and its like."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from rl_doctor.analyzer.dialects.registry import Bounds, Lookup, Trainer, Version, matching, together, trainer
from rl_doctor.analyzer.dialects.trl_async import ASYNC_NAMES
from rl_doctor.analyzer.dialects.trl_async import STAGES as ASYNC_STAGES
from rl_doctor.analyzer.dialects.trl_policy import POLICY_NAMES, STAGES, signed_kl
from rl_doctor.analyzer.dialects.trl_ppo import PPO_NAMES
from rl_doctor.analyzer.dialects.trl_preference import PREFERENCE_NAMES


def _refine(algorithm: str, logged: Lookup) -> str | None:
    """RLOO logs the names of GRPO, but its ``kl`` is signed: below 0 it is RLOO's, or another estimate of GRPO's, or a fault."""
    return None if algorithm == "grpo" and signed_kl(logged) else algorithm


def _dated(names: Collection[str]) -> Bounds:
    """What the names tell of the version. One that is not there tells nothing: it may have been left out of an export."""
    functions = [name for name in matching("rewards/{function}", names) if name.rpartition("_")[2] not in _NO_FUNCTION]
    if functions:
        return Bounds(None, (0, 17))
    newest = [version for native, version in _SINCE.items() if together(native, names)]
    return Bounds(max(newest, default=None))


_NO_FUNCTION: Final = frozenset({"mean", "std", "chosen", "rejected", "margins", "accuracies"})
_SINCE: Final[Mapping[str, Version]] = {
    "rewards/{function}/std": (0, 17),
    "completions/mean_length": (0, 17),
    "clip_ratio/region_mean": (0, 17),
    "frac_reward_zero_std": (0, 18),
    "sampling/sampling_logp_difference/mean": (0, 23),
    "cispo_clip_ratio": (0, 26),
    "tools/call_frequency": (0, 26),
    "step_time": (0, 26),
    "vespo/phi_seq_mean": (1, 0),
    "policy_loss+entropy_coef": (1, 8),
}

_READS: Final = (
    "beta", "delta", "entropy_coef", "epsilon", "epsilon_high", "f_divergence_type", "gradient_accumulation_steps",
    "importance_sampling_level", "label_smoothing", "ld_alpha", "loss_type", "loss_weights", "mask_truncated_completions",
    "max_completion_length", "multi_objective_aggregation", "off_policy_mask_threshold", "per_device_train_batch_size",
    "sapo_temperature_neg", "sapo_temperature_pos", "scale_rewards", "steps_per_generation", "top_entropy_quantile",
    "use_adaptive_entropy", "use_bias_correction_kl", "use_liger_kernel", "use_liger_loss", "use_vllm", "use_weighting",
    "vespo_k_neg", "vespo_k_pos", "vespo_lambda_neg", "vespo_lambda_pos", "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
)  # fmt: skip
"""Members of ``config.native`` that ``recompute/trl`` reads."""

TRL: Final = trainer(Trainer(
    name="trl",
    label="TRL",
    source="TRL 0.9 to 1.16, the metrics of each trainer",
    names=(*PREFERENCE_NAMES, *ASYNC_NAMES, *POLICY_NAMES, *PPO_NAMES),
    marks=(
        "completions/mean_length", "completion_length", "frac_reward_zero_std", "clip_ratio/region_mean",
        "completions/clipped_ratio", "rewards/{function}", "sampling/sampling_logp_difference/mean", "rewards/margins",
        "rewards/chosen", "logps/chosen", "logits/chosen", "mean_token_accuracy", "num_tokens", "objective/scores",
        "objective/rlhf_reward", "objective/kl", "policy/approxkl_avg", "ppo/mean_scores", "ppo/policy/approxkl",
        "min_reward+max_reward+margin", "log_odds_ratio", "odds_ratio_loss",
    ),
    kinds={
        "orpo": ("log_odds_ratio", "odds_ratio_loss"),
        "dpo": ("rewards/margins+rewards/accuracies", "rewards/chosen+rewards/accuracies"),
        "kto": ("rewards/chosen", "rewards/rejected", "logps/chosen"),
        "ppo": ("objective/kl", "objective/scores", "ppo/mean_scores"),
        "async_grpo": ("sample/staleness_mean", "batch/groups_per_step"),
        "grpo": (
            "completions/mean_length+reward", "completion_length+reward", "frac_reward_zero_std", "rewards/{function}+reward",
        ),
        "reward_model": ("min_reward+max_reward+margin",),
        "sft": ("mean_token_accuracy",),
    },
    refine=_refine,
    dated=_dated,
    validation=(
        ("eval_rewards/accuracies", "eval_accuracy", "eval_mean_token_accuracy"),
        ("eval_reward",),
        ("eval_{source}_reward",),
    ),
    reads=_READS,
    stages={**STAGES, **ASYNC_STAGES},
    caps={"mismatch.is_weight_mean": ("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max")},
))  # fmt: skip
