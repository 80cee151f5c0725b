"""Engine and trainer speak of different laws: another temperature, a cut tail, another token."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import cause
from rl_doctor.causes.sampling_signs import CONSEQUENCES, honest
from rl_doctor.causes.signs import between, configured, found, measured, over, under

_TEMPERATURE: Final = "temperature-mismatch"
_FOLLOWS: Final = (
    *CONSEQUENCES, "stale-old-logprob", "impossible-logprob", "missing-rollout-logprob", "kl-below-zero",
    "mismatch-within-response",
)  # fmt: skip
_SLOPE: Final = measured(
    "mismatch.slope", lambda value: not 0.993 < value < 1.007, "the slope is not 1", "the slope of trainer on engine is {}"
)
_ALIKE: Final = measured("mismatch.corr", over(0.95), "the two are almost copies", "their correlation is {}")
_CONFIGURED: Final = configured(
    "temperature", lambda value: value != 1.0, "the configured temperature is not 1", "the configured temperature is {}",
    role="typical",
)  # fmt: skip
_DIVIDE: Final = "Divide the trainer's logits by the sampler's temperature in every pass that yields logprobs."
_CHECK: Final = "Then check that the slope is 1.00."
_PROCESSED: Final = "Ask the engine for processed logprobs (after temperature), or compare with untempered ones on both sides."
_ISSUES: Final = "public trainer issues; the mean of exp(d) is 1 for any trainer if the recorded logprob is the sampler's"

cause(
    "trainer-lacks-temperature",
    "the trainer leaves out the temperature",
    explains=(_TEMPERATURE,),
    leads_to=_FOLLOWS,
    signs=(
        _SLOPE,
        _ALIKE,
        honest(),
        found(_TEMPERATURE, "the trainer's logprobs are a stretched copy", suspect="trainer-lacks-temperature"),
        _CONFIGURED,
        found("tokens-contradict-entropy", "tokens and entropy of the policy contradict each other", role="typical"),
    ),
    advice=(
        _DIVIDE,
        "Where the run does not say which temperature is configured, look first at what the engine is asked for.",
        _CHECK,
    ),
    source=_ISSUES,
    doc="""The loss optimises a policy that is not the one that samples: ratios and importance weights are wrong at every token.

    An engine that reports logprobs from before the temperature looks the same but for one number: the mean of exp(trainer -
    rollout) is 1 only if the engine reports what it sampled from. An engine that does not sample at the configured temperature
    looks the same as well, where that is 1. Outdated weights and precision scatter around the slope 1.""",
)  # fmt: skip

cause(
    "engine-at-other-temperature",
    "the engine samples at another temperature than the configured one",
    explains=(_TEMPERATURE,),
    leads_to=_FOLLOWS,
    signs=(
        _SLOPE,
        _ALIKE,
        honest(),
        found(_TEMPERATURE, "the trainer's logprobs are a stretched copy", suspect="engine-at-other-temperature"),
        found("tokens-contradict-entropy", "tokens and entropy of the policy contradict each other", role="typical"),
    ),
    advice=(
        ("Print the sampling parameters of a request as the engine gets them: a default of the server or of the model's "
        "generation_config may stand in for the configured temperature."),
        "If that temperature is meant, configure it, so that the trainer divides its logits by it too.",
        "If the engine's is as configured, look in the trainer for a temperature that is not.",
        _CHECK,
    ),
    source=_ISSUES,
    doc="""The engine reports what it sampled from: the mean of exp(trainer - rollout) is 1. With a configured temperature of 1 a
    trainer that leaves it out is right, so the engine's is another one; with one on the other side of 1 than the slope the engine
    leaves it out.

    The loss optimises a policy that is not the one that samples: ratios and importance weights are wrong at every token.""",
)  # fmt: skip

cause(
    "trainer-pass-lacks-temperature",
    "one of the trainer's passes leaves out the temperature",
    explains=(_TEMPERATURE,),
    leads_to=_FOLLOWS,
    signs=(
        measured(
            "mismatch.first_slope", lambda value: not 0.993 < value < 1.007, "the slope between the passes is not 1",
            "the slope of logprob on old_logprob is {} before any update",
        ),
        measured("mismatch.first_corr", over(0.95), "the passes are almost copies", "their correlation is {}"),
        found(_TEMPERATURE, "logprob is a stretched copy of old_logprob", suspect="trainer-pass-lacks-temperature"),
    ),
    advice=("Divide the logits by the temperature in the pass that yields old_logprob and in that of the update alike.", _DIVIDE),
    source="public trainer issues: only one of two log-probability calls got the temperature",
    doc="""The ratio is wrong before the first update, and clipping acts on tokens at random.

    Outdated weights give ratios that are wrong as well, but they scatter around the slope 1 and grow with the updates.""",
)  # fmt: skip

cause(
    "engine-reports-raw-logprobs",
    "the engine reports logprobs from before the temperature",
    explains=(_TEMPERATURE,),
    leads_to=_FOLLOWS,
    signs=(
        _SLOPE,
        _ALIKE,
        measured("mismatch.exp_mean", over(1.001), "the mean of exp(d) is above 1", "the mean of exp(d) is {}"),
        found(_TEMPERATURE, "the trainer's logprobs are a stretched copy", suspect="engine-reports-raw-logprobs"),
        _CONFIGURED,
    ),
    advice=(
        _PROCESSED,
        "Training may be right and only the comparison wrong: see whether rollout_logprob enters the loss.",
    ),
    source=_ISSUES,
    doc="""The recorded number is not that of the law that sampled, so every ratio to it is biased, always to the same side.

    A trainer that leaves out the temperature looks the same but for the mean of exp(d), which is 1 then.""",
)  # fmt: skip

cause(
    "temperature-and-truncation-differ",
    "the temperatures differ, and the engine cuts the tail",
    explains=(_TEMPERATURE, "truncated-sampling-mismatch"),
    leads_to=_FOLLOWS,
    signs=(
        _SLOPE,
        measured("mismatch.exp_mean", under(0.998), "the mean of exp(d) is below 1", "the mean of exp(d) is {}"),
        found(_TEMPERATURE, "the trainer's logprobs are a stretched copy", suspect="temperature-and-truncation-differ"),
        _CONFIGURED,
        configured("top_p", under(1.0), "top_p is below 1", "top_p is {}", role="typical"),
    ),
    advice=("Sample with top_p = 1 and top_k off, and look at the temperature again.", _DIVIDE),
    source=_ISSUES,
    doc="""Two settings at once. The slope tells of a temperature, the mean of exp(d) below 1 of a mass that was cut away.""",
)  # fmt: skip

cause(
    "truncated-sampling-renormalised",
    "the engine renormalises over the tokens that top-p or top-k keeps",
    explains=("truncated-sampling-mismatch", "unlawful-rollout-logprob"),
    leads_to=_FOLLOWS,
    signs=(
        measured("mismatch.exp_mean", under(0.999), "the mean of exp(d), the kept mass, is below 1", "the mean of exp(d) is {}"),
        measured("mismatch.one_sided_frac", over(0.95), "d is negative nearly everywhere", "{}% of what stands out is negative",
                 scale=100.0),
        measured("mismatch.min", over(-1.2), "d has a lower bound, the logarithm of the kept mass", "the smallest d is {} nat"),
        configured("top_p", under(1.0), "top_p is below 1", "top_p is {}", role="typical"),
    ),
    advice=(
        "Train with top_p = 1 and top_k off.",
        "Or normalise both sides over the same kept tokens; a mix of supports in old_logprob and logprob is worse than either.",
    ),
    source="public trainer and engine issues; the logarithm of the kept mass bounds the difference",
    doc="""Every ratio carries the kept mass as a factor, so that weights of whole responses vanish with their length.

    The logprob of the most probable candidate, recorded in place of the sampled token's, is one-sided too, without a bound.""",
)  # fmt: skip

