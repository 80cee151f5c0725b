"""OpenRLHF: PPO and its relatives, preference, reward-model and supervised trainers."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer
from rl_doctor.schema import RunConfig

_PREFERENCE: Final = frozenset({"dpo", "kto", "reward_model"})
_SFT: Final = frozenset({"sft"})


def _which_kl(config: RunConfig) -> str | None:
    """Whether the KL is a penalty in the reward, and so logged of the experience, or a term of the loss."""
    if config.kl_in_reward is None:
        return None
    return "is that of the experience: a mean over sequences, before the update" if config.kl_in_reward else ""


OPENRLHF: Final = trainer(
    Trainer(
        name="openrlhf",
        label="OpenRLHF",
        source="OpenRLHF 0.11.2: models/loss.py, trainer/ppo_trainer.py, trainer/ray/ppo_actor.py",
        names=(
            Name("reward", "reward.mean"),
            Name("rollout/reward_mean", "reward.mean"),
            Name("rollout/reward_std", "reward.std"),
            Name("score", "reward.score_mean"),
            Name("return", "return.mean"),
            Name("group_reward_std", "group.std_mean"),
            Name("policy_loss", "policy.loss_pg"),
            Name("act_loss", "policy.loss_pg"),
            Name("ppo_clip_ratio", "policy.clip_frac"),
            Name("ppo_kl", "policy.kl_old_k1"),
            Name("vllm_kl", "mismatch.k1"),
            Name(
                "kl", "ref.kl",
                note="is that of the experience (mean over sequences) or that of the loss: it does not say which",
                note_by=_which_kl,
            ),
            Name("entropy_loss", "policy.entropy", note="is the entropy itself"),
            Name("critic_loss", "value.loss"),
            Name("values", "value.mean"),
            Name("actor_grad_norm", "optim.grad_norm"),
            Name("actor_lr", "optim.learning_rate"),
            Name("response_length", "length.mean"),
            Name("rollout/response_length_mean", "length.mean"),
            Name("rollout/truncated_rate", "length.truncated_frac"),
            Name("truncated", "length.truncated_frac"),
            Name("loss", "pref.loss", algorithms=_PREFERENCE),
            Name("loss_mean", None, algorithms=_PREFERENCE | _SFT),
            Name("acc", "pref.accuracy", algorithms=_PREFERENCE),
            Name("chosen_reward", "pref.chosen_reward", algorithms=_PREFERENCE),
            Name("reject_reward", "pref.rejected_reward", algorithms=_PREFERENCE),
            Name("gpt_loss", "sft.loss", algorithms=_SFT),
        ),
        marks=(
            "ppo_clip_ratio", "vllm_kl", "rollout/truncated_rate", "rollout/response_length_mean", "actor_grad_norm+actor_lr",
            "logprobs_diff", "dynamic_filtering_pass_rate", "response_length+total_length", "gpt_loss", "loss_mean",
            "chosen_reward+reject_reward", "acc_mean", "policy_loss+critic_loss+values", "kl+return+policy_loss",
        ),
        kinds={
            "dpo": ("chosen_reward+reject_reward",),
            "ppo": ("critic_loss", "values"),
            "sft": ("gpt_loss",),
        },
        validation=(("eval_{source}_pass1", "eval_{source}_pass@1"),),
        best=(("eval_{source}_pass{n}", "eval_{source}_pass@{n}"),),
    )
)  # fmt: skip
