"""TRL's names where a model learns from preferences or demonstrations: DPO and its like, reward models, supervised training."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.recipes import absent, exact
from rl_doctor.analyzer.dialects.registry import Name

PREFERENCE: Final = frozenset({"dpo", "kto", "orpo", "cpo"})
_DPO: Final = frozenset({"dpo"})
_OTHERS: Final = PREFERENCE - _DPO
_REWARD: Final = frozenset({"reward_model"})
_SFT: Final = frozenset({"sft"})
_ENTRIES: Final = "*pair means*"
_MARGIN: Final = "z the *margin*"
_NOT_SCORED: Final = absent("what the model makes of single responses is not recorded")
_ELSEWHERE: Final = absent("this trainer's rows are not recorded as pairs with a reference")
_EARLY: Final = absent("before 0.29 the same, but means over tokens with ipo: not recomputed")

PREFERENCE_NAMES: Final = (
    Name(
        "loss",
        "pref.loss",
        algorithms=_DPO,
        since=(0, 29),
        definition=exact(
            f"{_MARGIN}. sigmoid: -log sigmoid(beta z); robust: *robust loss*; hinge: max(1 - beta z, 0); ipo: "
            "(z - 1 / (2 beta))^2, and sigmoid_norm, of "
            f"logprobs divided by their tokens; times loss_weights; {_ENTRIES}. Other loss types are not recomputed"
        ),
    ),
    Name("loss", "pref.loss", algorithms=_DPO, definition=_EARLY),
    Name("loss", "pref.loss", algorithms=_OTHERS, definition=_ELSEWHERE),
    Name(
        "loss",
        "pref.loss",
        algorithms=_REWARD,
        definition=absent("scores of single responses are not recorded", "-log sigmoid(chosen - rejected score - margin)"),
    ),
    *(
        Name(native, metric, algorithms=algorithms, since=since, definition=definition)
        for native, metric, formula in (
            ("rewards/chosen", "pref.chosen_reward", "beta (logps_chosen - ref_chosen)"),
            ("rewards/rejected", "pref.rejected_reward", "beta (logps_rejected - ref_rejected)"),
            ("rewards/margins", "pref.margin", f"beta z, {_MARGIN}"),
            ("rewards/accuracies", "pref.accuracy", f"1[z > 0], {_MARGIN}; a tie is wrong"),
            ("logps/chosen", "pref.chosen_logprob", "logprob summed over the chosen completion"),
            ("logps/rejected", "pref.rejected_logprob", "logprob summed over the rejected completion"),
        )
        for algorithms, since, definition in (
            (_DPO, (0, 29), exact(f"{formula}; {_ENTRIES}")),
            (_DPO, None, _EARLY),
            (_OTHERS, None, _ELSEWHERE),
        )
    ),
    Name("margin", "pref.margin", algorithms=_REWARD, definition=_NOT_SCORED),
    Name("accuracy", "pref.accuracy", algorithms=_REWARD, definition=_NOT_SCORED),
    Name(
        "mean_reward",
        None,
        algorithms=_REWARD,
        note="is the score of the reward model being trained: nothing is rewarded",
        definition=_NOT_SCORED,
    ),
    Name("min_reward", None, algorithms=_REWARD, definition=_NOT_SCORED),
    Name("max_reward", None, algorithms=_REWARD, definition=_NOT_SCORED),
    Name("loss", "sft.loss", algorithms=_SFT, definition=absent("supervised training has no rows of a policy to record")),
    Name(
        "entropy",
        None,
        algorithms=PREFERENCE | _SFT,
        note="falls by design: no policy samples here",
        definition=absent("the vocabulary's logits are not recorded here", "mean over the completion tokens of all ranks"),
    ),
    Name(
        "mean_token_accuracy",
        None,
        definition=absent("which token is the likeliest is not recorded", "share of tokens that are the likeliest"),
    ),
    Name("logits/chosen", None, definition=absent("logits are not recorded", "mean logit over tokens and vocabulary")),
    Name("logits/rejected", None, definition=absent("logits are not recorded", "mean logit over tokens and vocabulary")),
    Name("kl", None, algorithms=PREFERENCE, definition=absent("is of mismatched pairs, which are not recorded")),
)
