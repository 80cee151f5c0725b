"""Rewards that are not those of their responses: other weights, rows or solutions, a scorer of one source that fails."""

from __future__ import annotations

from rl_doctor.causes.registry import cause
from rl_doctor.causes.reward import SHIFTED, end_by_themselves, varied
from rl_doctor.causes.signs import found

cause(
    "reward-weights-ignored",
    "the weights of the components are left out of the reward",
    explains=("reward-not-its-parts",),
    leads_to=("reward-component-imbalance", "logged-metric-mismatch", "advantage-mismatch"),
    signs=(found("reward-not-its-parts", "the reward is the plain sum of its components", suspect="reward-weights-ignored"),),
    advice=("Check where the weights are applied: before the advantage, or only in the log.",),
    source="a public fix: the logged reward and its deviation ignored reward_weights",
    doc="""If only the logged number lacks them, the training is right and the curve wrong; the recorded rewards tell.""",
)
cause(
    "rewards-of-other-rows",
    "rewards stand in other rows than the responses that earned them",
    explains=("reward-not-its-parts", "advantage-mismatch", "advantage-without-difference", "mixed-groups"),
    leads_to=("reward-drift", "sudden-collapse", "logged-metric-mismatch", "zero-variance-groups", "reward-flatline"),
    signs=(found("reward-not-its-parts", "the same rewards occur, in other rows", suspect="rewards-of-other-rows"),),
    advice=(
        "Find the step that orders rows between reward and advantage (balancing, dynamic batches) and move all columns in it.",
    ),
    source="public issue threads: rewards keep the old order after dynamic batching shuffles the rows",
    doc="""All means stay right, which is why no curve shows it; training is on noise.""",
)
cause(
    "reward-has-unrecorded-part",
    "something entered the reward that is not recorded as a part of it",
    explains=("reward-not-its-parts", "reward-drift", "reward-variance-shift"),
    leads_to=SHIFTED,
    signs=(
        found("reward-not-its-parts", "the reward stops being the sum of its parts", suspect="reward-has-unrecorded-part"),
        found("reward-component-imbalance", "one component grew", suspect="component-scale-changed", role="against"),
    ),
    advice=("Record every penalty as a component; look for one that was switched on at that step.",),
    source="reproduced by adding a penalty in mid-run",
    doc="""Nothing that is recorded changes, and the sum does.""",
)
cause(
    "verifier-of-source-fails",
    "the scorer of one data source stopped working",
    explains=("source-without-signal",),
    leads_to=("zero-variance-groups", "reward-drift", "reward-variance-shift", "sudden-collapse"),
    signs=(
        found(
            "source-without-signal",
            "its rewards varied before, and are one value from some step on",
            suspect="verifier-of-source-fails",
        ),
        end_by_themselves("typical"),
        varied,
    ),
    advice=("Run the scorer of that source alone on stored responses, with exceptions let through.",),
    source="public issue threads on verifiers whose exceptions count as 0",
    doc="""Prompts do not become unsolvable from one step to the next.""",
)
cause(
    "source-scores-nothing",
    "one data source never tells responses apart: its scorer fails, or nobody solves it",
    explains=("source-without-signal",),
    leads_to=("zero-variance-groups",),
    signs=(
        found("source-without-signal", "all responses to the source get one reward", suspect="source-scores-nothing"),
        end_by_themselves("typical"),
        varied,
    ),
    advice=("Score a few responses of that source by hand; if they are right, leave the source out or give partial credit.",),
    source="public issue threads on verifiers chosen by the wrong name",
    doc="""Which of the two it is the numbers cannot say.""",
)
cause(
    "source-solved",
    "one data source is solved",
    explains=("source-without-signal",),
    leads_to=("zero-variance-groups",),
    signs=(found("source-without-signal", "all responses to the source get the largest reward", suspect="source-solved"),),
    advice=("Take harder prompts of it, or sample it less.",),
    source="curricula whose easy part is solved first",
    doc="""It costs samples and teaches nothing.""",
)
cause(
    "solutions-of-the-first-prompt",
    "all prompts of a rank are scored against the solution of the first one",
    explains=("only-first-prompt-rewarded", "zero-variance-groups", "reward-flatline"),
    leads_to=("zero-variance-groups", "source-without-signal"),
    signs=(found("only-first-prompt-rewarded", "only the first group of every rank ever earns a reward"),),
    advice=("Repeat solutions exactly as prompts are repeated, and join both by an identity.",),
    source="public issue threads on a double repeat",
    doc="""It shows only where a rank has more prompts than one, so that a small test run looks well.""",
)
