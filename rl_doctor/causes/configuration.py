"""What a configuration contradicts, or wastes for certain; each is recognised by a rule that reads it."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import Sign, cause
from rl_doctor.causes.signs import found, found_any, measured, over, under

_STILL: Final = (
    "reward-flatline", "kl-flatline", "grad-zero", "grad-vanished", "reward-component-idle", "inert-ratio",
    "update-cut-short", "advantage-without-difference",
)  # fmt: skip
"""What a policy that does not learn shows."""
_WILD: Final = (
    "ratio-saturation", "kl-spike", "kl-runaway", "grad-norm-spike", "grad-norm-growth", "entropy-collapse", "entropy-explosion",
    "sudden-collapse", "reward-drift", "update-cut-short", "non-finite", "stale-samples-uncorrected",
)  # fmt: skip
"""What updates that are too large show."""


def _configured(rule: str, name: str, words: str) -> Sign:
    return found(rule, words, suspect=name)


_STANDS_STILL: Final = found_any("the policy does not move, or the reward does not", *_STILL, role="typical")
_GOES_WILD: Final = found_any("updates are too large", *_WILD, role="typical")

cause(
    "clip-bounds-for-distances", "clip_low and clip_high are given as bounds, where distances from 1 are taken",
    explains=("clip-range-contradictory",), leads_to=_WILD,
    signs=(
        _configured("clip-range-contradictory", "clip-bounds-for-distances", "the two bounds lie around 1"),
        measured("policy.clip_frac", under(0.01), "hardly any ratio is clipped", "{}% of the tokens are clipped", role="typical",
                 scale=100.0),
        _GOES_WILD,
    ),
    advice=("Give distances: .2 and .2 for bounds of .8 and 1.2.",),
    source="PPO, arXiv:1707.06347: the bounds are 1 - epsilon and 1 + epsilon",
    doc="""The range is then about .2 to 2.2: next to nothing is clipped, and nothing bounds an update.""",
)  # fmt: skip
cause(
    "dual-clip-too-small", "dual_clip is so small that it binds before anything has moved",
    explains=("clip-range-contradictory",), leads_to=("ratio-saturation", *_STILL),
    signs=(_configured("clip-range-contradictory", "dual-clip-too-small", "dual_clip is 1 or less"), _STANDS_STILL),
    advice=("Set dual_clip to 3, or leave it out.",),
    source="Dual clip, arXiv:1912.09729, where c > 1",
    doc="""Tokens with a negative advantage have no gradient once their ratio is at dual_clip: at 1 or less that is every one of
    them, at once. Only what was good is learned from.""",
)  # fmt: skip
cause(
    "clip-range-of-nothing", "the clip range is 0",
    explains=("clip-range-contradictory",), leads_to=("ratio-saturation", *_STILL),
    signs=(
        _configured("clip-range-contradictory", "clip-range-of-nothing", "both distances are 0, and batches are used again"),
        measured("policy.outside_frac", over(0.2), "many ratios lie outside", "{}% of the ratios lie outside the range",
                 role="typical", scale=100.0),
    ),
    advice=("Set clip_low and clip_high to .2, or take one step per batch.",),
    source="PPO, arXiv:1707.06347",
    doc="""After the first step on a batch every token that moved as it should is clipped: the other steps only undo.""",
)  # fmt: skip
cause(
    "clip-bounds-swapped", "clip_low and clip_high may be swapped",
    explains=("clip-range-contradictory",), leads_to=("entropy-collapse",),
    signs=(
        _configured("clip-range-contradictory", "clip-bounds-swapped", "the lower bound is farther away than the upper"),
        found("entropy-collapse", "the entropy collapses", role="typical"),
    ),
    advice=("Swap them if exploration was meant: clip-higher lets unlikely tokens rise.",),
    source="Clip-higher, arXiv:2503.14476",
    doc="""Probabilities may fall farther than they may rise, which lowers the entropy. It may be meant.""",
)  # fmt: skip
cause(
    "no-lower-clip-bound", "ratios have no lower clip bound",
    explains=("clip-range-contradictory",), leads_to=("entropy-collapse", "kl-spike"),
    signs=(_configured("clip-range-contradictory", "no-lower-clip-bound", "clip_low is 1 or more"), _GOES_WILD),
    advice=("If that is not meant, set clip_low to .2.",),
    source="PPO, arXiv:1707.06347",
    doc="""Tokens of bad responses may be pushed to any probability within one batch. Some methods do so on purpose.""",
)  # fmt: skip
cause(
    "slices-taken-for-on-policy", "later slices of a generation batch are taken for on-policy",
    explains=("slices-without-old-logprob",), leads_to=("inert-ratio",),
    signs=(_configured("slices-without-old-logprob", "slices-taken-for-on-policy", "steps end within generation batches"),),
    advice=("Make gradient_accumulation_steps a multiple of steps_per_generation, or update the trainer.",),
    source="Public issue on a trainer without old log-probabilities for later slices",
    doc="""Their ratio is 1 by construction: what was learned since sampling is not corrected for.""",
)  # fmt: skip
cause(
    "batch-smaller-than-its-part", "a generation batch does not hold what it is divided into",
    explains=("batch-left-over",), leads_to=("broken-groups", *_STILL),
    signs=(_configured("batch-left-over", "batch-smaller-than-its-part", "the batch is smaller than its part"), _STANDS_STILL),
    advice=("Raise the generation batch, or lower the mini-batch or the group.",),
    source="Documentation of trainers that require it",
    doc="""There is not one whole mini-batch, or not one whole group, in a batch.""",
)  # fmt: skip
cause(
    "batch-with-remainder", "the last mini-batch of each generation batch is a smaller one",
    explains=("batch-left-over",), leads_to=("uneven-token-weights",),
    signs=(_configured("batch-left-over", "batch-with-remainder", "the sizes do not divide each other"),),
    advice=("Choose a mini-batch that divides the generation batch.",),
    source="Documentation of trainers that require or round such sizes",
    doc="""Samples of the last mini-batch weigh more, since an update of a few counts as much as one of many.""",
)  # fmt: skip
cause(
    "entropy-bonus-reversed", "entropy is penalised instead of rewarded",
    explains=("entropy-penalised",), leads_to=("entropy-collapse", "zero-variance-groups", "duplicate-samples", "grad-vanished",
                                              "reward-flatline", "same-answer-rewarded", "near-zero-variance-groups"),
    signs=(
        _configured("entropy-penalised", "entropy-bonus-reversed", "the coefficient is negative"),
        found("entropy-collapse", "the entropy collapses", role="typical"),
    ),
    advice=("Turn the sign of entropy_coef, or set it to 0.",),
    source="PPO, arXiv:1707.06347, equation 9",
    doc="""The policy is pushed towards certainty whatever the reward says.""",
)  # fmt: skip
cause(
    "range-of-tokens-on-sequences", "the clip range is one for tokens, and ratios are those of sequences",
    explains=("clip-range-for-other-ratio",), leads_to=_WILD,
    signs=(_configured("clip-range-for-other-ratio", "range-of-tokens-on-sequences", "a wide range, and one ratio per sequence"),
           _GOES_WILD),
    advice=("Start at 3e-4 and 4e-4, and look at the share that is clipped.",),
    source="GSPO, arXiv:2507.18071",
    doc="""A geometric mean over a response hardly leaves 1: nothing is ever clipped.""",
)  # fmt: skip
cause(
    "range-of-sequences-on-tokens", "the clip range is one for sequences, and ratios are those of tokens",
    explains=("clip-range-for-other-ratio",), leads_to=("ratio-saturation", *_STILL),
    signs=(_configured("clip-range-for-other-ratio", "range-of-sequences-on-tokens", "a narrow range, and one ratio per token"),
           found("ratio-saturation", "many ratios lie outside the clip range", role="typical")),
    advice=("Start at .2.",),
    source="GSPO, arXiv:2507.18071; PPO, arXiv:1707.06347",
    doc="""Nearly every token that moves leaves the range at once.""",
)  # fmt: skip
cause(
    "two-responses-per-group", "groups have two responses",
    explains=("groups-of-two",), leads_to=("zero-variance-groups",),
    signs=(_configured("groups-of-two", "two-responses-per-group", "group_size is 2, with a division by the deviation"),),
    advice=("Sample 4 or more, or leave out the division by the deviation.",),
    source="GRPO, arXiv:2402.03300; Dr. GRPO, arXiv:2503.20783",
    doc="""Advantages are +.71 and -.71 (or +1 and -1) whenever the two differ, by whatever little.""",
)  # fmt: skip
cause(
    "greedy-sampling", "sampling is greedy",
    explains=("sampling-temperature-unusual",),
    leads_to=("zero-variance-groups", "duplicate-samples", "near-zero-variance-groups", "temperature-mismatch",
              "rollout-trainer-mismatch", "entropy-collapse", *_STILL),
    signs=(
        _configured("sampling-temperature-unusual", "greedy-sampling", "temperature 0, or one token to choose from"),
        measured("data.duplicate_frac", over(0.5), "most samples of a group are duplicates", "{}% of the samples are duplicates",
                 role="typical", scale=100.0),
    ),
    advice=("Sample at temperature 1.",),
    source="Group-relative methods need samples that differ (arXiv:2402.03300)",
    doc="""All samples of a prompt are one: no group has any variance.""",
)  # fmt: skip
cause(
    "temperature-far-from-one", "the temperature is far from 1",
    explains=("sampling-temperature-unusual",), leads_to=("entropy-collapse", "entropy-explosion", "zero-variance-groups"),
    signs=(_configured("sampling-temperature-unusual", "temperature-far-from-one", "the temperature is below .3 or above 2"),),
    advice=("Sample at .6 to 1.2.",),
    source="Recipes of public GRPO and PPO runs",
    doc="""It may be meant; the samples are then far from what the model itself would say.""",
)  # fmt: skip
cause(
    "ratios-over-cut-sampling", "importance ratios compare the engine's cut distribution with the trainer's whole one",
    explains=("cut-sampling-with-ratios",), leads_to=("truncated-sampling-mismatch",),
    signs=(
        _configured("cut-sampling-with-ratios", "ratios-over-cut-sampling", "ratios are in use, and sampling is cut"),
        measured("mismatch.exp_mean", under(0.999), "mean exp(logprob - rollout_logprob) is below 1",
                 "mean exp(logprob - rollout_logprob) is {}", role="typical"),
    ),
    advice=("Sample with top_p 1 and no top_k.", "Or normalise both sides over the same tokens."),
    source="Public threads on top_p and top_k in importance ratios",
    doc="""Each ratio carries the logarithm of the share of probability that sampling kept.""",
)  # fmt: skip
cause(
    "response-takes-context", "the longest response does not fit into the engine's context",
    explains=("no-room-for-response",), leads_to=("length-truncation", "zero-variance-groups", "reward-flatline"),
    signs=(_configured("no-room-for-response", "response-takes-context", "the response takes the whole context"),
           found("length-truncation", "responses are cut", role="typical")),
    advice=("Raise the context above max_response_length by the longest prompt.",),
    source="Public runs whose responses all ended at a limit of the engine",
    doc="""With any prompt the engine cuts responses before their own limit.""",
)  # fmt: skip
cause(
    "prompt-and-response-exceed-context", "long prompts leave less room than responses may take",
    explains=("no-room-for-response",), leads_to=("length-truncation",),
    signs=(_configured("no-room-for-response", "prompt-and-response-exceed-context", "both together exceed the context"),
           found("length-truncation", "responses are cut", role="typical")),
    advice=("Raise the context, or filter long prompts.",),
    source="Public runs whose responses ended at a limit of the engine",
    doc="""Responses to long prompts are cut before their own limit.""",
)  # fmt: skip
cause(
    "discount-too-strong", "the discount hides the reward from early tokens",
    explains=("discount-hides-reward",), leads_to=("length-collapse", "reward-flatline", "value-not-learning"),
    signs=(_configured("discount-hides-reward", "discount-too-strong", "gamma to the power of the length is next to nothing"),),
    advice=("Set gamma to 1.",),
    source="GAE, arXiv:1506.02438",
    doc="""Only endings are trained, and short responses get more of the reward.""",
)  # fmt: skip
cause(
    "rate-unusually-high", "the learning rate is unusually high",
    explains=("learning-rate-unusual",), leads_to=_WILD,
    signs=(_configured("learning-rate-unusual", "rate-unusually-high", "the rate is above what is usual"), _GOES_WILD),
    advice=("Lower it by a factor of ten and compare.",),
    source="Recipes of public GRPO and PPO runs",
    doc="""Small models bear high rates; large ones forget.""",
)  # fmt: skip
cause(
    "rate-unusually-low", "the learning rate is unusually low",
    explains=("learning-rate-unusual",), leads_to=_STILL,
    signs=(_configured("learning-rate-unusual", "rate-unusually-low", "the rate is below what is usual"), _STANDS_STILL),
    advice=("Raise it until the KL to the reference moves within 20 steps.",),
    source="Recipes of public GRPO and PPO runs",
    doc="""In half precision such steps vanish in rounding.""",
)  # fmt: skip
cause(
    "batch-reused-many-times", "each generation batch is used for many steps",
    explains=("batch-used-too-often",), leads_to=("ratio-saturation", "kl-spike", "update-cut-short"),
    signs=(_configured("batch-used-too-often", "batch-reused-many-times", "a batch gives more than 64 steps"),
           found("ratio-saturation", "many ratios lie outside the clip range", role="typical")),
    advice=("Sample more often, and take fewer steps on each batch.",),
    source="PPO, arXiv:1707.06347; arXiv:2006.05990",
    doc="""Clipping bounds each token once; the sum of many steps goes where it wants.""",
)  # fmt: skip
cause(
    "warm-up-beyond-the-end", "the warm-up is longer than the run",
    explains=("warm-up-never-ends",), leads_to=("warm-up-too-long", *_STILL),
    signs=(_configured("warm-up-never-ends", "warm-up-beyond-the-end", "more warm-up steps than steps"), _STANDS_STILL),
    advice=("Warm up for a few per cent of the steps.", "Check that both numbers count optimizer steps."),
    source="Public recipes in which two kinds of steps were mixed up",
    doc="""The rate never reaches what was meant.""",
)  # fmt: skip
