"""minimind: what its scripts log of the first rank's last micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.dialects.recipes import Argument, Definition, Fold, Of, Recipe, Stage, absent, exact, of
from rl_doctor.analyzer.dialects.registry import Lookup, Name, Trainer, trainer

_GRPO: Final = frozenset({"grpo"})
_SFT: Final = frozenset({"sft"})
_DPO: Final = frozenset({"dpo"})


def _negated(logged: Lookup) -> bool:
    """Whether ``kl_ref`` is minus k1: samples of the policy then give it a mean below 0."""
    kl = logged("kl_ref")
    return kl is not None and bool(np.isfinite(kl[1]).any() and np.nanmean(kl[1]) < 0.0)


_PPO: Final = frozenset({"ppo"})
_FIRST: Final = (Stage(("rank",), "first"),)
"""Rank 0 logs what it has itself."""
_OF_RANK: Final = Fold(apart=("rank",), stages=_FIRST)
_OF_ROWS: Final = Fold(row="mean", empty=True, apart=("rank",), stages=_FIRST)
_OF_FILLED: Final = Fold(row="mean", apart=("rank",), stages=_FIRST)
_UPDATES: Final = Fold(apart=("rank", "epoch", "minibatch"), stages=_FIRST)
_UPDATES_OF_ALL: Final = Fold(apart=("rank", "epoch", "minibatch"), stages=(Stage(("rank",), "mean"),))
_REFERENCE: Final = {"first": "ref_logprob", "second": "logprob"}
_K3: Final = of("estimate", kind="k3", **_REFERENCE)
_CISPO: Final = of(
    "sum", first=of("cispo", cap="native.epsilon_high"), second=_K3, weight="native.beta",
)  # fmt: skip
_CLIPPED: Final = of(
    "sum", first=of("surrogate", low="native.epsilon", high="native.epsilon"), second=_K3, weight="native.beta",
)  # fmt: skip
_DENSE: Final[Mapping[str, tuple[Argument, ...]]] = {"native.use_moe?": (None, False, 0.0)}
"""Without the loss of the experts' load, which is not recorded."""
_SCRIPT: Final[Mapping[str, tuple[Argument, ...]]] = {"native.max_total_len?": (None,)}
"""Only the script for agents has that setting; it leaves sequences without a token out of the loss."""
_SCHEDULE: Final = absent("is set by the schedule")


def _rows(formula: str, value: Of, unit: str = "1", **more: Any) -> Definition:
    """A statistic of rank 0's rows; runs of one rank need not have its number."""
    alone = Recipe(value, level="rollout", unit=unit, **more)
    return exact(f"{formula}, of rank 0", Recipe(value, _OF_RANK, level="rollout", unit=unit, **more), alone)


def _losses(value: Of, loss_type: str) -> tuple[Recipe, ...]:
    kind: dict[str, tuple[Argument, ...]] = {"native.loss_type": (loss_type,), **_DENSE}
    return Recipe(value, _OF_ROWS, when={**kind, **_SCRIPT}), Recipe(value, _OF_FILLED, when=kind)


_POLICY_LOSS: Final = exact(
    "mean over rows of the mean over tokens of -(min(r, epsilon_high) A new - beta k3(y)) (cispo) or of "
    "max(-A r, -A clip(r, 1 -+ epsilon)) + beta k3(y) (grpo); of rank 0's last micro-batch; "
    "train_agent.py leaves out rows without a token",
    *_losses(_CISPO, "cispo"),
    *_losses(_CLIPPED, "grpo"),
)
_MINUS_K1: Final = exact(
    "sum(y) / tokens of rank 0's micro-batch: minus k1",
    Recipe(of("log_ratio", **_REFERENCE), _OF_RANK, unit="nat"),
)
_LENGTHS: Final = _rows("mean number of tokens up to the end-of-sequence token", of("rows_tokens"), "tokens")
_ADVANTAGE: Final = of("rows_normalised", ddof=0.0, eps=1e-4)
_REWARD: Final = _rows("mean reward", of("row", name="reward"), "reward")
_CLIP: Final = "native.clip_epsilon|config.clip_"
_OTHER: Final = absent("is of other versions, whose code was not read")
_SUPERVISED: Final = absent("is of supervised training, which has no samples of a policy")
_PAIRS: Final = absent("is of the script for pairs, which was not compared")
_NEGATED_NOTE: Final = "is reference - policy here, and is read with the other sign; it is not the k3 of the loss"

