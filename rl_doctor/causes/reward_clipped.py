"""A reward that is cut off where its components are not."""

from __future__ import annotations

from rl_doctor.causes.registry import cause
from rl_doctor.causes.signs import found, measured, over

cause(
    "reward-clipped-below-its-parts",
    "the reward is clipped below what its components give",
    explains=("reward-clipped", "reward-at-bound"),
    leads_to=(
        "reward-at-bound", "zero-variance-groups", "near-zero-variance-groups", "grad-vanished", "reward-flatline",
        "reward-component-idle", "reward-not-its-parts", "reward-component-imbalance", "source-without-signal",
    ),
    signs=(
        found("reward-clipped", "the components go beyond a bound at which the reward stands still"),
        measured(
            "clip.high_frac", over(0.0), "good responses are cut off", "{}% of the responses would earn more", role="typical",
            scale=100,
        ),
        found("zero-variance-groups", "whole groups stand at the bound", role="typical"),
    ),
    advice=(
        "Widen or remove the clip, or rescale the components so that their sum falls inside.",
        "If one data source is on another scale than the rest, normalise it by itself: a clip that fits one flattens the other.",
    ),
    source="reproduced by clipping the sum of two components",
    doc="""Between its bounds the reward is an exact weighted sum of its components, at a bound it is less than that. Better
    answers earn no more there than good ones. A reward that reaches its natural end has components that do so as
    well.""",
)  # fmt: skip
