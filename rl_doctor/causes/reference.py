"""A reference that is not the model it is taken for: the policy itself, base weights, or a pass that computes something else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from rl_doctor.causes.changes import changes
from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, measured, over, sign, under

_OLD: Final = ("policy.kl_old_k3", "policy.kl_old_k2", "policy.kl_old_abs")
_LARGE: Final = found("wrong-reference", "the KL is large before the policy had time to move")
_LEADS: Final = ("kl-penalty-dominates", "reward-flatline", "kl-runaway", "kl-spike", "kl-below-zero", "kl-reversed")
_ADAPTERS: Final = ("peft", "lora", "use_peft", "lora_rank", "lora_r", "peft_config", "lora_alpha")


@sign("the policy is trained with adapters", role="typical")
def _adapters(scene: Scene) -> Look:
    native = scene.view.config.native
    words = "the policy is trained with adapters"
    if not native:
        return Look(None, words, None, ("config.native",))
    named = sorted(key for key, value in _flat(native) if key.rpartition(".")[2] in _ADAPTERS and value)
    return Look(bool(named), f"the settings name {', '.join(named)}" if named else "the settings name no adapter")


def _flat(native: object, prefix: str = "") -> list[tuple[str, object]]:
    """Settings by their names with dots between them."""
    if not isinstance(native, dict):
        return [(prefix.rstrip("."), native)]
    return [item for key, value in native.items() for item in _flat(value, f"{prefix}{key}.")]


@sign("the run was continued", role="against")
def _continued(scene: Scene) -> Look:
    sessions = scene.view.info.sessions
    number = len(sessions) or 1
    return Look(number > 1 and scene.first_step not in {None, 0, 1}, f"the run has {number} session{'s' if number > 1 else ''}")


@sign("the reference's logprobs have another spread, in order", "ref.slope", "ref.corr")
def _tempered(scene: Scene) -> Look:
    slope, corr = scene.value("ref.slope"), scene.value("ref.corr")
    if not (math.isfinite(slope) and math.isfinite(corr)):
        words = "the reference's logprobs have another spread, in order"
        return Look(None, words, None, scene.missing("ref.slope") or ("ref_logprob", "logprob"))
    apart = abs(math.log(slope / corr)) if slope * corr > 0.0 else 0.0
    spread = corr > 0.95 and apart > max(0.05, 2.0 * (1.0 - corr * corr))
    return Look(spread, f"the slope of ref_logprob on logprob is {slope:.3g}, the correlation {corr:.3g}")


@sign("the reference's logprobs agree at another offset", "ref.lag")
def _shifted(scene: Scene) -> Look:
    lag = scene.value("ref.lag")
    if not math.isfinite(lag):
        return Look(None, "the reference's logprobs agree at another offset", None, scene.missing("ref.lag"))
    if lag == 0.0:
        return Look(there=False, text="at no other offset do logprob and ref_logprob agree")
    return Look(there=True, text=f"logprob and ref_logprob agree at an offset of {lag:.3g}")


@sign("nor at another offset", "ref.lag")
def _nowhere(scene: Scene) -> Look:
    seen = _shifted.look(scene)
    return replace(seen, there=None if seen.there is None else not seen.there,
                   text=_nowhere.words if seen.there is None else seen.text)  # fmt: skip


cause(
    "reference-is-other-model", "the reference is not the model that training started from",
    explains=("wrong-reference",), leads_to=_LEADS,
    signs=(
        _LARGE,
        measured("ref.corr", over(0.3), "policy and reference rank tokens alike", "the correlation of the two logprobs is {}"),
        _adapters, _continued, replace(_tempered, role="against"), replace(_shifted, role="against"),
        found("kl-grows-with-padding", "it grows with padding", role="against"),
    ),
    advice=(
        "Compute policy and reference logprobs of one batch before the first update: they must agree to numeric noise.",
        "With adapters that continue a fine-tuned start, keep a frozen copy of it: disabling adapters gives the base model.",
        "If another reference is meant, ignore the rule with that reason.",
    ),
    source="Public issue threads on adapters whose reference is the base model",
    doc="""Two models of one family: their logprobs correlate, and differ at many tokens, from the first step on. With adapters
    it is the base model, since the reference pass disables all of them, the fine-tuned start included.""",
)  # fmt: skip
cause(
    "reference-at-other-temperature", "the reference's logprobs are computed at another temperature",
    explains=("wrong-reference",), leads_to=_LEADS,
    signs=(_LARGE, _tempered),
    advice=("Divide the logits of both passes by the same temperature, or of neither.",),
    source="A temperature multiplies all logits: the correlation stays, the slope moves",
    doc="""The two logprobs rank tokens alike almost perfectly, but the spread of one is a multiple of the other's. A KL to such
    a reference is large where the policy is unsure, and pulls its entropy up or down.""",
)  # fmt: skip
cause(
    "reference-shifted", "the reference's logprobs belong to the neighbouring tokens",
    explains=("wrong-reference",), leads_to=_LEADS,
    signs=(_LARGE, _shifted),
    advice=("Slice the reference's logits as the policy's: those of position t - 1 score the token at t.",),
    source="Two logprobs of the same text agree at one offset",
    doc="""In place the two logprobs have nothing in common, one token further they agree.""",
)  # fmt: skip
cause(
    "reference-pass-broken", "the reference pass computes something else than logprobs of these tokens",
    explains=("wrong-reference",), leads_to=_LEADS,
    signs=(
        _LARGE,
        measured("ref.corr", under(0.3), "policy and reference have nothing in common",
                 "the correlation of the two logprobs is {}"),
        _nowhere,
    ),
    advice=(
        "Check the order of rows, the chat template and the weights of the reference pass on one row.",
        "Decode the ids that it is given: they must be those of the rollout.",
    ),
    source="Two language models give likely tokens like logprobs, whatever they were trained on",
    doc="""Even an unrelated language model ranks tokens much like the policy. No correlation at any offset means other tokens,
    other rows, or weights that were not loaded.""",
)  # fmt: skip
cause(
    "policy-moved-before-record", "the policy had moved already when the first step was measured",
    explains=("wrong-reference",),
    signs=(
        _LARGE,
        measured("policy.kl_old_k3", over(0.02), "the first step holds several updates",
                 "the KL to the policy that sampled is {} within the step"),
    ),
    advice=("Record the first mini-batch by itself (minibatch, epoch): it tells whether the KL was there before any update.",),
    source="Arithmetic",
    doc="""A first step that averages many updates shows their KL. Where the first mini-batch is known, that is ruled out.""",
)  # fmt: skip

cause(
    "reference-is-policy", "the reference is the policy itself",
    explains=("kl-flatline",), leads_to=("kl-runaway", "entropy-collapse", "reward-hacking-suspected"),
    signs=(
        found("kl-flatline", "the KL is exactly 0 although the policy is trained", suspect="reference-is-policy"),
        measured("policy.kl_old_k3", over(0.0), "the policy moves", "the KL to the policy that sampled is {}", role="typical"),
        _adapters,
        measured("policy.later_zero_frac", over(0.99), "no update changes a logprob: the policy does not move",
                 "the log-ratio is exactly 0 on {}% of the tokens after an optimizer step", role="against", scale=100.0),
    ),
    advice=(
        "Compute the reference logprobs of one batch with the frozen initial weights, and compare.",
        "Copy the weights (deepcopy, or a second load): two names for one module follow each other.",
        "With adapters, check that the reference pass disables the policy's adapter.",
    ),
    source="Reproduced by setting the reference to the policy",
    doc="""The reference logprobs come from the weights that are trained: the same module, the same adapter, or a detached copy
    of the same pass. The KL term is 0 and holds nothing. Without a KL term, or with a policy that does not move, 0 is right.""",
)  # fmt: skip
cause(
    "reference-follows-policy", "the reference was synchronised with the policy, or its pass was turned off, in mid-run",
    explains=("kl-flatline",), leads_to=("kl-runaway", "entropy-collapse"),
    signs=(
        found("kl-flatline", "the KL fell to 0 and stays there", suspect="reference-follows-policy"),
        changes("stays", ("policy.entropy",), "the policy goes on as before", "the entropy"),
        changes("stays", ("optim.grad_norm",), "the gradient goes on as before", "the gradient norm"),
    ),
    advice=(
        "Look for what happens at that step: a resume from the newest checkpoint, a schedule, a synchronisation.",
        "If it is a reset that is meant, the KL grows again from there.",
    ),
    source="Reproduced by replacing the reference in mid-run",
    doc="""A policy does not come back to its reference from one step to the next. The reference came to the policy.""",
)  # fmt: skip
cause(
    "reference-reset-to-policy", "the reference was replaced by the policy of that step",
    explains=("reference-reset",), leads_to=("kl-runaway", "entropy-collapse", "kl-spike"),
    signs=(
        found("reference-reset", "the KL falls to almost nothing at once, and grows again"),
        changes("stays", ("policy.entropy",), "the policy goes on as before", "the entropy", role="typical"),
    ),
    advice=(
        "Look for what happens at that step: a resume from the newest checkpoint, a schedule, a synchronisation.",
        "If the reset is meant, the KL counts from there: ignore the rule with that reason.",
    ),
    source="Reproduced by replacing the reference in mid-run",
    doc="""A policy does not come back to its reference from one step to the next. The reference came to the policy, and the KL
    counts from there.""",
)  # fmt: skip
