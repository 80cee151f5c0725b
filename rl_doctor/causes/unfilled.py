"""A column of the trainer's logprobs that nobody filled."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import cause
from rl_doctor.causes.sampling_signs import CONSEQUENCES
from rl_doctor.causes.signs import found, found_any

_RULE: Final = "unfilled-logprob"
_FOLLOWS: Final = (
    *CONSEQUENCES, "stale-old-logprob", "logprob-misaligned", "temperature-mismatch", "truncated-sampling-mismatch",
    "coarse-logprob", "part-off-policy", "wrong-reference", "kl-below-zero", "kl-reversed", "kl-flatline",
    "kl-penalty-dominates", "mismatch-before-explosion", "stale-samples-uncorrected",
    "update-cut-short", "grad-vanished", "tokens-contradict-entropy", "missing-rollout-logprob", "mismatch-within-response",
    "non-finite", "reward-drift", "entropy-collapse", "sudden-collapse",
    "exponent-overflow",
)  # fmt: skip

cause(
    "logprob-never-filled",
    "a column of the trainer's logprobs was never filled",
    explains=(_RULE,),
    leads_to=_FOLLOWS,
    signs=(
        found(_RULE, "a logprob is exactly 0 over whole rows whose tokens are not certain", suspect="logprob-never-filled"),
        found_any(
            "ratios or KL are those of a policy that is certain", "stale-old-logprob", "ratio-saturation", "wrong-reference",
            "kl-spike", "kl-runaway", role="typical",
        ),
    ),
    advice=(
        ("Find the pass that should have filled it, and whether it ran for these rows: a branch that was skipped, a name that is "
        "spelled otherwise, a buffer that was allocated anew."),
        "Start such buffers with NaN: what is missing then shows at once.",
        "Judge ratio, KL and mismatch again once it is filled: none of them means anything until then.",
    ),
    source="an array that nobody wrote to is 0, and a logprob of 0 is probability 1",
    doc="""0 claims that the policy was certain of each token. Ratios then are the other policy's probabilities, and the KL is
    the mean of -logprob: the same numbers as of a policy that has run away, or of weights that are old.

    A policy that really is certain gives 0 in both passes. Here another logprob of the same tokens is far from 0.""",
)  # fmt: skip
