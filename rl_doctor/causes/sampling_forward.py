"""Engine and trainer compute different numbers for the same tokens in all rows: precision, routing, a wrong forward pass."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import cause
from rl_doctor.causes.sampling_signs import (
    CONSEQUENCES,
    GAP,
    at_improbable_tokens,
    calm_rows,
    engine_moved,
    everywhere,
    honest,
    lowered,
    some_gap,
    there_at_first,
    whole_rows,
)
from rl_doctor.causes.signs import between, found, measured, over, under

_FOLLOWS: Final = (*CONSEQUENCES, "reward-drift", "entropy-explosion", "length-explosion", "length-truncation", "wrong-reference")
_SCORE: Final = "Score one response with engine and trainer, alone, unpadded and in float32, and compare token by token."
_SOURCE: Final = "training-inference mismatch (public posts and trainer issues)"
_SLOPE: Final = measured("mismatch.slope", between(0.9, 1.1), "the slope is 1", "the slope of trainer on engine is {}")
_UNRELATED: Final = measured("mismatch.corr", under(0.6), "the two hardly correlate", "their correlation is {}", role="typical")
_REFERENCE_ALIKE: Final = measured(
    "mismatch.rollout_to_ref", over(0.5), "the reference's logprobs, of the same code, are as far from the engine's",
    "the engine's logprobs are {} nat from the reference's", role="typical",
)  # fmt: skip

cause(
    "engine-and-trainer-differ",
    "engine and trainer compute different distributions, and these numbers do not tell why",
    explains=GAP,
    leads_to=_FOLLOWS,
    signs=(some_gap(),),
    advice=(
        "Record rollout_logprob, old_logprob and logprob per token: shift, temperature, truncation and stale weights show there.",
        _SCORE,
    ),
    source=_SOURCE,
    doc="""What is left where the columns that would tell more are not there, or none of the known shapes fits: inconclusive.""",
)

cause(
    "kernels-or-precision",
    "engine and trainer run the same weights with other kernels or another precision",
    explains=GAP,
    leads_to=CONSEQUENCES,
    signs=(
        some_gap(),
        _SLOPE,
        measured("mismatch.corr", over(0.8), "the two correlate well", "their correlation is {}"),
        measured("mismatch.tail", under(8.0), "all tokens carry the difference, not a few",
                 "mean d^2 is {} times the square of mean |d|"),
        measured("mismatch.one_sided_frac", between(0.1, 0.9), "the difference goes to both sides",
                 "{}% of what stands out is negative", role="typical", scale=100.0),
        honest("typical"),
        at_improbable_tokens,
        everywhere,
        there_at_first("needed"),
    ),
    advice=(
        "Compute the last layer in float32 on both sides; half-precision heads cost the most.",
        "Use float16 in place of bfloat16, the same attention kernels, and kernels that do not depend on the batch.",
        "Until then correct with truncated importance weights of tokens, and watch the improbable ones.",
    ),
    source="training-inference mismatch (public posts); arXiv:2510.26788 (float16 against the mismatch)",
    doc="""Noise on both sides, largest at improbable tokens: each step trains on slightly the wrong law, and long runs collapse.

    Small sizes are normal and no finding: a mean |d| of .01 to .02 nat and a mean difference of probabilities of .004.""",
)  # fmt: skip

cause(
    "expert-routing-differs",
    "single tokens differ wildly, as where experts are chosen differently",
    explains=GAP,
    leads_to=CONSEQUENCES,
    signs=(
        some_gap(),
        _SLOPE,
        measured("mismatch.tail", over(8.0), "few tokens carry the difference", "mean d^2 is {} times the square of mean |d|"),
        measured("mismatch.one_sided_frac", between(0.05, 0.95), "the difference goes to both sides",
                 "{}% of what stands out is negative", scale=100.0),
        whole_rows(wanted=False),
        everywhere,
        there_at_first("typical"),
    ),
    advice=(
        "If the model is a mixture of experts, record the engine's routing and replay it in the trainer.",
        "Otherwise look at single tokens with a large |d|: their kind (numbers, special tokens) and place.",
        "Leave sequences with such tokens out, or cut importance weights low.",
    ),
    source="public trainer issues: a tenth of the routers disagree between engine and trainer",
    doc="""Most tokens agree and a few are off by a nat or more, anywhere in the response and in all rows.

    Precision spreads its difference over all improbable tokens; a fault of some rows leaves the other rows alone.""",
)  # fmt: skip

cause(
    "trainer-forward-broken",
    "the trainer's forward pass is not the model that sampled",
    explains=GAP,
    leads_to=_FOLLOWS,
    signs=(
        some_gap(),
        lowered("needed"),
        calm_rows("needed", many=False),
        engine_moved("needed", wanted=False),
        _UNRELATED,
        measured("policy.entropy_gap_share", over(0.3), "the tokens cost far more than the policy's entropy",
                 "the tokens cost {}% more than the policy's entropy", role="typical", scale=100.0),
        _REFERENCE_ALIKE,
        found("entropy-explosion", "the entropy grows", role="typical"),
    ),
    advice=(
        _SCORE,
        "Look at packing and its alignment, position ids, attention kernels and sinks, dropout, adapters, hooks on activations.",
        "Do not trust a ratio near 1: old_logprob and logprob share the fault.",
    ),
    source="public trainer issues and runs: packing without aligned padding, masked activations, unsupported attention sinks",
    doc="""Training goes on, the ratio is near 1, and the gradient is that of another model.

    Weights that reached the engine damaged give the same distance; then the engine's own logprobs and the text change too.""",
)  # fmt: skip
