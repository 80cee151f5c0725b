"""Training on pairs that goes wrong, and responses that the engine did not finish or the policy did not write."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import cause
from rl_doctor.causes.signs import found, measured, over, under

_STILL: Final = "preference-not-learning"
_STAYS: Final = ("kl-flatline", "grad-vanished", "grad-zero", "inert-ratio")

cause(
    "pairs-told-apart-for-good",
    "all pairs are told apart, and the loss goes on pushing the rejected responses down",
    explains=("preference-margin-explosion",),
    leads_to=("chosen-logprob-falls", "grad-vanished", "grad-zero"),
    signs=(
        found("preference-margin-explosion", "the margin grows to a multiple of what tells pairs apart"),
        measured("pref.accuracy", over(0.9), "nearly all pairs are told apart", "{}% of the pairs are told apart",
                 role="typical", scale=100.0),
    ),
    advice=(
        "Stop where the held-out accuracy stands still; take fewer passes over the pairs, or a larger beta.",
        "Use a loss that is bounded (IPO), or smooth the labels.",
    ),
    source="arXiv:2310.12036 (IPO): without noise in the labels the margin has no bound",
    doc="""A pair that is told apart has a loss that still falls with the margin. Where pairs differ in something trivial, such
    as their length or an end token, that is soon.""",
)  # fmt: skip
cause(
    "pairs-of-equal-text",
    "chosen and rejected responses are the same text",
    explains=(_STILL,),
    leads_to=_STAYS,
    signs=(found(_STILL, "both sides have the same logprobs", suspect="pairs-of-equal-text"),),
    advice=("Read a few pairs as they reach the model, after templates and truncation.",),
    source="public issue threads on pairs that are cut to a common prefix",
    doc="""The pairs were built wrongly, or the limit cuts both sides before they part.""",
)
cause(
    "pair-loss-of-nothing",
    "the loss on pairs is computed on nothing",
    explains=(_STILL,),
    leads_to=_STAYS,
    signs=(found(_STILL, "the loss is exactly 0 although no margin explains it", suspect="pair-loss-of-nothing"),),
    advice=("Count the labels that are not masked in one batch.", "An undecided pair has a loss of log 2, not of 0."),
    source="public issue threads on labels that are masked as a whole",
    doc="""Every label is masked, or the loss is multiplied by 0.""",
)
cause(
    "pairs-never-told-apart",
    "the rate is too small, or the sides of the pairs were labelled at random",
    explains=(_STILL,),
    leads_to=_STAYS,
    signs=(
        found(_STILL, "half of the pairs are right to the end", suspect="pairs-never-told-apart"),
        measured("optim.learning_rate", under(1e-7), "the learning rate is tiny", "the learning rate is {}", role="typical"),
    ),
    advice=("Raise the learning rate tenfold for a few hundred steps.", "Let two people label twenty pairs, and compare."),
    source="arXiv:2305.18290 (DPO)",
    doc="""The policy moves, or could, and what it learns does not carry over from pair to pair.""",
)
cause(
    "policy-stays-at-reference",
    "the policy does not leave its reference: it does not move, or the reference moves with it",
    explains=(_STILL,),
    leads_to=_STAYS,
    signs=(
        found(_STILL, "the margin is exactly 0 after the first step", suspect="policy-stays-at-reference"),
        found("learning-rate-zero", "the learning rate is logged as 0", role="typical"),
    ),
    advice=(
        "Compare the weights before and after a step; then those of the reference.",
        "With adapters, check that the reference pass disables the adapter that is trained.",
    ),
    source="arXiv:2305.18290 (DPO): a policy that is its reference has a loss of log 2",
    doc="""Frozen weights, a rate of 0, and a reference that is the policy itself give the same numbers. The gradient norm tells
    the first two from the last.""",
)  # fmt: skip
cause(
    "both-sides-lose-probability",
    "the chosen responses become less probable too: probability goes to text that is on neither side",
    explains=("chosen-logprob-falls",),
    signs=(found("chosen-logprob-falls", "the reward of the chosen responses falls while the margin grows"),),
    advice=("Add a supervised term on the chosen responses, or raise beta.", "Read what the policy writes now."),
    source="arXiv:2402.13228 (DPO-Positive)",
    doc="""The loss asks for a difference only. Where both sides share most of their tokens it is cheapest to lower both.""",
)
cause(
    "sides-of-pairs-swapped",
    "the sides of the pairs are swapped, or the loss has the wrong sign",
    explains=("preference-reversed",),
    leads_to=("chosen-logprob-falls", "preference-margin-explosion"),
    signs=(found("preference-reversed", "the margin falls below 0"),),
    advice=("Read one pair as the loss gets it: which side is the better one?",),
    source="reproduced by swapping the columns",
    doc="""Training works at full strength, towards what was rejected.""",
)
cause(
    "engine-aborts-responses",
    "the engine aborts responses, and they are trained on as if they were complete",
    explains=("aborted-responses",),
    leads_to=("reward-drift", "reward-variance-shift", "length-collapse", "mask-misses-eos"),
    signs=(found("aborted-responses", "many responses were aborted"),),
    advice=(
        "Read the engine's log for time-outs and preemptions; lower its concurrency or raise its memory share.",
        "Leave aborted responses out of the batch, or mask them.",
    ),
    source="public issue threads on time-outs in agentic rollouts",
    doc="""An unfinished answer counts as wrong, whatever it was going to say: what takes long is avoided. Responses that are cut
    at the length limit are another matter: those the policy could have made shorter.""",
)
cause(
    "part-of-another-policy",
    "a part of each response comes from another policy than the one that is trained",
    explains=("part-off-policy",),
    leads_to=("ratio-saturation", "kl-spike"),
    signs=(found("part-off-policy", "the old logprobs of that part are not the policy's"),),
    advice=("Recompute the old logprobs of that part with the policy, or leave it out of the loss.",),
    source="public issue threads on prefixes that another model wrote",
    doc="""The rest of the response is in order, so that means over all tokens hide it.""",
)