MINIMIND: Final = trainer(
    Trainer(
        name="minimind",
        label="minimind",
        source="minimind, August 2026: trainer/train_grpo.py, train_ppo.py, train_agent.py, train_dpo.py, train_full_sft.py",
        names=(
            Name("reward", "reward.mean", definition=_REWARD),
            Name(
                "group_reward_std", "group.std_mean",
                definition=_rows("mean over groups of the std (ddof 0) of rewards", of("rows_deviation", ddof=0.0), "reward"),
            ),
            Name(
                "kl_ref", "ref.kl_k1", factor=-1.0, algorithms=_GRPO, holds=_negated, note=_NEGATED_NOTE, definition=_MINUS_K1,
            ),
            Name(
                "kl_ref", "ref.kl", algorithms=_PPO,
                definition=exact(
                    "mean over updates of rank 0 of sum(k3(y)) / tokens",
                    Recipe(_K3, _UPDATES, unit="nat"),
                ),
            ),
            Name("kl_ref", "ref.kl", definition=absent("is minus k1 in one script and k3 in the other, and which is not told")),
            Name(
                "approx_kl", "policy.kl_old_k2",
                definition=exact(
                    "mean over updates of the mean over ranks of sum(k2(x)) / tokens; the only one of all",
                    Recipe(of("estimate", kind="k2"), _UPDATES_OF_ALL, unit="nat"),
                ),
            ),
            Name("kl", "policy.kl_old", definition=_OTHER),
            Name(
                "clipfrac", "policy.outside_frac", note="counts every ratio out of range, whatever the sign of the advantage",
                definition=exact(
                    "mean over updates of rank 0 of sum([abs(r - 1) > clip_epsilon]) / tokens",
                    Recipe(of("outside", low=f"{_CLIP}low", high=f"{_CLIP}high"), _UPDATES),
                ),
            ),
            Name("policy_loss", "sft.loss", algorithms=_SFT, definition=_OTHER),
            Name("policy_loss", "policy.loss_total", algorithms=_GRPO, definition=_POLICY_LOSS),
            Name("policy_loss", "policy.loss_total", definition=_OTHER),
            Name("loss", "sft.loss", algorithms=_SFT, definition=_SUPERVISED),
            Name("loss", "pref.loss", algorithms=_DPO, definition=_PAIRS),
            Name("dpo_loss", "pref.loss", algorithms=_DPO, definition=_PAIRS),
            Name(
                "critic_loss", "value.loss",
                definition=exact(
                    "mean over updates of rank 0 of sum(max((V - G)^2, (clip(V, V_old -+ cliprange_value) - G)^2)) / 2 tokens",
                    Recipe(of("value_error", clip="native.cliprange_value|config.value_clip"), _UPDATES, factor=0.5),
                ),
            ),
            Name(
                "advantages_mean", "adv.sequence_mean",
                definition=_rows("mean of (reward - group mean) / (group std (ddof 0) + 1e-4)", _ADVANTAGE),
            ),
            Name(
                "advantages_std", "adv.std",
                definition=_rows(
                    "std (ddof 1) over sequences of (reward - group mean) / (group std (ddof 0) + 1e-4)", _ADVANTAGE,
                    statistic="std",
                ),
            ),
            Name(
                "avg_response_len", "length.mean", algorithms=_PPO,
                definition=_rows(
                    "mean number of tokens up to the end-of-sequence token, at least 1 each",
                    of("rows_at_least", of=of("rows_tokens"), bound=1.0), "tokens",
                ),
            ),
            Name("avg_response_len", "length.mean", definition=_LENGTHS),
            Name("actor_lr", "optim.learning_rate", definition=_SCHEDULE),
            Name("learning_rate", "optim.learning_rate", definition=_SCHEDULE),
            Name("Reward", "reward.mean", definition=_REWARD),
            Name("Avg Response Len", "length.mean", definition=_LENGTHS),
            Name("Actor Loss", "policy.loss_total", algorithms=_GRPO, definition=_POLICY_LOSS),
            Name("Actor Loss", "policy.loss_total", definition=_OTHER),
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
