"""TRL: GRPO, RLOO, PPO, preference, reward-model and supervised trainers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.dialects.registry import Bounds, Lookup, Name, Trainer, Version, matching, trainer

PREFERENCE: Final = frozenset({"dpo", "kto", "orpo", "cpo"})
_RLOO: Final = frozenset({"rloo"})
_ASYNC: Final = frozenset({"async_grpo"})
_PPO: Final = frozenset({"ppo"})
_REWARD: Final = frozenset({"reward_model"})
_SFT: Final = frozenset({"sft"})


def _of_batch(logged: Lookup) -> bool | None:
    """Whether ``reward_std`` is that of the batch, as the only reward function's is; None with several or none."""
    total, single = logged("reward_std"), logged("rewards/{function}/std")
    reward, own = logged("reward"), logged("rewards/{function}/mean")
    if total is None or single is None or reward is None or own is None:
        return None
    steps = np.intersect1d(np.intersect1d(total[0], single[0]), np.intersect1d(reward[0], own[0]))
    spread, other, mean, part = (values[np.isin(at, steps)] for at, values in (total, single, reward, own))
    told = np.isfinite(spread) & np.isfinite(other) & (other > 0.0) & (part != 0.0)
    if not told.any():
        return None
    weight = float(np.median(mean[told] / part[told]))
    return bool(np.allclose(spread[told], abs(weight) * other[told], rtol=5e-3))


def _batch_deviation(logged: Lookup) -> bool:
    return _of_batch(logged) is True


def _group_deviation(logged: Lookup) -> bool:
    return _of_batch(logged) is False


def _refine(algorithm: str, logged: Lookup) -> str:
    """RLOO logs the names of GRPO, but its ``kl`` is signed."""
    kl = logged("kl")
    return "rloo" if algorithm == "grpo" and kl is not None and bool((kl[1] < 0.0).any()) else algorithm


def _dated(names: Collection[str]) -> Bounds:
    """What the names tell of the version. One that is not there tells nothing: it may have been left out of an export."""
    functions = [name for name in matching("rewards/{function}", names) if name.rpartition("_")[2] not in _NO_FUNCTION]
    if functions:
        return Bounds(None, (0, 17))
    newest = [version for native, version in _SINCE.items() if matching(native, names)]
    return Bounds(max(newest, default=None))


def _where_penalised(logged: Lookup) -> bool:
    """Whether a KL is logged only where a KL term is on. Unsloth, which keeps the old name of the length, always logs one."""
    return logged("completion_length") is None or logged("completions/mean_length") is None


_NO_FUNCTION: Final = frozenset({"mean", "std", "chosen", "rejected", "margins", "accuracies"})
_SINCE: Final[Mapping[str, Version]] = {
    "rewards/{function}/std": (0, 17),
    "frac_reward_zero_std": (0, 18),
    "sampling/sampling_logp_difference/mean": (0, 23),
    "tools/call_frequency": (0, 26),
    "step_time": (0, 26),
    "policy_loss": (1, 9),
}

