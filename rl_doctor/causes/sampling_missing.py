"""Numbers that stand where a logprob should: placeholders, other signs, rounded logits."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import Look, Sign, cause
from rl_doctor.causes.sampling_signs import CONSEQUENCES
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import configured, found, measured, over, sign, under

_MISSING: Final = "missing-rollout-logprob"
_SHARE: Final = "{}% of the rollout logprobs at these steps are 0"
_IMPOSSIBLE: Final = "impossible-logprob"
_GAPS: Final = (*CONSEQUENCES, "truncated-sampling-mismatch", "coarse-logprob")
_FOLLOWS: Final = (*_GAPS, _MISSING)
_FILL: Final = "Fill gaps with NaN and leave those tokens out of importance weights."
_FLOAT32: Final = "Compute log_softmax in float32, outside autocast, also where the model runs in half precision."

cause(
    "missing-logprobs-zero-filled",
    "logprobs that the engine did not return were filled with 0",
    explains=(_MISSING,),
    leads_to=_FOLLOWS,
    signs=(
        found(_MISSING, "rollout_logprob is 0 where the trainer is far from certain", suspect="missing-logprobs-zero-filled"),
        measured("mismatch.zero_frac", under(0.99), "only a part is 0", _SHARE, scale=100.0),
        found("mask-edge-off", "the mask is off at the edges of turns, where nobody sampled", role="against"),
    ),
    advice=(
        "Ask the engine for the logprob of every generated token, also of the last one and of continued or aborted responses.",
        _FILL,
    ),
    source="public trainer issues: zero-filled logprobs give importance weights equal to the trainer's probability",
    doc="""0 says that the engine was certain. The token's weight is the trainer's probability of it: near 0 where it matters.

    At tokens that really are certain the trainer's logprob is near 0 too; these are not counted.""",
)  # fmt: skip

cause(
    "engine-returns-no-logprobs",
    "the engine returns no logprobs, or samples greedily",
    explains=(_MISSING,),
    leads_to=_FOLLOWS,
    signs=(
        found(_MISSING, "rollout_logprob is exactly 0", suspect="engine-returns-no-logprobs"),
        measured(
            "mismatch.zero_frac", over(0.99), "all of it is 0", "{}% of the rollout logprobs at these steps are 0", scale=100.0
        ),
        configured("temperature", under(0.01), "sampling is greedy", "the sampler's temperature is {}", role="typical"),
    ),
    advice=("Ask the engine for logprobs (of one token), and sample with a temperature above 0.", _FILL),
    source="engines report 0 for greedy samples, and trainers fill what was not asked for with 0",
    doc="""Without logprobs of the engine nothing can be corrected, and with greedy sampling there is nothing to explore.""",
)

cause(
    "engine-logprobs-null",
    "the engine did not return the logprobs of some tokens",
    explains=(_MISSING,),
    leads_to=("non-finite",),
    signs=(
        found(_MISSING, "trained tokens have no rollout_logprob", suspect="engine-logprobs-null"),
        found("non-finite", "columns of the trainer hold no number either", suspect="column-without-numbers", role="against"),
    ),
    advice=("Find out which responses these are: continued, aborted, or written by another path.", _FILL),
    source="public trainer issues",
    doc="""Such tokens cannot be corrected for. If a gap meets arithmetic it becomes NaN; if it is filled, a wrong weight.""",
)

cause(
    "placeholder-among-logprobs",
    "a placeholder stands among the engine's logprobs",
    explains=(_IMPOSSIBLE,),
    leads_to=_FOLLOWS,
    signs=(
        found(_IMPOSSIBLE, "rollout_logprob is above 0 at trained tokens", suspect="placeholder-among-logprobs"),
        measured(
            "data.rollout_logprob_positive_frac",
            under(0.5),
            "only a part of it is",
            "{}% of the rollout logprobs are above 0, over all these steps",
            scale=100.0,
        ),
    ),
    advice=("Look at the code that fills rollout_logprob where tokens are masked or missing: 1 is no logprob.", _FILL),
    source="public trainer issues: masked tokens were set to 1",
    doc="""A probability above 1. Where such tokens are trained on, their ratios are wrong by the placeholder's exponential.""",
)

