"""Value functions that explain nothing: too narrow a clip, divergence, a level that moved, or no learning at all."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import cause
from rl_doctor.causes.reward import DRIFT, baseline_moves_apart
from rl_doctor.causes.signs import found, found_any, measured, over

_FOLLOWS: Final = ("reward-flatline", "entropy-explosion", "grad-norm-spike", "kl-spike", "ratio-saturation")
_OFF: Final = found("value-not-learning", "the value function does not follow the returns")


cause(
    "reward-shift-hits-baseline",
    "the reward changed at once, and the baseline does not change with it",
    explains=("reward-drift", "reward-variance-shift", "value-not-learning"),
    leads_to=(*_FOLLOWS, "value-not-learning", "impossible-values"),
    signs=(
        found_any("the reward has another level or spread from one step on", *DRIFT),
        baseline_moves_apart("needed"),
        found("reward-drift", "the policy changed at the same step", suspect="policy-changed-at-once", role="against"),
        found("reward-drift", "the reward falls over many steps", suspect="policy-gets-worse", role="against"),
        found("reward-component-imbalance", "one component grew", suspect="component-scale-changed", role="against"),
        found("value-not-learning", "the value function explains nothing from then on", role="typical"),
    ),
    advice=("Pause until the shift is explained; then train the critic alone until it explains the returns again.",),
    source="PPO, arXiv:1707.06347",
    doc="""Within groups a common shift cancels. Against a value function every advantage carries it until the critic has caught
    up.""",
)
cause(
    "value-clip-too-narrow",
    "the clip range of the values is narrow against the scale of the returns",
    explains=("value-not-learning",),
    leads_to=_FOLLOWS,
    signs=(
        found("value-not-learning", "many values are clipped", suspect="value-clip-too-narrow"),
        measured(
            "value.clip_frac",
            over(0.3),
            "clipping binds at many tokens",
            "{}% of the values are clipped",
            role="typical",
            scale=100.0,
        ),
    ),
    advice=("Widen value_clip to the scale of the returns, or normalise the returns.",),
    source="PPO, arXiv:1707.06347, section 5",
    doc="""Returns of 10 and a clip of .2: the critic needs fifty updates for what one should do.""",
)
cause(
    "value-diverges",
    "the value function diverges",
    explains=("value-not-learning",),
    leads_to=_FOLLOWS,
    signs=(found("value-not-learning", "the value loss grows many times", suspect="value-diverges"),),
    advice=("Lower the critic's learning rate; clip its gradient; normalise the returns.",),
    source="PPO, arXiv:1707.06347",
    doc="""The loss grows while the scale of the rewards does not.""",
)
cause(
    "value-worse-than-constant",
    "the value function predicts worse than a constant would",
    explains=("value-not-learning",),
    leads_to=_FOLLOWS,
    signs=(found("value-not-learning", "the explained variance is well below 0", suspect="value-worse-than-constant"),),
    advice=(
        "Check that values are read at the tokens whose returns they predict (last token, padding side).",
        "Train the critic alone for some steps first.",
    ),
    source="explained variance as logged by most implementations",
    doc="""It adds noise to every advantage instead of taking some out.""",
)
cause(
    "value-learns-nothing",
    "the value function learns nothing of the returns",
    explains=("value-not-learning",),
    leads_to=_FOLLOWS,
    signs=(_OFF,),
    advice=("Raise the critic's learning rate or its updates; check that its loss has weight.",),
    source="explained variance as logged by most implementations",
    doc="""It predicts the mean, at best.""",
)
