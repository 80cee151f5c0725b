"""What trainers log, by name: enough of a real log of each to be recognised by, and what the names mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rl_doctor.analyzer.logged import LOGGED_FAMILIES, Logged
from rl_doctor.analyzer.registry import metrics
from rl_doctor.schema import RunInfo
from rl_doctor.store.metric_log import MetricLog, split_of

STEPS: Final = 20


@dataclass(frozen=True)
class Log:
    """Names of a log.

    Attributes:
        trainer: who is recognised, or None.
        algorithm: what is recognised, or None.
        means: native name -> canonical metric, or None for one that means no metric.
        beside: further names, of times and sizes.
    """

    trainer: str | None
    algorithm: str | None
    means: Mapping[str, str | None]
    beside: str = ""

    def names(self) -> list[str]:
        return [*self.means, *self.beside.split()]


def log(values: Mapping[str, object]) -> MetricLog:
    """A log of ``STEPS`` steps; a value is one number for all of them, or one for each."""
    steps = np.arange(1, STEPS + 1)
    return MetricLog(
        {(name, split_of(name)): (steps, np.broadcast_to(np.asarray(value, np.float64), STEPS)) for name, value in values.items()}
    )


def varied(names: list[str]) -> dict[str, object]:
    """A different series for each name, none of them constant."""
    return {name: 0.01 * (index + 1) + np.pi / 1000 * np.arange(STEPS) for index, name in enumerate(names)}


def read(values: Mapping[str, object], info: RunInfo | None = None) -> Logged:
    """The log, read."""
    return Logged(log(values), RunInfo() if info is None else info)


def meanings(found: Logged) -> dict[str, list[float]]:
    """Every metric that the log has, with its values."""
    names = [*metrics(), *(name for prefix in LOGGED_FAMILIES for name in found.family(prefix))]
    return {name: series.values.tolist() for name in names if (series := found.series(name, "1")) is not None}


TRL_GRPO: Final = Log(
    "trl", "grpo",
    {
        "loss": "policy.loss_total", "grad_norm": "optim.grad_norm", "learning_rate": "optim.learning_rate",
        "completions/mean_length": "length.mean", "completions/min_length": "length.min", "completions/max_length": "length.max",
        "completions/clipped_ratio": "length.truncated_frac", "completions/mean_terminated_length": "length.ended_mean",
        "rewards/accuracy_reward/mean": "reward.component.accuracy_reward.mean",
        "rewards/accuracy_reward/std": "reward.component.accuracy_reward.std",
        "rewards/format_reward/mean": "reward.component.format_reward.mean",
        "rewards/format_reward/std": "reward.component.format_reward.std",
        "reward": "reward.mean", "reward_std": "reward.spread", "frac_reward_zero_std": "group.zero_std_frac", "kl": "ref.kl",
        "entropy": "policy.entropy", "clip_ratio/low_mean": "policy.clip_frac_low",
        "clip_ratio/low_min": "policy.clip_frac_low_min",
        "clip_ratio/high_mean": "policy.clip_frac_high", "clip_ratio/high_max": "policy.clip_frac_high_max",
        "clip_ratio/region_mean": "policy.clip_frac",
        "sampling/sampling_logp_difference/mean": "mismatch.abs", "sampling/sampling_logp_difference/max": "mismatch.abs_max",
        "sampling/importance_sampling_ratio/mean": "mismatch.is_weight_mean", "sampling/importance_sampling_ratio/min": None,
        "eval_reward": "val.mean_at_n", "eval_reward_std": None, "eval_loss": None, "eval_kl": None,
        "eval_rewards/accuracy_reward/mean": None,
    },
    "num_tokens epoch step_time eval_runtime eval_samples_per_second eval_steps_per_second",
)  # fmt: skip
TRL_OLD: Final = Log(
    "trl", "grpo",
    {
        "loss": "policy.loss_total", "grad_norm": "optim.grad_norm", "learning_rate": "optim.learning_rate",
        "rewards/correctness_reward_func": "reward.component.correctness_reward_func.mean",
        "rewards/xmlcount_reward_func": "reward.component.xmlcount_reward_func.mean",
        "reward": "reward.mean", "reward_std": "group.std_mean", "completion_length": "length.mean", "kl": "ref.kl",
    },
    "epoch",
)  # fmt: skip
TRL_TABLE: Final = Log(
    "trl", "grpo",
    {
        "train_loss": "policy.loss_total", "train_reward": "reward.mean", "train_kl": "ref.kl",
        "train_completions_mean_length": "length.mean", "train_frac_reward_zero_std": "group.zero_std_frac",
        "train_rewards_format_mean": "reward.component.format.mean", "train_clip_ratio_region_mean": "policy.clip_frac",
    },
    "train_global_step train_epoch",
)  # fmt: skip
TRL_DPO: Final = Log(
    "trl", "dpo",
    {
        "loss": "pref.loss", "grad_norm": "optim.grad_norm", "learning_rate": "optim.learning_rate",
        "rewards/chosen": "pref.chosen_reward", "rewards/rejected": "pref.rejected_reward", "rewards/accuracies": "pref.accuracy",
        "rewards/margins": "pref.margin", "logps/chosen": "pref.chosen_logprob", "logps/rejected": "pref.rejected_logprob",
        "logits/chosen": None, "logits/rejected": None, "entropy": None, "mean_token_accuracy": None,
        "eval_loss": "val.loss", "eval_rewards/accuracies": "val.mean_at_n", "eval_rewards/chosen": None,
    },
    "epoch num_tokens eval_runtime",
)  # fmt: skip
TRL_KTO: Final = Log(
    "trl", "kto",
    {
        "loss": "pref.loss", "kl": None, "rewards/chosen": "pref.chosen_reward", "rewards/rejected": "pref.rejected_reward",
        "rewards/margins": "pref.margin", "logps/chosen": "pref.chosen_logprob", "logps/rejected": "pref.rejected_logprob",
        "logits/chosen": None, "logits/rejected": None, "grad_norm": "optim.grad_norm",
    },
    "epoch",
)  # fmt: skip
TRL_REWARD: Final = Log(
    "trl", "reward_model",
    {
        "loss": "pref.loss", "accuracy": "pref.accuracy", "margin": "pref.margin", "mean_reward": None, "min_reward": None,
        "max_reward": None, "grad_norm": "optim.grad_norm", "learning_rate": "optim.learning_rate",
    },
    "num_tokens epoch",
)  # fmt: skip
TRL_SFT: Final = Log(
    "trl", "sft",
    {
        "loss": "sft.loss", "grad_norm": "optim.grad_norm", "learning_rate": "optim.learning_rate", "entropy": None,
        "mean_token_accuracy": None, "eval_loss": "val.loss", "eval_mean_token_accuracy": "val.mean_at_n", "eval_entropy": None,
    },
    "num_tokens epoch train_runtime train_steps_per_second total_flos",
)  # fmt: skip
TRL_PPO: Final = Log(
    "trl", "ppo",
    {
        "objective/kl": "ref.kl_sequence", "objective/entropy": "policy.entropy_sequence", "objective/non_score_reward": None,
        "objective/rlhf_reward": "reward.mean", "objective/scores": "reward.score_mean",
        "policy/approxkl_avg": "policy.kl_old_k2", "policy/clipfrac_avg": "policy.clip_frac",
        "policy/entropy_avg": "policy.entropy", "loss/policy_avg": "policy.loss_pg", "loss/value_avg": "value.loss",
        "val/clipfrac_avg": "value.clip_frac", "val/ratio": "policy.ratio_mean", "val/ratio_var": None,
        "val/num_eos_tokens": None, "lr": "optim.learning_rate", "eps": None,
    },
    "episode",
)  # fmt: skip
VERL: Final = Log(
    "verl", None,
    {
        "actor/entropy": "policy.entropy", "actor/kl_loss": "ref.kl", "actor/pg_loss": "policy.loss_pg",
        "actor/pg_clipfrac": "policy.clip_frac", "actor/ppo_kl": "policy.kl_old_k1",
        "actor/pg_clipfrac_lower": "policy.clip_frac_dual", "actor/grad_norm": "optim.grad_norm",
        "actor/lr": "optim.learning_rate", "critic/score/mean": "reward.score_mean", "critic/score/max": "reward.score_max",
        "critic/score/min": "reward.score_min", "critic/rewards/mean": "reward.mean", "critic/rewards/max": "reward.max",
        "critic/rewards/min": "reward.min", "critic/advantages/mean": "adv.mean", "critic/advantages/max": "adv.max",
        "critic/advantages/min": "adv.min", "critic/returns/mean": "return.mean", "critic/returns/max": "return.max",
        "critic/returns/min": "return.min", "response_length/mean": "length.mean", "response_length/max": "length.max",
        "response_length/min": "length.min", "response/aborted_ratio": "length.aborted_frac",
        "response_length_non_aborted/mean": None, "num_turns/mean": "turns.mean",
        "training/rollout_probs_diff_mean": "mismatch.prob_abs", "training/rollout_probs_diff_max": "mismatch.prob_max",
        "training/rollout_actor_probs_pearson_corr": "mismatch.prob_corr", "rollout_corr/kl": "mismatch.k1",
        "rollout_corr/k3_kl": "mismatch.k3", "rollout_corr/training_ppl": None,
        "val-core/openai/gsm8k/acc/mean@4": "val.mean_at_n", "val-core/openai/gsm8k/acc/best@4/mean": "val.best_at_n",
        "val-aux/openai/gsm8k/reward/mean@4": None, "val-aux/openai/gsm8k/reward/std@4": None,
    },
    "perf/mfu/actor perf/throughput timing_s/gen timing_per_token_ms/gen global_seqlen/mean prompt_length/mean "
    "prompt_length/clip_ratio training/global_step training/epoch",
)  # fmt: skip
VERL_PPO: Final = Log(
    "verl", "ppo",
    {
        "actor/ppo_kl": "policy.kl_old_k1", "actor/pg_clipfrac": "policy.clip_frac", "actor/entropy_loss": "policy.entropy",
        "critic/rewards/mean": "reward.mean", "critic/vf_loss": "value.loss", "critic/vf_clipfrac": "value.clip_frac",
        "critic/values/mean": "value.mean", "critic/vf_explained_var": "value.explained_var", "critic/grad_norm": None,
    },
    "timing_s/update_critic critic/lr",
)  # fmt: skip
VERL_TABLE: Final = Log(
    "verl", None,
    {
        "actor_ppo_kl": "policy.kl_old_k1", "actor_pg_clipfrac": "policy.clip_frac", "critic_score_mean": "reward.score_mean",
        "actor_prefix_ppo_kl": "part.prefix.policy.kl_old_k1", "actor_prefix_pg_clipfrac": "part.prefix.policy.clip_frac",
        "actor_continuation_ppo_kl": "part.continuation.policy.kl_old_k1",
        "actor_continuation_pg_clipfrac_lower": "part.continuation.policy.clip_frac_dual",
        "actor_prefix_clip_ratio": None, "val-core_textcraft_acc_mean@1": "val.mean_at_n",
    },
    "timing_s_gen perf_throughput prompt_length_mean",
)  # fmt: skip
OPENRLHF: Final = Log(
    "openrlhf", "ppo",
    {
        "train/policy_loss": "policy.loss_pg", "train/ppo_clip_ratio": "policy.clip_frac", "train/ppo_kl": "policy.kl_old_k1",
        "train/vllm_kl": "mismatch.k1", "train/kl": "ref.kl", "train/entropy_loss": "policy.entropy",
        "train/actor_grad_norm": "optim.grad_norm", "train/actor_lr": "optim.learning_rate", "train/reward": "reward.mean",
        "train/score": "reward.score_mean", "train/return": "return.mean", "train/group_reward_std": "group.std_mean",
        "train/response_length": "length.mean", "train/truncated": "length.truncated_frac", "train/critic_loss": "value.loss",
        "train/values": "value.mean", "train/rollout/reward_std": "reward.std", "eval/eval_aime_pass1": "val.mean_at_n",
        "eval/eval_aime_pass8": "val.best_at_n", "train/logprobs_diff": None,
    },
    "train/total_length train/timing/make_experience",
)  # fmt: skip
OPENRLHF_DPO: Final = Log(
    "openrlhf", "dpo",
    {
        "train/loss": "pref.loss", "train/acc": "pref.accuracy", "train/chosen_reward": "pref.chosen_reward",
        "train/reject_reward": "pref.rejected_reward", "train/lr": "optim.learning_rate", "train/loss_mean": None,
        "train/acc_mean": None,
    },
)  # fmt: skip
SLIME: Final = Log(
    "slime", None,
    {
        "train/loss": "policy.loss_total", "train/pg_loss": "policy.loss_pg", "train/entropy_loss": "policy.entropy",
        "train/pg_clipfrac": "policy.clip_frac", "train/ppo_kl": "policy.kl_old_k1", "train/kl_loss": "ref.kl",
        "train/train_rollout_logprob_abs_diff": "mismatch.abs", "train/ois": "policy.ratio_mean",
        "train/tis": "mismatch.is_weight_mean", "train/grad_norm": "optim.grad_norm", "train/lr-pg_0": "optim.learning_rate",
        "rollout/raw_reward": "reward.mean", "rollout/rewards": None, "rollout/truncated_ratio": "length.truncated_frac",
        "rollout/response_len/mean": "length.mean", "rollout/response_len/max": "length.max", "rollout/advantages": "adv.mean",
        "rollout/zero_std/count_0.0": None, "rollout/log_probs": None, "eval/aime": "val.mean_at_n",
        "eval/aime/response_len/mean": None, "eval/aime-truncated_ratio": None,
    },
    "train/global_batch_size train/step rollout/step rollout/total_lengths perf/rollout_time",
)  # fmt: skip
AREAL: Final = Log(
    "areal", None,
    {
        "ppo_actor/task_reward/avg": "reward.mean", "ppo_actor/update/actor_loss/avg": "policy.loss_pg",
        "ppo_actor/update/importance_weight/avg": "policy.ratio_mean", "ppo_actor/update/approx_kl/avg": "policy.kl_old_k1",
        "ppo_actor/update/clip_ratio/avg": "policy.clip_frac", "ppo_actor/update/dual_clip_ratio/avg": "policy.clip_frac_dual",
        "ppo_actor/update/entropy/avg": "policy.entropy", "ppo_actor/update/behave_imp_weight/avg": "mismatch.is_weight_mean",
        "ppo_actor/update/behave_approx_kl/avg": "mismatch.k1", "ppo_actor/update/grad_norm": "optim.grad_norm",
        "ppo_actor/update/lr": "optim.learning_rate", "ppo_actor/advantages/max": "adv.max",
        "ppo_actor/update/version_stats/sample_staleness_theta_avg": "stale.mean", "ppo_actor/no_eos_ratios/avg": None,
        "ppo_actor/kl_rewards/avg": None, "eval-rollout/reward": "val.mean_at_n", "ppo_actor/update/entropy/max": None,
    },
    "timeperf/rollout",
)  # fmt: skip
NEMO_RL: Final = Log(
    "nemo-rl", "grpo",
    {
        "train/loss": "policy.loss_total", "train/reward": "reward.mean", "train/probs_ratio": "policy.ratio_mean",
        "train/probs_ratio_clamped": "policy.ratio_clamped_mean", "train/kl_penalty": "ref.kl",
        "train/gen_kl_error": "mismatch.k3",
        "train/token_mult_prob_error": None, "train/sampling_importance_ratio": "mismatch.exp_mean",
        "train/approx_entropy": "policy.entropy", "train/advantages/mean": "adv.mean", "train/advantages/max": "adv.max",
        "train/mean_gen_tokens_per_sample": "length.mean", "train/truncation_rate": "length.truncated_frac",
        "train/grad_norm": "optim.grad_norm", "train/lr": "optim.learning_rate", "train/baseline_reward/pct_0": None,
        "validation/accuracy": "val.mean_at_n", "validation/pass_k": "val.best_at_n", "validation/avg_length": None,
    },
    "train/global_valid_toks timing/train/total_step_time performance/tokens_per_sec",
)  # fmt: skip
SKYRL: Final = Log(
    "skyrl", None,
    {
        "policy/policy_loss": "policy.loss_pg", "policy/final_loss": "policy.loss_total",
        "policy/policy_entropy": "policy.entropy", "policy/policy_kl": "ref.kl",
        "policy/loss_metrics/clip_ratio": "policy.clip_frac", "policy/loss_metrics/is_ratio_mean": "mismatch.exp_mean",
        "policy/rollout_train_logprobs_abs_diff_mean": "mismatch.abs", "policy/policy_lr": "optim.learning_rate",
        "policy/grad_norm": "optim.grad_norm", "policy/response_length": None, "loss/avg_final_rewards": "reward.mean",
        "loss/avg_raw_advantages": "adv.mean", "loss/avg_raw_advantages_abs": "adv.abs_mean",
        "reward/avg_raw_reward": "reward.score_mean", "reward/avg_pass_at_8": None, "generate/avg_num_tokens": "length.mean",
        "generate/max_num_tokens": "length.max", "async/staleness_mean": "stale.mean", "eval/all/avg_score": "val.mean_at_n",
        "eval/gsm8k/avg_score": None, "eval/all/pass_at_8": "val.best_at_n",
    },
    "timing/step trainer/epoch trainer/global_step",
)  # fmt: skip
PRIME_RL: Final = Log(
    "prime-rl", None,
    {
        "loss/mean": "policy.loss_total", "entropy/all/mean": "policy.entropy", "entropy/all/max": None,
        "mismatch_kl/all/mean": "mismatch.k3", "ref_kl/mean": "ref.kl_k1", "is_masked/mean": None,
        "optim/lr": "optim.learning_rate",
        "optim/grad_norm": "optim.grad_norm", "train/agg/all/reward/mean": "reward.mean",
        "train/agg/all/num_output_tokens/mean": "length.mean", "train/agg/all/is_truncated/mean": "length.truncated_frac",
        "train/agg/all/solved_none": "group.all_min_frac", "off_policy/mean": "stale.mean", "off_policy/max": "stale.max",
        "eval/aime2024/avg@16": "val.mean_at_n", "eval/aime2024/pass@16": "val.best_at_n",
    },
    "perf/throughput time/step",
)  # fmt: skip
ROLL: Final = Log(
    "roll", None,
    {
        "actor/pg_loss": "policy.loss_pg", "actor/total_loss": "policy.loss_total", "actor/kl_loss": "ref.kl_k3",
        "actor/approxkl": "policy.kl_old_k2", "actor/policykl": "policy.kl_old_k1",
        "actor/ppo_ratio_clipfrac": "policy.outside_frac", "actor/ppo_ratio_high_clipfrac": "policy.outside_frac_high",
        "actor/clipfrac": "policy.clip_frac", "actor/ratio_mean": "policy.ratio_mean", "actor/lr": "optim.learning_rate",
        "actor_train/grad_norm": "optim.grad_norm", "critic/entropy/mean": "policy.entropy",
        "critic/score/mean": "reward.score_mean", "critic/rewards/mean": "reward.mean", "critic/rewards/max": "reward.max",
        "critic/advantages/mean": "adv.mean", "token/response_length/mean": "length.mean",
        "token/total_response_length/clip": None, "group/mixed_groups_ratio": "group.zero_std_frac",
        "group/all_incorrect_groups_ratio": "group.all_min_frac", "val_correct/all/mean": "val.mean_at_n",
        "val_correct/math/mean": None,
    },
    "time/step_generate system/tps",
)  # fmt: skip
MINIMIND: Final = Log(
    "minimind", "grpo",
    {
        "reward": "reward.mean", "kl_ref": "ref.kl", "advantages_mean": "adv.sequence_mean", "advantages_std": "adv.std",
        "policy_loss": "policy.loss_total", "avg_response_len": "length.mean", "learning_rate": "optim.learning_rate",
    },
)  # fmt: skip
MINIMIND_PPO: Final = Log(
    "minimind", "ppo",
    {
        "reward": "reward.mean", "kl_ref": "ref.kl", "approx_kl": "policy.kl_old_k2", "clipfrac": "policy.outside_frac",
        "critic_loss": "value.loss", "avg_response_len": "length.mean", "actor_lr": "optim.learning_rate", "critic_lr": None,
    },
)  # fmt: skip
OPEN_INSTRUCT: Final = Log(
    "open-instruct", "grpo",
    {
        "scores": "reward.mean", "objective/kl_avg": "ref.kl_k1", "objective/kl3_avg": "ref.kl_k3",
        "loss/policy_avg": "policy.loss_pg", "loss/kl_avg": None, "loss/total_avg": "policy.loss_total",
        "policy/clipfrac_avg": "policy.clip_frac", "val/ratio": "policy.ratio_mean", "val/ratio_var": None,
        "val/sequence_lengths": "length.mean", "val/sequence_lengths_max": "length.max", "val/advantages_max": "adv.max",
        "val/stop_rate": "length.truncated_frac", "real_batch_size_ratio": "group.zero_std_frac", "packed_ratio": None,
        "lr": "optim.learning_rate", "objective/verifiable_correct_rate": None, "eval/scores": "val.mean_at_n",
    },
    "episode tokens_per_second time/training",
)  # fmt: skip
HOME_MADE: Final = Log(
    None, None,
    {
        "reward/mean": "reward.mean", "reward/std": "reward.std", "entropy": "policy.entropy", "approx_kl": "policy.kl_old",
        "kl": "ref.kl", "clip_frac": "policy.clip_frac", "clip_ratio": None, "policy_loss": "policy.loss_pg",
        "value_loss": "value.loss", "explained_variance": "value.explained_var", "total_loss": "policy.loss_total",
        "mean_response_length": "length.mean", "truncated_pct": "length.truncated_frac", "grad_norm": "optim.grad_norm",
        "lr": "optim.learning_rate", "test_accuracy": "val.mean_at_n", "accuracy": None, "eval/pass@8": "val.best_at_n",
        "advantage/max": "adv.max",
    },
    "time/step gpu_memory tokens_per_second wall_time",
)  # fmt: skip
PLAIN_SFT: Final = Log(
    None, "sft",
    {
        "loss": "sft.loss", "grad_norm": "optim.grad_norm", "learning_rate": "optim.learning_rate", "eval_loss": "val.loss",
        "eval_accuracy": "val.mean_at_n",
    },
    "epoch train_runtime total_flos eval_runtime",
)  # fmt: skip
LOGS: Final = {
    name: value for name, value in globals().items() if isinstance(value, Log)
}  # fmt: skip
