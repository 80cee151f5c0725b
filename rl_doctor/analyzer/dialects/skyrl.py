"""SkyRL: keys below ``policy/``, ``loss/``, ``reward/``, ``generate/`` and ``async/``."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

SKYRL: Final = trainer(
    Trainer(
        name="skyrl",
        label="SkyRL",
        source="SkyRL, August 2026: train/trainer.py, backends/skyrl_train/utils/ppo_utils.py, generators/utils.py",
        names=(
            Name("loss/avg_final_rewards", "reward.mean"),
            Name("reward/avg_raw_reward", "reward.score_mean"),
            Name("policy/policy_loss", "policy.loss_pg"),
            Name("policy/final_loss", "policy.loss_total"),
            Name("policy/policy_entropy", "policy.entropy"),
            Name("policy/policy_kl", "ref.kl"),
            Name("loss/avg_kl", "ref.kl"),
            Name("policy/loss_metrics/clip_ratio", "policy.clip_frac"),
            Name("policy/ppo_clip_ratio", "policy.clip_frac"),
            Name("policy/loss_metrics/is_ratio_mean", "mismatch.exp_mean"),
            Name("policy/rollout_train_logprobs_abs_diff_mean", "mismatch.abs"),
            Name("policy/rollout_train_logprobs_abs_diff_max", "mismatch.abs_max"),
            Name("policy/policy_lr", "optim.learning_rate"),
            Name("policy/grad_norm", "optim.grad_norm"),
            Name("policy/raw_grad_norm", "optim.grad_norm"),
            Name("policy/response_length", None, note="is the width that the batch was padded to, not a length"),
            Name("loss/avg_raw_advantages", "adv.mean"),
            Name("loss/avg_raw_advantages_abs", "adv.abs_mean"),
            Name("critic/critic_loss", "value.loss"),
            Name("critic/values_mean", "value.mean"),
            Name("critic/values_clipfrac", "value.clip_frac"),
            Name("generate/avg_num_tokens", "length.mean"),
            Name("generate/max_num_tokens", "length.max"),
            Name("generate/min_num_tokens", "length.min"),
            Name("async/staleness_mean", "stale.mean"),
            Name("async/staleness_max", "stale.max"),
        ),
        marks=(
            "policy/policy_entropy", "policy/policy_kl", "loss/avg_final_rewards", "reward/avg_raw_reward", "policy/final_loss",
            "policy/loss_metrics/clip_ratio", "generate/avg_num_tokens", "reward/avg_pass_at_{n}", "loss/avg_raw_advantages",
            "policy/rollout_train_logprobs_abs_diff_mean", "policy/policy_lr", "policy/raw_grad_norm",
        ),
        kinds={"ppo": ("critic/critic_loss",)},
        validation=(("eval/all/avg_score",), ("eval/{source}/avg_score",)),
        best=(("eval/all/pass_at_{n}",), ("eval/{source}/pass_at_{n}",)),
        settings={"kl_coef": ("loss/kl_loss_coef",)},
    )
)  # fmt: skip
