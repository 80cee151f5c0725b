"""NeMo-RL: keys below ``train/`` and ``validation/``."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

_DPO: Final = frozenset({"dpo"})
_SFT: Final = frozenset({"sft"})

NEMO_RL: Final = trainer(
    Trainer(
        name="nemo-rl",
        label="NeMo-RL",
        source="NeMo-RL, August 2026: algorithms/loss/loss_functions.py, algorithms/grpo.py, experience/rollouts.py",
        names=(
            Name("train/reward", "reward.mean"),
            Name("train/loss", "sft.loss", algorithms=_SFT),
            Name("train/loss", "pref.loss", algorithms=_DPO),
            Name("train/preference_loss", "pref.loss", algorithms=_DPO),
            Name("train/accuracy", "pref.accuracy", algorithms=_DPO),
            Name("train/rewards_chosen_mean", "pref.chosen_reward", algorithms=_DPO),
            Name("train/rewards_rejected_mean", "pref.rejected_reward", algorithms=_DPO),
            Name("train/loss", "policy.loss_total"),
            Name("train/probs_ratio", "policy.ratio_mean"),
            Name("train/probs_ratio_max", "policy.ratio_max"),
            Name("train/probs_ratio_min", "policy.ratio_min"),
            Name("train/kl_penalty", "ref.kl"),
            Name("train/gen_kl_error", "mismatch.k3"),
            Name("train/sampling_importance_ratio", "mismatch.exp_mean"),
            Name(
                "train/approx_entropy", "policy.entropy",
                note="is estimated from the sampled tokens: it scatters more than the entropy itself",
            ),
            Name("train/advantages/mean", "adv.mean"),
            Name("train/advantages/max", "adv.max"),
            Name("train/advantages/min", "adv.min"),
            Name("train/mean_gen_tokens_per_sample", "length.mean"),
            Name("train/max_gen_tokens_per_sample", "length.max"),
            Name("train/truncation_rate", "length.truncated_frac"),
            Name("train/avg_turns_per_sample", "turns.mean"),
            Name("train/avg_trajectory_age", "stale.mean"),
            Name("train/grad_norm", "optim.grad_norm"),
            Name("train/lr", "optim.learning_rate"),
            Name("critic/loss", "value.loss"),
            Name("train/vf_clipfrac", "value.clip_frac"),
            Name("critic/vf_clipfrac", "value.clip_frac"),
            Name("train/values_mean", "value.mean"),
            Name("train/returns_mean", "return.mean"),
            Name("train/baseline_reward/{share}", None),
        ),
        marks=(
            "probs_ratio", "probs_ratio_clamped", "gen_kl_error", "token_mult_prob_error", "approx_entropy", "global_valid_toks",
            "sampling_importance_ratio", "baseline_reward/pct_0", "num_valid_samples", "mean_gen_tokens_per_sample",
            "preference_loss", "rewards_chosen_mean", "performance/{what}",
        ),
        kinds={
            "dpo": ("preference_loss", "rewards_chosen_mean"),
            "ppo": ("critic/loss", "values_mean"),
            "grpo": ("baseline_reward/pct_0", "reward+gen_kl_error"),
            "sft": ("loss+global_valid_toks", "loss+num_valid_samples"),
        },
        validation=(("validation/accuracy",), ("validation/{source}/accuracy",)),
        best=(("validation/pass_k",), ("validation/{source}/pass_k",)),
    )
)  # fmt: skip