cause(
    "top-candidate-logprob",
    "the engine's number is that of the most probable token, not of the sampled one",
    explains=("rollout-trainer-mismatch",),
    leads_to=_FOLLOWS,
    signs=(
        measured("mismatch.one_sided_frac", over(0.95), "d is negative nearly everywhere", "{}% of what stands out is negative",
                 scale=100.0),
        measured("mismatch.exp_mean", under(0.99), "the mean of exp(d) is below 1", "the mean of exp(d) is {}"),
        measured("mismatch.min", under(-1.2), "d has no lower bound", "the smallest d is {} nat", role="typical"),
        found("rollout-trainer-mismatch", "d is negative nearly everywhere, without a bound", suspect="top-candidate-logprob"),
    ),
    advice=(
        "Take the entry of the sampled token from what the engine returns, by its id and not by its rank.",
        "Until then leave rollout_logprob out of importance weights.",
    ),
    source="public trainer issues: the first of several candidates was read",
    doc="""At likely tokens nothing shows, since they are the most probable ones; at the others the weight nearly vanishes.

    A cut tail is one-sided too, but bounded by the logarithm of the kept mass.""",
)  # fmt: skip

cause(
    "sampling-law-unrecorded",
    "rollout_logprob is not of the law that sampled",
    explains=("unlawful-rollout-logprob",),
    leads_to=("sequence-weight-collapse",),
    signs=(
        found("unlawful-rollout-logprob", "the mean of exp(d) is not 1"),
        measured("mismatch.slope", between(0.97, 1.03), "the slope is 1", "the slope of trainer on engine is {}", role="typical"),
    ),
    advice=(
        "Look for what changes the engine's logits after its logprobs are taken: penalties, forbidden tokens, min-p.",
        _PROCESSED,
    ),
    source=_ISSUES,
    doc="""Some step between logits and sample is missing in the recorded number: a penalty, a bias, a cut of the tail.

    Whatever the trainer's distribution is, the mean of its ratio to the sampler's is 1: only the sampler's number spoils it.""",
)  # fmt: skip
