"""Entropy that the tokens do not fit, and importance weights of whole responses."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.causes.registry import Look, Role, Sign, cause
from rl_doctor.causes.sampling_signs import CONSEQUENCES
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import configured, found, measured, over, sign, under

_GAP: Final = ("policy.entropy_gap_share", "policy.old_entropy_gap_share")
_RULE: Final = "tokens-contradict-entropy"
_SOURCE: Final = "the entropy is the expected value of minus the logprob of a sample"


def _cost(*, less: bool, role: Role = "needed") -> Sign:
    words = f"the tokens cost {'less' if less else 'more'} than the entropy"

    @sign(words, *_GAP, role=role)
    def look(scene: Scene) -> Look:
        told = [value for name in _GAP if not math.isnan(value := scene.value(name))]
        if not told:
            return Look(None, words, None, scene.missing(*_GAP))
        return Look((told[0] < 0.0) is less, f"the tokens cost {abs(told[0]):.1%} {'less' if told[0] < 0 else 'more'} than it")

    return look


_AGREE: Final = measured(
    "mismatch.abs", under(0.05), "the engine's logprobs are the trainer's", "mean |trainer - rollout| is {} nat", role="typical"
)

cause(
    "sampler-cooler-or-cut",
    "the tokens were sampled cooler than the trainer believes, or from a cut distribution",
    explains=(_RULE,),
    leads_to=("entropy-collapse", "duplicate-samples", "zero-variance-groups"),
    signs=(
        found(_RULE, "tokens and entropy do not fit"),
        _cost(less=True),
        configured("top_p", under(1.0), "top_p is below 1", "top_p is {}", role="typical"),
        configured("temperature", under(1.0), "the sampler's temperature is below 1", "the sampler's temperature is {}",
                   role="typical"),
    ),
    advice=(
        "Compare temperature, top-p, top-k and min-p of the sampler with what the trainer applies to its logits.",
        "Record rollout_logprob: it tells a temperature (slope) from a cut tail (one side only).",
    ),
    source=_SOURCE,
    doc="""The samples are likelier than the policy's own would be. Two logprobs that are both untempered agree and hide it.

    An entropy that is taken from logits before the temperature gives the same number while training is right.""",
)  # fmt: skip

_BOTH: Final = measured(
    "mismatch.abs", under(0.05), "the engine's logprobs are the trainer's", "mean |trainer - rollout| is {} nat"
)

cause(
    "raw-logprobs-on-both-sides",
    "the tokens were sampled cooler or from a cut distribution, and engine and trainer both report logprobs from before that",
    explains=(_RULE,),
    leads_to=("entropy-collapse", "duplicate-samples", "zero-variance-groups"),
    signs=(
        found(_RULE, "tokens and entropy do not fit"),
        _cost(less=True),
        _BOTH,
        configured("top_p", under(1.0), "top_p is below 1", "top_p is {}", role="typical"),
        configured("temperature", under(1.0), "the sampler's temperature is below 1", "the sampler's temperature is {}",
                   role="typical"),
    ),
    advice=(
        "Ask the engine for processed logprobs: the slope then tells a temperature, and one-sided differences a cut tail.",
        "Divide the trainer's logits by the sampler's temperature, and train with top_p = 1 and top_k off.",
        "If the entropy alone is taken from before the temperature, training is right: compute both from the same logits.",
    ),
    source=_SOURCE,
    doc="""The two logprobs agree, so that no comparison of them shows anything: neither is that of the law that sampled.

    Without the engine's logprobs that cannot be told from a sampler which is merely cooler than the trainer.""",
)  # fmt: skip

cause(
    "part-apart",
    "one part of the batch is sampled or scored otherwise than the rest",
    explains=("mismatch-by-part",),
    leads_to=(*CONSEQUENCES, "stale-old-logprob", "kl-below-zero", "advantage-whitened-by-rank", "grad-norm-differs-by-rank"),
    signs=(
        found("mismatch-by-part", "one part stands out, step by step", suspect="part-apart"),
        found("tokens-contradict-entropy", "the tokens cost something else than the entropy", role="typical"),
    ),
    advice=(
        "Compare sampling settings, weights and versions of the engine that serves this part with those of the others.",
        "Score one prompt with both engines: their logprobs must agree.",
        "Leave this part out of the update, or correct it with importance weights, until then.",
    ),
    source="a mean over the batch hides a part; public trainer issues on single ranks",
    doc="""One engine of several has another temperature, older weights or other kernels. Over the batch the difference is diluted
    until it looks like noise.

    Ranks hold the same kind of data, so that a rank that stands out is an engine or a trainer's shard. A data source that stands
    out may have settings of its own.""",
)

cause(
    "sampler-hotter-or-tokens-foreign",
    "the tokens were sampled hotter than the trainer believes, or nobody sampled them",
    explains=(_RULE,),
    leads_to=("entropy-explosion",),
    signs=(
        found(_RULE, "tokens and entropy do not fit"),
        _cost(less=False),
        _AGREE,
        configured("temperature", over(1.0), "the sampler's temperature is above 1", "the sampler's temperature is {}",
                   role="typical"),
    ),
    advice=(
        "Compare the sampler's temperature with what the trainer applies to its logits.",
        "Look at the trained tokens of lowest logprob: templates, tool output or another row's tokens are not samples.",
        "Record rollout_logprob: a wrong forward pass shows there.",
    ),
    source=_SOURCE,
    doc="""The samples are less likely than the policy's own would be: a hotter sampler, another forward pass, or a mask.

    Old samples cost more too, if the policy has moved far from them.""",
)  # fmt: skip

cause(
    "sequence-weights-are-products",
    "importance weights of whole responses are products over their tokens, too harsh for this length",
    explains=("sequence-weight-collapse",),
    leads_to=("reward-flatline", "grad-vanished", "grad-zero"),
    signs=(
        found("sequence-weight-collapse", "the weights are small although the tokens agree"),
        measured("mismatch.row_weights_frac", over(0.95), "all tokens of a row have one weight", "{}% of the rows have one",
                 role="typical", scale=100.0),
        measured("mismatch.sequence_ratio_mean", lambda value: 0.9 < value < 1.1, "the geometric mean of a row's ratios is 1",
                 "the geometric mean of a row's ratios is {}", role="typical"),
        measured("mismatch.sequence_effective_frac", under(0.7), "few rows keep most of the weight",
                 "the weights leave {}% of the rows effective", role="typical", scale=100.0),
    ),
    advice=(
        "Weigh tokens, or take the geometric mean over a response; cut the weight from above and look at how many are cut.",
        "The product is the right weight of a sequence and not a wrong formula: it is too harsh for responses this long.",
        "Look for what is systematic: a d of -.005 a token, as from a cut tail, is a weight of .22 over 300 tokens.",
    ),
    source="public trainer issues on corrections by sequence; arXiv:2503.14476 and others weigh tokens",
    doc="""The loss is multiplied by next to nothing, or by the weight of single rows, although no token shows a difference.""",
)  # fmt: skip