_NAMES: Final = (
    Name("loss", "pref.loss", algorithms=PREFERENCE | _REWARD),
    Name("rewards/chosen", "pref.chosen_reward", algorithms=PREFERENCE),
    Name("rewards/rejected", "pref.rejected_reward", algorithms=PREFERENCE),
    Name("rewards/margins", "pref.margin", algorithms=PREFERENCE),
    Name("rewards/accuracies", "pref.accuracy", algorithms=PREFERENCE),
    Name("logps/chosen", "pref.chosen_logprob", algorithms=PREFERENCE),
    Name("logps/rejected", "pref.rejected_logprob", algorithms=PREFERENCE),
    Name("margin", "pref.margin", algorithms=_REWARD),
    Name("accuracy", "pref.accuracy", algorithms=_REWARD),
    Name("mean_reward", None, algorithms=_REWARD, note="is the score of the reward model being trained: nothing is rewarded"),
    Name("min_reward", None, algorithms=_REWARD),
    Name("max_reward", None, algorithms=_REWARD),
    Name("loss", "sft.loss", algorithms=_SFT),
    Name("entropy", None, algorithms=PREFERENCE | _SFT, note="falls by design: no policy samples here"),
    Name("mean_token_accuracy", None),
    Name("kl", None, algorithms=PREFERENCE),
    Name("kl", "ref.kl_k1", algorithms=_RLOO, measured=True, note="is signed (k1): it may be negative"),
    Name(
        "kl", "mismatch.k3", algorithms=_ASYNC, measured=True,
        note="is between the policy and the one that sampled, not to a reference",
    ),
    Name("kl", "ref.kl", measured=True, holds=_where_penalised),
    Name("kl", "ref.kl"),
    Name("entropy", "policy.entropy"),
    Name("reward", "reward.mean"),
    Name("reward_std", "reward.std", since=(0, 27)),
    Name(
        "reward_std", "group.std_mean", until=(0, 27),
        note="is the mean of the groups' standard deviations in this version, not that of the batch",
    ),
    Name("reward_std", "reward.std", holds=_batch_deviation),
    Name(
        "reward_std", "group.std_mean", holds=_group_deviation,
        note="is the mean of the groups' standard deviations: across prompts the reward varies otherwise",
    ),
    Name(
        "reward_std", "reward.spread",
        note="is that of the batch from TRL 0.27 on and the mean over groups before: which it is here is not known",
    ),
    Name("frac_reward_zero_std", "group.zero_std_frac"),
    Name("rewards/{function}/mean", "reward.component.{function}.mean"),
    Name("rewards/{function}/std", "reward.component.{function}.std"),
    Name("rewards/{function}", "reward.component.{function}.mean"),
    Name("policy_loss", "policy.loss_pg"),
    Name("loss", "policy.loss_total"),
    Name("ratio", "policy.ratio_mean", algorithms=_ASYNC),
    Name("clip_ratio/region_mean", "policy.clip_frac"),
    Name("clip_ratio", "policy.clip_frac"),
    Name("clip_ratio/low_mean", "policy.clip_frac_low"),
    Name("clip_ratio/high_mean", "policy.clip_frac_high"),
    Name("cispo_clip_ratio", "policy.clip_frac"),
    Name("completions/mean_length", "length.mean", measured=True),
    Name("completion_length", "length.mean"),
    Name("completions/max_length", "length.max"),
    Name("completions/min_length", "length.min"),
    Name("completions/clipped_ratio", "length.truncated_frac"),
    Name("sampling/sampling_logp_difference/mean", "mismatch.abs"),
    Name("sampling/sampling_logp_difference/max", "mismatch.abs_max"),
    Name("sampling/importance_sampling_ratio/mean", "mismatch.is_weight_mean"),
    Name("sample/staleness_mean", "stale.mean"),
    Name("sample/staleness_max", "stale.max"),
    Name("grad_norm", "optim.grad_norm"),
    Name("learning_rate", "optim.learning_rate"),
    Name("objective/scores", "reward.score_mean", algorithms=_PPO),
    Name("objective/rlhf_reward", "reward.mean", algorithms=_PPO),
    Name("ppo/mean_scores", "reward.score_mean", algorithms=_PPO),
    Name("env/reward_mean", "reward.mean", algorithms=_PPO),
    Name("env/reward_std", "reward.std", algorithms=_PPO),
    Name("ppo/std_scores", "reward.score_std", algorithms=_PPO),
    Name(
        "objective/kl", "ref.kl_sequence", algorithms=_PPO, measured=True,
        note="is the sum over a response, not the mean over tokens",
    ),
    Name("policy/entropy_avg", "policy.entropy", algorithms=_PPO),
    Name("ppo/policy/entropy", "policy.entropy", algorithms=_PPO),
    Name(
        "objective/entropy", "policy.entropy_sequence", algorithms=_PPO,
        note="is the sum over a response, not the mean over tokens",
    ),
    Name("policy/approxkl_avg", "policy.kl_old_k2", algorithms=_PPO),
    Name("ppo/policy/approxkl", "policy.kl_old_k2", algorithms=_PPO),
    Name("ppo/policy/policykl", "policy.kl_old_k1", algorithms=_PPO),
    Name("policy/clipfrac_avg", "policy.clip_frac", algorithms=_PPO),
    Name("ppo/policy/clipfrac", "policy.clip_frac", algorithms=_PPO),
    Name("val/ratio", "policy.ratio_mean", algorithms=_PPO),
    Name("ppo/policy/ratio", None, algorithms=_PPO),
    Name("loss/policy_avg", "policy.loss_pg", algorithms=_PPO),
    Name("ppo/loss/policy", "policy.loss_pg", algorithms=_PPO),
    Name("loss/value_avg", "value.loss", algorithms=_PPO),
    Name("ppo/loss/value", "value.loss", algorithms=_PPO),
    Name("val/clipfrac_avg", "value.clip_frac", algorithms=_PPO),
    Name("ppo/val/clipfrac", "value.clip_frac", algorithms=_PPO),
    Name("ppo/val/var_explained", "value.explained_var", algorithms=_PPO),
    Name("ppo/val/mean", "value.mean", algorithms=_PPO),
    Name("ppo/policy/advantages_mean", "adv.mean", algorithms=_PPO),
    Name("ppo/returns/mean", "return.mean", algorithms=_PPO),
    Name("tokens/responses_len_mean", "length.mean", algorithms=_PPO),
    Name("lr", "optim.learning_rate", algorithms=_PPO),
    Name("ppo/learning_rate", "optim.learning_rate", algorithms=_PPO),
)  # fmt: skip

TRL: Final = trainer(Trainer(
    name="trl",
    label="TRL",
    source="TRL 0.9 to 1.16, the metrics of each trainer",
    names=_NAMES,
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
    caps={"mismatch.is_weight_mean": ("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max")},
))  # fmt: skip
