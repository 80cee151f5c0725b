"""TRL's names of asynchronous GRPO, whose old policy is the engine that sampled."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.recipes import Definition, Fold, Of, Recipe, Stage, absent, derived, of
from rl_doctor.analyzer.dialects.registry import Name
from rl_doctor.analyzer.dialects.trl_policy import ABOVE, BELOW

ASYNC: Final = frozenset({"async_grpo"})
_MICROBATCHES: Final = ("rollout_step", "epoch", "minibatch", "microbatch")
_MIXED: Final = "*mixed mean*"


def _async(formula: str, value: Of, unit: str = "1") -> Definition:
    stages = (Stage(("microbatch",), "mean"),)
    return derived(f"{formula}; {_MIXED}", Recipe(value, Fold(apart=_MICROBATCHES, stages=stages), unit=unit))


_CLIP: Final = {"low": "config.clip_low|native.epsilon", "high": "config.clip_high|native.epsilon_high|native.epsilon"}
_POSITIVE: Final = of("positive", name="advantage")
_NEGATIVE: Final = of("positive", name="advantage", factor=-1.0)
_SAMPLER: Final = "*sampler ratio*"
STAGES: Final = {
    "mixed mean": "sum over the tokens of all ranks / tokens, mean over micro-batches",
    "sampler ratio": "r = exp(x), old_logprob being that of the engine that sampled",
}

ASYNC_NAMES: Final = (
    Name(
        "kl",
        "mismatch.k3",
        algorithms=ASYNC,
        measured=True,
        note="is between the policy and the one that sampled, not to a reference",
        definition=_async(
            f"(r - 1) - log r, {_SAMPLER}", of("estimate", first="logprob", second="old_logprob", kind="k3"), "nat"
        ),
    ),
    Name("ratio", "policy.ratio_mean", algorithms=ASYNC, definition=_async(_SAMPLER, of("ratio"))),
    Name(
        "entropy",
        "policy.entropy",
        algorithms=ASYNC,
        definition=_async("entropy of the scaled logits over the vocabulary", of("column", name="entropy"), "nat"),
    ),
    Name(
        "clip_ratio/region_mean",
        "policy.clip_frac",
        algorithms=ASYNC,
        definition=_async(f"{BELOW} or {ABOVE}, {_SAMPLER}", of("binds", **_CLIP)),
    ),
    Name(
        "clip_ratio/low_mean",
        "policy.clip_frac_low",
        algorithms=ASYNC,
        definition=_async(f"{BELOW}, {_SAMPLER}", of("product", left=of("binds", **_CLIP), right=_NEGATIVE)),
    ),
    Name(
        "clip_ratio/high_mean",
        "policy.clip_frac_high",
        algorithms=ASYNC,
        definition=_async(f"{ABOVE}, {_SAMPLER}", of("product", left=of("binds", **_CLIP), right=_POSITIVE)),
    ),
    *(
        Name(
            f"clip_ratio/{end}",
            f"policy.clip_frac_{end}",
            algorithms=ASYNC,
            definition=absent("ends over the completions of packed rows are not recomputed", formula),
        )
        for end, formula in (
            ("low_min", f"{BELOW}; min over completions of its mean"),
            ("high_max", f"{ABOVE}; max over completions of its mean"),
        )
    ),
    Name(
        "sample/staleness_mean",
        "stale.mean",
        algorithms=ASYNC,
        definition=absent(
            "is taken of samples as they are taken from the queue, which may be before they are trained on",
            "policy version minus that of the sample",
        ),
    ),
    Name(
        "sample/staleness_max",
        "stale.max",
        algorithms=ASYNC,
        definition=absent("is taken of samples as they are taken from the queue", "policy version minus that of the sample"),
    ),
)
