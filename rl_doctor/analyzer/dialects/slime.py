"""slime: training metrics by optimizer step, rollout metrics by generation batch."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.recipes import Definition, Fold, Of, Recipe, derived, of
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

_ROLLOUTS: Final = Fold(row="mean", empty=True, apart=("epoch", "minibatch"))


def _mean(formula: str, quantity: Of, unit: str = "nat") -> Definition:
    """The mean over the rollouts of an optimizer step of their own means over tokens."""
    return derived(f"mean over rollouts of (sum over tokens of {formula}) / tokens", Recipe(quantity, _ROLLOUTS, unit=unit))


SLIME: Final = trainer(
    Trainer(
        name="slime",
        label="slime",
        source="slime, August 2026: backends/megatron_utils/loss.py, observability/train_metric_utils.py",
        names=(
            Name("rollout/raw_reward", "reward.mean"),
            Name("rollout/rewards", None, note="is the reward after it was normalised by group: about 0 by design"),
            Name("train/loss", "policy.loss_total"),
            Name("train/pg_loss", "policy.loss_pg"),
            Name(
                "train/entropy_loss", "policy.entropy", note="is the entropy itself",
                definition=_mean("entropy", of("column", name="entropy")),
            ),
            Name("train/pg_clipfrac", "policy.clip_frac"),
            Name(
                "train/ppo_kl", "policy.kl_old_k1", measured=True,
                definition=_mean("(old - new)", of("estimate", kind="k1")),
            ),
            Name("train/kl_loss", "ref.kl", measured=True, note="is signed (k1) unless configured otherwise: it may be negative"),
            Name("train/ois", "policy.ratio_mean"),
            Name("train/train_rollout_logprob_abs_diff", "mismatch.abs"),
            Name("train/tis", "mismatch.is_weight_mean"),
            Name("train/value_loss", "value.loss"),
            Name("train/critic-value_loss", "value.loss"),
            Name("train/value_clipfrac", "value.clip_frac"),
            Name("train/critic-value_clipfrac", "value.clip_frac"),
            Name("rollout/values", "value.mean"),
            Name("rollout/advantages", "adv.mean"),
            Name("rollout/returns", "return.mean"),
            Name("train/grad_norm", "optim.grad_norm"),
            Name("train/lr-pg_0", "optim.learning_rate"),
            Name("rollout/response_len/mean", "length.mean"),
            Name("rollout/response_len/max", "length.max"),
            Name("rollout/response_len/min", "length.min"),
            Name("rollout/response_lengths", "length.mean"),
            Name("rollout/truncated_ratio", "length.truncated_frac"),
            Name("rollout/truncated", "length.truncated_frac"),
            Name(
                "multi_turn/raw_response_length/response_length_clip_ratio", "length.limit_frac",
                note="is a share of lengths, not of clipped tokens",
            ),
            Name("multi_turn_metric/round_number_mean", "turns.mean"),
            Name("rollout/zero_std/count_{reward}", None),
        ),
        marks=(
            "rollout/raw_reward", "rollout/response_lengths", "rollout/response_len/mean", "rollout/truncated_ratio", "lr-pg_0",
            "train/train_rollout_logprob_abs_diff", "train/ois", "rollout/zero_std/count_{reward}", "rollout/log_probs",
            "rollout/ref_log_probs", "rollout/rollout_log_probs", "rollout/total_lengths", "passrate/pass@{n}",
        ),
        kinds={"ppo": ("train/value_loss", "train/critic-value_loss")},
        validation=(("eval/{source}-pass@1",), ("eval/{source}",)),
        best=(("eval/{source}-pass@{n}",),),
    )
)  # fmt: skip
