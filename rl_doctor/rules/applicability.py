"""Rules that do not apply to a kind of training, whatever is recorded of it."""

from __future__ import annotations

from typing import Final

from rl_doctor.rules.view import View
from rl_doctor.schema import PREFERENCE, SUPERVISED

_WITHOUT_CRITIC: Final = frozenset(
    {"grpo", "dr_grpo", "gspo", "dapo", "rloo", "reinforce", "reinforce_plus_plus", "remax", "online_dpo"}
)
_SAMPLED: Final = ("reward.", "policy.kl_old", "policy.clip_frac", "adv.", "group.")
"""Prefixes of metrics that only training on a policy's own samples has."""
_PREFERENCE_RULES: Final = "RLD43"
_VALUE_RULE: Final = "RLD420"
_REWARD_RULES: Final = ("RLD40", "RLD41", "RLD42")


def inapplicable(code: str, view: View) -> str | None:
    """Why a rule that found nothing to look at cannot apply to this training; None where it could."""
    algorithm = (view.info.algorithm or "").lower()
    offline = algorithm in PREFERENCE or algorithm in SUPERVISED
    if code.startswith(_PREFERENCE_RULES) and algorithm not in PREFERENCE:
        sampled = any(name.startswith(_SAMPLED) and len(series.measured()) for name, series in view.all_series.items())
        return "not preference training" if algorithm or sampled else None
    if code == _VALUE_RULE:
        estimator = view.config.adv_estimator or ""
        named = next((name for name in (estimator, algorithm) if name in _WITHOUT_CRITIC), algorithm if offline else None)
        return f"no critic: {named} has none" if named else None
    if code.startswith(_REWARD_RULES) and offline:
        return f"no reward: {algorithm} does not train on one"
    return None
