"""Open Instruct's GRPO: what it logs below ``val/`` is of the training, not of held-out prompts."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

OPEN_INSTRUCT: Final = trainer(
    Trainer(
        name="open-instruct",
        label="Open Instruct",
        source="Open Instruct, 2025 and 2026: grpo_fast.py",
        names=(
            Name("scores", "reward.mean"),
            Name("objective/kl3_avg", "ref.kl_k3"),
            Name("objective/kl1_avg", "ref.kl_k1"),
            Name("objective/kl_avg", "ref.kl_k1"),
            Name("loss/policy_avg", "policy.loss_pg"),
            Name("loss/total_avg", "policy.loss_total"),
            Name("loss/kl_avg", None, note="holds the coefficient"),
            Name("policy/clipfrac_avg", "policy.clip_frac"),
            Name("policy/entropy_avg", "policy.entropy"),
            Name("val/ratio", "policy.ratio_mean"),
            Name("val/advantages_mean", "adv.sequence_mean"),
            Name("val/advantages_min", "adv.min"),
            Name("val/advantages_max", "adv.max"),
            Name("val/sequence_lengths", "length.mean"),
            Name("val/sequence_lengths_min", "length.min"),
            Name("val/sequence_lengths_max", "length.max"),
            Name("val/truncated_completion_fraction", "length.truncated_frac"),
            Name(
                "val/stop_rate", "length.truncated_frac", factor=-1.0, offset=1.0,
                note="is the share that stopped by itself: the rest is read as truncated",
            ),
            Name(
                "real_batch_size_ratio", "group.zero_std_frac", factor=-1.0, offset=1.0,
                note="is the share of groups with a difference: the rest is read as those without",
            ),
            Name("lr", "optim.learning_rate"),
            Name("optim/grad_norm", "optim.grad_norm"),
        ),
        marks=(
            "objective/kl_avg", "objective/kl1_avg", "objective/kl3_avg", "real_batch_size_ratio", "packed_ratio",
            "val/stop_rate", "val/sequence_lengths", "unsolved_batch_size_ratio", "objective/verifiable_correct_rate",
        ),
        least=3,
        kinds={"grpo": ("val/sequence_lengths", "real_batch_size_ratio")},
        validation=(("eval/objective/verifiable_correct_rate",), ("eval/scores",)),
    )
)  # fmt: skip
