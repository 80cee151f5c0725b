"""minimind: what its scripts log of the first rank's last micro-batch."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.analyzer.dialects.registry import Lookup, Name, Trainer, trainer

_GRPO: Final = frozenset({"grpo"})
_SFT: Final = frozenset({"sft"})
_DPO: Final = frozenset({"dpo"})


def _negated(logged: Lookup) -> bool:
    """Whether ``kl_ref`` is minus k1: samples of the policy then give it a mean below 0."""
    kl = logged("kl_ref")
    return kl is not None and bool(np.isfinite(kl[1]).any() and np.nanmean(kl[1]) < 0.0)


MINIMIND: Final = trainer(
    Trainer(
        name="minimind",
        label="minimind",
        source="minimind, August 2026: trainer/train_grpo.py, train_ppo.py, train_agent.py, train_dpo.py, train_full_sft.py",
        names=(
            Name("reward", "reward.mean"),
            Name("group_reward_std", "group.std_mean"),
            Name(
                "kl_ref", "ref.kl_k1", factor=-1.0, algorithms=_GRPO, holds=_negated,
                note="is reference - policy here, and is read with the other sign; it is not the k3 of the loss",
            ),
            Name("kl_ref", "ref.kl"),
            Name("approx_kl", "policy.kl_old_k2"),
            Name("kl", "policy.kl_old"),
            Name("clipfrac", "policy.outside_frac", note="counts every ratio out of range, whatever the sign of the advantage"),
            Name("policy_loss", "sft.loss", algorithms=_SFT),
            Name("policy_loss", "policy.loss_total"),
            Name("loss", "sft.loss", algorithms=_SFT),
            Name("loss", "pref.loss", algorithms=_DPO),
            Name("dpo_loss", "pref.loss", algorithms=_DPO),
            Name("critic_loss", "value.loss"),
            Name("advantages_mean", "adv.sequence_mean"),
            Name("advantages_std", "adv.std"),
            Name("avg_response_len", "length.mean"),
            Name("actor_lr", "optim.learning_rate"),
            Name("learning_rate", "optim.learning_rate"),
            Name("Reward", "reward.mean"),
            Name("Avg Response Len", "length.mean"),
            Name("Actor Loss", "policy.loss_total"),
        ),
        marks=(
            "kl_ref", "avg_response_len", "advantages_mean+advantages_std", "policy_loss+avg_response_len",
            "approx_kl+clipfrac+critic_lr", "actor_lr+critic_lr",
        ),
        least=3,
        kinds={
            "ppo": ("critic_loss",),
            "dpo": ("dpo_loss",),
            "grpo": ("reward",),
            "sft": ("loss", "policy_loss", "logits_loss"),
        },
    )
)  # fmt: skip
