"""ROLL: keys of the RLVR and the agentic pipeline."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

ROLL: Final = trainer(
    Trainer(
        name="roll",
        label="ROLL",
        source="ROLL, August 2026: pipeline/rlvr/actor_worker.py, utils/metrics/metrics_manager.py",
        names=(
            Name("critic/rewards/mean", "reward.mean"),
            Name("critic/rewards/max", "reward.max"),
            Name("critic/rewards/min", "reward.min"),
            Name("critic/score/mean", "reward.score_mean"),
            Name("critic/score/max", "reward.score_max"),
            Name("critic/score/min", "reward.score_min"),
            Name("critic/advantages/mean", "adv.mean"),
            Name("critic/advantages/max", "adv.max"),
            Name("critic/advantages/min", "adv.min"),
            Name("critic/returns/mean", "return.mean"),
            Name("critic/returns/max", "return.max"),
            Name("critic/returns/min", "return.min"),
            Name("critic/values/mean", "value.mean"),
            Name("critic/loss", "value.loss"),
            Name("critic/vf_loss", "value.loss"),
            Name("critic/clipfrac", "value.clip_frac"),
            Name("critic/entropy/mean", "policy.entropy"),
            Name("actor/entropy_mean", "policy.entropy"),
            Name("actor/pg_loss", "policy.loss_pg"),
            Name("actor/total_loss", "policy.loss_total"),
            Name("actor/kl_loss", "ref.kl_k3"),
            Name("critic/kl", "ref.kl"),
            Name("actor/approxkl", "policy.kl_old_k2"),
            Name("actor/policykl", "policy.kl_old_k1", factor=-1.0, note="is new - old here, and is read with the other sign"),
            Name("actor/clipfrac", "policy.clip_frac"),
            Name("actor/ppo_ratio_clipfrac", "policy.outside_frac"),
            Name("actor/ppo_ratio_low_clipfrac", "policy.outside_frac_low"),
            Name("actor/ppo_ratio_high_clipfrac", "policy.outside_frac_high"),
            Name("actor/ratio_mean", "policy.ratio_mean"),
            Name("actor/ratio_max", "policy.ratio_max"),
            Name("actor/ratio_min", "policy.ratio_min"),
            Name("actor/train_infer_ratio_token_mean", "mismatch.exp_mean"),
            Name("actor/train_infer_ratio_mean", "mismatch.exp_mean"),
            Name("actor/lr", "optim.learning_rate"),
            Name("actor_train/grad_norm", "optim.grad_norm"),
            Name("actor/grad_norm", "optim.grad_norm"),
            Name("token/response_length/mean", "length.mean"),
            Name("token/response_length/max", "length.max"),
            Name("token/response_length/min", "length.min"),
            Name("tokens/response_length/mean", "length.mean"),
            Name("tokens/response_length/max", "length.max"),
            Name("tokens/response_length/min", "length.min"),
            Name("token/total_response_length/clip", None, note="is a number of responses, not a share"),
            Name("group/all_correct_groups_ratio", "group.all_max_frac"),
            Name("group/all_incorrect_groups_ratio", "group.all_min_frac"),
            Name(
                "group/mixed_groups_ratio", "group.zero_std_frac", factor=-1.0, offset=1.0,
                note="is the share of groups not all right or all wrong: the rest, at least, has no difference",
            ),
        ),
        marks=(
            "actor/approxkl", "actor/policykl", "actor/ppo_ratio_clipfrac", "actor/ppo_ratio_high_clipfrac",
            "critic/entropy/mean", "token/response_length/mean", "tokens/response_length/mean", "group/mixed_groups_ratio",
            "actor_train/grad_norm", "actor/total_loss", "actor/clipfrac", "critic/correct/mean",
            "token/total_response_length/clip",
        ),
        kinds={"ppo": ("critic/vf_loss", "critic/clipfrac", "critic/values/mean")},
        validation=(
            ("val_correct/all/mean", "val/correct/mean"),
            ("val_correct/{source}/mean",),
            ("val/score/mean", "val_score/all/mean"),
        ),
        settings={"kl_coef": ("critic/kl_coef",)},
    )
)  # fmt: skip