cause(
    "logprob-noise-above-zero",
    "logprobs of nearly certain tokens lie slightly above 0: numeric noise of log_softmax",
    explains=(_IMPOSSIBLE,),
    leads_to=(),
    signs=(found(_IMPOSSIBLE, "logprobs exceed 0 by less than .001 nat", suspect="logprob-noise-above-zero"),),
    advice=("Nothing: ratios and KL are off by as little. Clip such numbers to 0 where something takes them for an error.",),
    source="log_softmax subtracts numbers of the size of the logits, and keeps their rounding",
    doc="""Where the policy is nearly certain of its tokens their logprob is smaller than the rounding of the logits, so that some
    exceed 0 by it. A placeholder, a sign or half precision exceed 0 by far more.""",
)

cause(
    "logprob-sign-flipped",
    "a column holds negative log-likelihoods or probabilities in place of logprobs",
    explains=(_IMPOSSIBLE,),
    leads_to=(
        *_FOLLOWS,
        "stale-old-logprob",
        "logprob-misaligned",
        "temperature-mismatch",
        "wrong-reference",
        "logged-metric-mismatch",
    ),
    signs=(found(_IMPOSSIBLE, "most of a column is above 0", suspect="logprob-sign-flipped"),),
    advice=("Check the sign: losses and negative log-likelihoods are positive, logprobs are not.",),
    source="a probability is at most 1",
    doc="""The column is of another quantity; whatever is computed from it is wrong.""",
)

cause(
    "logprobs-above-zero",
    "numbers above 0 stand among the logprobs, on no grid and of no side in particular",
    explains=(_IMPOSSIBLE,),
    leads_to=(*_FOLLOWS, "stale-old-logprob", "logprob-misaligned", "temperature-mismatch", "wrong-reference"),
    signs=(found(_IMPOSSIBLE, "logprobs exceed 0"),),
    advice=(
        "Look at the tokens that exceed 0: a logit that was not normalised, a sum of parts of the vocabulary, a difference.",
        _FLOAT32,
    ),
    source="a probability is at most 1",
    doc="""What is left where a logprob exceeds 0 and neither a placeholder, nor a sign, nor half precision explains it.

    A log_softmax over a part of the vocabulary, or one whose normaliser is another row's, exceeds 0 at likely tokens.""",
)


def _typed(side: str) -> Sign:
    words = f"the {side} computes logprobs in half precision"

    @sign(words, role="typical")
    def look(scene: Scene) -> Look:
        dtype = scene.view.info.logprob_dtype
        if dtype is None:
            return Look(None, words)
        return Look("16" in dtype, f"the run says that logprobs are {dtype}")

    return look


def _rounded(side: str, columns: tuple[str, ...], others: tuple[str, ...]) -> Sign:
    """That a column of this side lies on a grid of half precision, and whether one of the other side does."""
    words = f"the {side}'s logprobs lie on the grid of half precision"
    kinds = ("bfloat16", "float16")
    own, other = ([f"data.{name}_{kind}_frac" for name in names for kind in kinds] for names in (columns, others))

    @sign(words, *own, *other)
    def look(scene: Scene) -> Look:
        shares = [value for name in own if (value := scene.value(name)) == value]
        if not shares:
            return Look(None, words, None, scene.missing(*own))
        elsewhere = [value for name in other if (value := scene.value(name)) == value]
        rest = f", {max(elsewhere):.0%} of the other side's" if elsewhere else ""
        return Look(max(shares) > 0.95, f"{max(shares):.0%} of the {side}'s logprobs lie on a grid of half precision{rest}")

    return look


_TRAINER: Final = ("old_logprob", "logprob")
_ENGINE: Final = ("rollout_logprob",)

for _side, _own, _other in (("trainer", _TRAINER, _ENGINE), ("engine", _ENGINE, _TRAINER)):
    cause(
        f"{_side}-half-precision-logits",
        f"the {_side} computes logprobs from logits in half precision",
        explains=(_IMPOSSIBLE, "coarse-logprob"),
        leads_to=(*_GAPS, "stale-old-logprob"),
        signs=(
            _rounded(_side, _own, _other),
            found(_IMPOSSIBLE, "logprobs exceed 0", suspect=f"{_side}-half-precision-logits", role="typical"),
            *((_typed(_side),) if _side == "trainer" else ()),
        ),
        advice=(
            _FLOAT32 if _side == "trainer" else "Run the engine's last layer and its log_softmax in float32.",
            "Take a KL below 1e-3 and a clipped share below 1% for noise until then.",
        ),
        source="public trainer issues; half precision in the last layer is the largest part of many gaps",
        doc="""Between -4 and -8 numbers of bfloat16 are .03 apart: ratios and KL carry that noise, and logprobs may exceed 0.

    It is noise without bias. A placeholder or a wrong sign above 0 does not lie on the grid.""",
    )  # fmt: skip
