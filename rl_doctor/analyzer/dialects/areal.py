"""AReaL: keys of its statistics tracker, below ``ppo_actor`` or ``grpo_actor``."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

_CLIP: Final = ("ppo_actor/eps_clip", "ppo_actor/eps_clip/avg")

AREAL: Final = trainer(
    Trainer(
        name="areal",
        label="AReaL",
        source="AReaL, May 2026: trainer/ppo/actor.py, utils/functional.py, utils/stats_tracker.py",
        names=(
            Name("{actor}/task_reward/avg", "reward.mean"),
            Name("{actor}/task_reward/max", "reward.max"),
            Name("{actor}/task_reward/min", "reward.min"),
            Name("rollout/reward", "reward.mean"),
            Name("{actor}/actor_loss/avg", "policy.loss_pg"),
            Name("{actor}/importance_weight/avg", "policy.ratio_mean"),
            Name("{actor}/importance_weight/max", "policy.ratio_max"),
            Name("{actor}/importance_weight/min", "policy.ratio_min"),
            Name("{actor}/behave_imp_weight/avg", "mismatch.is_weight_mean"),
            Name(
                "{actor}/behave_approx_kl/avg", "mismatch.k1", factor=-1.0,
                note="is trainer - sampler here, and is read with the other sign",
            ),
            Name(
                "{actor}/approx_kl/avg", "policy.kl_old_k1", factor=-1.0,
                note="is new - old here, and is read with the other sign",
            ),
            Name("{actor}/dual_clip_ratio/avg", "policy.clip_frac_dual"),
            Name("{actor}/clip_ratio/avg", "policy.clip_frac"),
            Name("{actor}/entropy/avg", "policy.entropy"),
            Name("{actor}/sample_staleness_theta_avg", "stale.mean"),
            Name("{actor}/sample_staleness_theta_max", "stale.max"),
            Name("{actor}/update/grad_norm", "optim.grad_norm"),
            Name("{actor}/update/grad_norm/avg", "optim.grad_norm"),
            Name("{actor}/update/lr", "optim.learning_rate"),
            Name("{actor}/update/lr/avg", "optim.learning_rate"),
            Name("{actor}/advantages/avg", "adv.mean"),
            Name("{actor}/advantages/max", "adv.max"),
            Name("{actor}/advantages/min", "adv.min"),
            Name("{actor}/kl_rewards/avg", None, note="is minus the coefficient times the KL, not the KL"),
            Name("{actor}/no_eos_ratios/avg", None, note="is the share as long as the longest sequence of the batch, never 0"),
            Name("{actor}/final_reward/avg", None, note="is a mean over tokens"),
            Name("ppo_critic/update/value_loss/avg", "value.loss"),
            Name("ppo_critic/update/loss/avg", "value.loss"),
            Name("critic/update/loss/avg", "value.loss"),
        ),
        marks=(
            "{actor}/approx_kl/avg", "{actor}/importance_weight/avg", "{actor}/clip_ratio/avg", "{actor}/task_reward/avg",
            "{actor}/no_eos_ratios/avg", "{actor}/actor_loss/avg", "{actor}/kl_rewards/avg", "timeperf/{what}",
            "{actor}/version_stats/{what}", "{actor}/correct_seq_len/avg",
        ),
        kinds={"ppo": ("ppo_critic/update/value_loss/avg", "ppo_critic/update/loss/avg", "critic/update/loss/avg")},
        validation=(("eval-rollout/reward", "eval_rollout/reward"),),
        settings={"clip_low": _CLIP, "clip_high": _CLIP},
    )
)  # fmt: skip
