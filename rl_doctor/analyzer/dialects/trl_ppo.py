"""TRL's names of PPO, which left its trainers with 0.26, and of the older trainer, which has ``ppo/`` before them."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.recipes import Fold, Recipe, absent, derived, of
from rl_doctor.analyzer.dialects.registry import Name

_PPO: Final = frozenset({"ppo"})
_CELLS: Final = Fold(apart=("rank", "rollout_step", "epoch", "minibatch", "microbatch"))
_CLIP: Final = {"low": "config.clip_low|native.cliprange", "high": "config.clip_high|native.cliprange"}
_MEANS: Final = "*mean of responses*"
_PADDED: Final = absent("is a mean over the padded width, of whose padding nothing is stored")
_POSITION: Final = absent("covers one position after the response, whose value is not recorded")
_OLD: Final = absent("is of the trainer before 0.12, which is not recomputed")
_REFERENCE: Final = {"first": "old_logprob", "second": "ref_logprob"}

PPO_NAMES: Final = (
    Name(
        "objective/scores",
        "reward.score_mean",
        algorithms=_PPO,
        definition=derived("mean score over rows", Recipe(of("row", name="score"), level="rollout", unit="reward")),
    ),
    Name(
        "objective/rlhf_reward",
        "reward.mean",
        algorithms=_PPO,
        definition=absent("the score and the penalty are not joined", "mean score - kl_coef times objective/kl"),
    ),
    Name(
        "objective/non_score_reward",
        None,
        algorithms=_PPO,
        definition=absent("the coefficient is not applied", "-kl_coef times objective/kl"),
    ),
    Name("ppo/mean_scores", "reward.score_mean", algorithms=_PPO, definition=_OLD),
    Name("env/reward_mean", "reward.mean", algorithms=_PPO, definition=_OLD),
    Name("env/reward_std", "reward.std", algorithms=_PPO, definition=_OLD),
    Name("ppo/std_scores", "reward.score_std", algorithms=_PPO, definition=_OLD),
    Name(
        "objective/kl",
        "ref.kl_sequence",
        algorithms=_PPO,
        measured=True,
        note="is the sum over a response, not the mean over tokens",
        definition=derived(
            "sum over the response of old_logprob - ref_logprob (k1) or of k3; mean over rows",
            Recipe(
                of("log_ratio", **_REFERENCE),
                Fold(row="sum", empty=True),
                unit="nat",
                when={"native.kl_estimator|config.kl_estimator": ("k1",)},
            ),
            Recipe(
                of("estimate", first="ref_logprob", second="old_logprob", kind="k3"),
                Fold(row="sum", empty=True),
                unit="nat",
                when={"native.kl_estimator|config.kl_estimator": ("k3",)},
            ),
        ),
    ),
    Name("policy/entropy_avg", "policy.entropy", algorithms=_PPO, definition=_PADDED),
    Name("ppo/policy/entropy", "policy.entropy", algorithms=_PPO, definition=_OLD),
    Name(
        "objective/entropy",
        "policy.entropy_sequence",
        algorithms=_PPO,
        note="is the sum over a response, not the mean over tokens",
        definition=absent(
            "counts -1 for each position of padding, which is not stored",
            "minus old_logprob summed over the padded response, padding as 1; mean over rows",
        ),
    ),
    Name("policy/approxkl_avg", "policy.kl_old_k2", algorithms=_PPO, definition=_PADDED),
    Name("ppo/policy/approxkl", "policy.kl_old_k2", algorithms=_PPO, definition=_OLD),
    Name("ppo/policy/policykl", "policy.kl_old_k1", algorithms=_PPO, definition=_OLD),
    Name(
        "policy/clipfrac_avg",
        "policy.clip_frac",
        algorithms=_PPO,
        definition=derived(f"1[-A clip(r) > -A r], r = exp(x); {_MEANS}", Recipe(of("binds", **_CLIP), _CELLS)),
    ),
    Name("ppo/policy/clipfrac", "policy.clip_frac", algorithms=_PPO, definition=_OLD),
    Name("val/ratio", "policy.ratio_mean", algorithms=_PPO, definition=_PADDED),
    Name("val/ratio_var", None, algorithms=_PPO, definition=_PADDED),
    Name("ppo/policy/ratio", None, algorithms=_PPO, definition=_OLD),
    Name(
        "loss/policy_avg",
        "policy.loss_pg",
        algorithms=_PPO,
        definition=derived(f"max(-A r, -A clip(r)); {_MEANS}", Recipe(of("surrogate", **_CLIP), _CELLS)),
    ),
    Name("ppo/loss/policy", "policy.loss_pg", algorithms=_PPO, definition=_OLD),
    Name("loss/value_avg", "value.loss", algorithms=_PPO, definition=_POSITION),
    Name("ppo/loss/value", "value.loss", algorithms=_PPO, definition=_OLD),
    Name("val/clipfrac_avg", "value.clip_frac", algorithms=_PPO, definition=_POSITION),
    Name("ppo/val/clipfrac", "value.clip_frac", algorithms=_PPO, definition=_OLD),
    Name("ppo/val/var_explained", "value.explained_var", algorithms=_PPO, definition=_OLD),
    Name("ppo/val/mean", "value.mean", algorithms=_PPO, definition=_OLD),
    Name("ppo/policy/advantages_mean", "adv.mean", algorithms=_PPO, definition=_OLD),
    Name("ppo/returns/mean", "return.mean", algorithms=_PPO, definition=_OLD),
    Name("tokens/responses_len_mean", "length.mean", algorithms=_PPO, definition=_OLD),
    Name("lr", "optim.learning_rate", algorithms=_PPO, definition=absent("is a setting of the step")),
    Name("ppo/learning_rate", "optim.learning_rate", algorithms=_PPO, definition=absent("is a setting of the step")),
)
