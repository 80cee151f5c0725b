"""Parts of the reward that drown the others, stand still, or reach a bound."""

from __future__ import annotations

from rl_doctor.causes.registry import cause
from rl_doctor.causes.reward import DRIFT, SHIFTED, end_by_themselves, same_policy
from rl_doctor.causes.signs import found

cause(
    "component-scale-changed",
    "one component of the reward has another scale from some step on",
    explains=("reward-component-imbalance", *DRIFT),
    leads_to=(*SHIFTED, "same-answer-rewarded", "length-collapse", "entropy-collapse"),
    signs=(found("reward-component-imbalance", "one component grew several times", suspect="component-scale-changed"),),
    advice=("Look for a changed weight, unit or normaliser of that component at that step.",),
    source="reproduced by scaling one component",
    doc="""The whole reward jumps because one of its parts does.""",
)
cause(
    "component-drowns-others",
    "one component is on a larger scale, so that the others decide nothing",
    explains=("reward-component-imbalance",),
    leads_to=("signal-from-failures", "reward-hacking-suspected", "reward-component-idle"),
    signs=(found("reward-component-imbalance", "one component holds all the variance", suspect="component-drowns-others"),),
    advice=("Bring components to one scale before they are added, or set their weights accordingly.",),
    source="public post-mortems in which a shaped component drives the update",
    doc="""Which response of a group is reinforced is decided by what varies most within the group.""",
)
cause(
    "component-constant-and-large",
    "a component is constant and so large that nothing else shows",
    explains=("reward-component-imbalance",),
    leads_to=(),
    signs=(found("reward-component-imbalance", "a component stands at one large value", suspect="component-constant-and-large"),),
    advice=("Leave it out: a constant teaches nothing.",),
    source="arithmetic",
    doc="""It cancels against a group's mean, and hides the rest in every curve.""",
)
_LOST = (
    *SHIFTED, *DRIFT, "signal-from-failures", "reward-hacking-suspected", "length-collapse", "entropy-collapse",
    "sudden-collapse", "grad-norm-growth", "grad-vanished", "grad-zero", "reward-flatline", "kl-flatline", "wrong-answers-grow",
)  # fmt: skip
"""What follows where a part of the reward is no longer what the policy earned."""
cause(
    "verifier-of-component-fails",
    "a component of the reward is no longer computed: it varied, and is one value for every response since",
    explains=("reward-component-idle", *DRIFT),
    leads_to=_LOST,
    signs=(
        found(
            "reward-component-idle",
            "a component that varied is one value from one step on",
            suspect="verifier-of-component-fails",
        ),
        end_by_themselves("typical"),
        same_policy,
    ),
    advice=(
        "Score by hand a few responses from before and after the step, with exceptions let through.",
        "Look for a verifier, sandbox or answer key that became unreachable at that step, and whose failure counts as 0.",
        "Go back to a checkpoint from before the step: since then the policy is trained for the other components alone.",
    ),
    source="public issue threads: a verifier that fails off the main thread, and whose exception counts as 0",
    doc="""The other components go on, so that the reward is not constant and only falls, or its spread does. A task that is too
    hard has no component that varied before; a policy that gets worse loses it over many steps.""",
)
cause(
    "component-earned-less",
    "one component of the reward is earned less often from one step on: its verifier loses verdicts, or is another one",
    explains=DRIFT,
    leads_to=_LOST,
    signs=(
        found("reward-drift", "the reward falls at once with one component, at the same values", suspect="component-earned-less"),
        same_policy,
        found("reward-component-idle", "the component is one value since", suspect="verifier-of-component-fails", role="against"),
    ),
    advice=(
        "Count time-outs and exceptions of the verifier by step: those that count as 0 are verdicts lost.",
        "Score a few responses from after the step again, one at a time, and compare.",
    ),
    source="public issue threads on verifiers that time out under load",
    doc="""The component still takes all of its values, only less often, from one step to the next, while the policy writes what
    it wrote. Wrong verdicts fall on all prompts alike; the gradient becomes noise by their share.""",
)
cause(
    "component-dead",
    "a component of the reward is never earned, or never computed",
    explains=("reward-component-idle",),
    leads_to=("signal-from-failures", "reward-hacking-suspected"),
    signs=(
        found("reward-component-idle", "a component is 0 for every response", suspect="component-dead"),
        end_by_themselves("typical"),
    ),
    advice=("Score by hand a few responses that should earn it, with exceptions let through.", "Give partial credit."),
    source="public runs in which one of five rewards is 0 at every step",
    doc="""The sum of the others hides the hole.""",
)
cause(
    "component-saturated",
    "a component of the reward is earned by every response",
    explains=("reward-component-idle",),
    leads_to=(),
    signs=(found("reward-component-idle", "a component is one value above 0", suspect="component-saturated"),),
    advice=("Drop it, or ask more for it.",),
    source="public runs whose format score is at its maximum from early on",
    doc="""Nothing is left to learn from it; it does no harm either.""",
)
cause(
    "reward-clamped",
    "the reward is clamped, and the policy has reached the clamp",
    explains=("reward-at-bound",),
    leads_to=("zero-variance-groups", "near-zero-variance-groups", "grad-vanished", "reward-flatline"),
    signs=(
        found("reward-at-bound", "a continuous reward stands at one extreme value for many responses"),
        found("zero-variance-groups", "whole groups stand at the bound", role="typical"),
    ),
    advice=(
        "Widen or remove the clamp, or rescale the reward so that its values fall inside.",
        "Read responses at the bound: a reward model that is certain of so many may be exploited.",
    ),
    source="public reports on reward models clamped at 3 in absolute value",
    doc="""At the bound a better answer earns no more than a good one. A reward with few values has bounds too, and those mean
    nothing.""",
)
