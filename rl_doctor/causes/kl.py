"""A KL to the reference that runs away, jumps, or cannot be: what drives it, and what does not hold it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from rl_doctor.causes.changes import changes
from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import configured, found, measured, over, sign, under

_ENTROPY: Final = ("policy.entropy",)
_REWARD: Final = ("val.mean_at_n", "reward.mean", "reward.score_mean")
_OLD: Final = ("policy.later_kl_k3", "policy.kl_old_k3", "policy.kl_old_k2", "policy.kl_old_abs")
_KL: Final = ("ref.kl_k3", "ref.kl_k2", "ref.kl_abs", "ref.kl_k1", "ref.kl")
_BROKEN: Final = (
    "ratio-saturation", "kl-spike", "kl-runaway", "kl-penalty-dominates", "reward-drift", "reward-variance-shift",
    "entropy-explosion", "entropy-collapse", "grad-norm-spike", "length-explosion", "reward-flatline", "zero-variance-groups",
    "near-zero-variance-groups", "sudden-collapse",
)  # fmt: skip
_RUNAWAY: Final = found("kl-runaway", "the KL grows without bound")
_RISING: Final = changes("rises", _REWARD, "the reward rises while the KL does", "the reward", role="needed")
_FALLING: Final = changes("falls", _ENTROPY, "the entropy falls", "the entropy", role="needed")
_AT_ONCE: Final = changes("jumps", _KL, "the KL jumps from one step to the next", "the KL to the reference", role="against")
_PULLS: Final = 0.1
"""Pull of the KL term, as a share of the advantages' deviation, from which it should be felt."""


def _pull(scene: Scene) -> tuple[float | None, tuple[str, ...]]:
    """The pull of the KL term on a token over that of the advantage; None with what is lacking for it."""
    coefficient = scene.view.config.kl_coef
    if coefficient is None:
        return None, ("config.kl_coef",)
    level = next((abs(scene.value(name)) for name in _KL if scene.view.get(name) is not None), math.nan)
    spread = next((scene.value(name) for name in ("adv.std", "adv.abs_mean") if scene.view.get(name) is not None), math.nan)
    if not (math.isfinite(level) and spread > 0.0):
        return None, scene.missing("ref.kl_k3", "adv.std")
    return coefficient * math.sqrt(2.0 * level) / spread, ()


@sign("the KL term is weak against the advantages", *_KL, "adv.std", "adv.abs_mean")
def _weak(scene: Scene) -> Look:
    pull, missing = _pull(scene)
    if pull is None:
        return Look(None, "the KL term is weak against the advantages", None, missing)
    return Look(0.0 < pull < _PULLS, f"the KL term pulls with {pull:.2g} of the advantages' deviation")


@sign("the KL term is strong enough to be felt", *_KL, "adv.std", "adv.abs_mean")
def _felt(scene: Scene) -> Look:
    pull, missing = _pull(scene)
    if pull is None:
        return Look(None, "the KL term is strong enough to be felt", None, missing)
    return Look(pull >= _PULLS, f"the KL term pulls with {pull:.2g} of the advantages' deviation")


cause(
    "reward-over-optimised", "the policy is over-optimised for the reward",
    explains=("kl-runaway", "reward-hacking-suspected"),
    leads_to=(
        "entropy-collapse", "duplicate-samples", "zero-variance-groups", "near-zero-variance-groups", "grad-vanished",
        "kl-spike", "kl-penalty-dominates", "reward-at-bound", "length-explosion", "length-collapse", "reward-variance-shift",
    ),
    signs=(
        _RUNAWAY,
        _RISING, _FALLING,
        _AT_ONCE,
        changes("rises", ("data.duplicate_between_frac",), "responses to different prompts become the same",
                "the share of equal responses to different prompts"),
        changes("rises", ("data.duplicate_frac",), "responses to one prompt become the same",
                "the share of equal responses to one prompt"),
    ),
    advice=(
        "Read responses from after the onset: one answer for every prompt, or a phrase that the reward likes, shows at once.",
        "Go back to a checkpoint from before the onset; raise kl_coef, or stop there.",
        "Test the reward on those responses by hand: it pays for something else than what is wanted.",
    ),
    source="Public issue threads on one response for every prompt under a growing KL; arXiv:2210.10760",
    doc="""The reward goes up, the distance to the reference goes up with it, and the responses become few: the policy has found
    what the reward pays for. It is the training that works, and the reward that does not.

    Updates that are too large move the policy as far, but the reward does not gain by it, and single batches have a large KL.""",
)  # fmt: skip

cause(
    "updates-overshoot", "single updates move the policy too far",
    explains=("kl-runaway", "ratio-saturation"), leads_to=_BROKEN,
    signs=(
        _RUNAWAY,
        changes("rises", _OLD, "the KL of single batches grows with it", "the KL to the policy that sampled", role="needed"),
        measured("policy.kl_old_k3", over(1e-4), "single batches move the policy by what can be felt",
                 "the KL to the policy that sampled is {} per batch"),
        found("ratio-saturation", "many ratios lie outside the clip range", role="typical"),
        changes("rises", ("optim.grad_norm",), "the gradient grows", "the gradient norm"),
        changes("rises", _REWARD, "the reward gains by it", "the reward", role="against"),
    ),
    advice=(
        "Lower the learning rate, or the number of epochs and mini-batches per generation batch.",
        "Go back to a checkpoint from before the onset.",
        "Look at the first step of it: a gradient that is clipped hard says that one batch is unlike the others.",
    ),
    source="arXiv:1707.06347, section 3: the update is bounded by staying near the policy that sampled",
    doc="""Each batch moves the policy far from the one that sampled it, and the steps add up to a distance from the reference
    that grows faster and faster. The reward gains nothing by it. A KL term that is too weak lets the policy drift too, but
    with small steps.""",
)  # fmt: skip


@sign("the reward rises and the entropy falls", *_REWARD, *_ENTROPY, role="against")
def _gains(scene: Scene) -> Look:
    words = "the reward rises and the entropy falls"
    parts = [replace(scene, view=scene.view.narrowed(part.needs)) for part in (_RISING, _FALLING)]
    looks = [part.look(seen) for part, seen in zip((_RISING, _FALLING), parts, strict=True)]
    if any(look.there is None for look in looks):
        return Look(None, words, None, tuple(name for look in looks for name in look.missing))
    return Look(all(look.there for look in looks), "; ".join(look.text for look in looks))


cause(
    "kl-coef-too-small", "kl_coef is too small to hold the policy near the reference",
    explains=("kl-runaway",), leads_to=("kl-spike", "entropy-collapse", "entropy-explosion"),
    signs=(
        _RUNAWAY,
        configured("kl_coef", lambda value: value > 0.0, "there is a KL term", "kl_coef is {}"),
        _weak, _gains, _AT_ONCE,
        changes("rises", _OLD, "the KL of single batches grows with it", "the KL to the policy that sampled", role="against"),
    ),
    advice=(
        "Raise kl_coef until its pull, about kl_coef * sqrt(2 KL), is felt against the advantages: a tenth of their deviation.",
        "If the distance is wanted, watch a held-out score instead of the KL.",
    ),
    source="Closed form: gradient weight of the KL term against that of the advantage",
    doc="""The term is there and has a gradient, but the advantages outweigh it by far. It grows with the square root of the KL,
    so it holds in the end, at a distance that nobody chose.""",
)  # fmt: skip

cause(
    "kl-term-without-gradient", "the KL term may have no gradient: it is large enough to be felt, and nothing gives way",
    explains=("kl-runaway",), leads_to=("kl-penalty-dominates", "kl-spike"),
    signs=(
        _RUNAWAY,
        configured("kl_coef", lambda value: value > 0.0, "there is a KL term", "kl_coef is {}"),
        configured("kl_in_reward", lambda value: value is False, "the KL is in the loss", "kl_in_reward is {}"),
        _felt, _AT_ONCE,
        changes("rises", _OLD, "the KL of single batches grows with it", "the KL to the policy that sampled", role="against"),
        changes("rises", _REWARD, "the reward gains by it", "the reward", role="against"),
    ),
    advice=(
        "Logs cannot show it. Run twenty steps with kl_coef doubled: if the KL takes the same course, no gradient flows.",
        "Check that the term is computed from logprob with its graph, not from detached or old logprobs.",
        "Check its estimator: the gradient of k1 has a mean of 0.",
    ),
    source="Fixing commits of trainers in which the KL loss was logged and not differentiated",
    doc="""The logged loss has the term in it, the coefficient is not small, and the policy drifts as if it were not there. The
    same numbers come from a term that pulls and loses, so this stays a suspicion until the coefficient has been changed.""",
)  # fmt: skip

cause(
    "kl-not-penalised", "nothing holds the policy near the reference: there is no KL term",
    explains=("kl-runaway",), leads_to=("kl-spike", "entropy-collapse", "entropy-explosion"),
    signs=(
        _RUNAWAY,
        configured("kl_coef", lambda value: value == 0.0, "there is no KL term", "kl_coef is {}"),
        changes("rises", _OLD, "the KL of single batches grows with it", "the KL to the policy that sampled", role="against"),
    ),
    advice=(
        "If the distance is not wanted, add a KL term, or lower the learning rate.",
        "If it is (as in DAPO), watch entropy, length and a held-out score instead, and ignore this rule with that reason.",
    ),
    source="arXiv:2503.14476, section 2.3",
    doc="""Without a KL term the distance to the reference is bounded by nothing but the length of the run. That is by design
    in some algorithms.""",
)  # fmt: skip

cause(
    "update-of-one-batch", "one batch moved the policy far, or was itself far from the reference; it came back",
    explains=("kl-spike", "grad-norm-spike"), leads_to=("ratio-saturation", "reward-drift"),
    signs=(
        found("kl-spike", "the KL peaks and comes back", suspect="update-of-one-batch"),
        found("grad-norm-spike", "the gradient peaks", role="typical"),
        found("kl-runaway", "the KL keeps growing", role="against"),
    ),
    advice=(
        "Look at the batch of that step: extreme advantages, very long or repeated responses, one data source.",
        "Nothing needs to be done if it stays single; lower max_grad_norm if it recurs.",
    ),
    source="Public GRPO logs in which single steps reach 15 times their neighbours and recover",
    doc="""A single batch of unusual prompts or responses shows a large KL without any harm: the next batch is as before. If the
    policy itself had moved, the KL would stay.""",
)  # fmt: skip

cause(
    "reference-replaced", "the reference, or the pass that computes it, changed in mid-run",
    explains=("kl-runaway", "kl-spike"), leads_to=("kl-penalty-dominates", "reward-flatline"),
    signs=(
        changes("jumps", _KL, "the KL jumps from one step to the next", "the KL to the reference", role="needed"),
        changes("jumps", ("ref.ref_surprise",), "the reference's own logprobs jump", "the mean -ref_logprob", role="needed"),
        changes("jumps", ("ref.own_surprise",), "those of the policy jump too", "the mean -logprob", role="against"),
        changes("jumps", _ENTROPY, "the entropy jumps", "the entropy", role="against"),
        changes("jumps", ("optim.grad_norm",), "the gradient jumps", "the gradient norm", role="against"),
        changes("jumps", _REWARD, "the reward jumps", "the reward", role="against"),
    ),
    advice=(
        "Compute the logprobs of a batch from before the step with the reference as it is now: they must not have changed.",
        "If the run was resumed there, check which weights the reference was loaded from.",
        "If the reference is synchronised on purpose, the KL counts from there: ignore the rule with that reason.",
    ),
    source="Reproduced by exchanging the reference; trainers that reload it at a resume",
    doc="""The policy goes on as before, by all that it shows itself: entropy, reward, gradient. Only its distance to the
    reference is another from one step to the next. An update that throws the policy moves those as well.""",
)  # fmt: skip

cause(
    "policy-thrown", "one update, or a reload of the weights, threw the policy to another place",
    explains=("kl-runaway", "kl-spike", "grad-norm-spike"), leads_to=_BROKEN,
    signs=(
        changes("jumps", _KL, "the KL jumps from one step to the next and stays", "the KL to the reference", role="needed"),
        changes("jumps", ("optim.grad_norm", *_ENTROPY, "ref.own_surprise", *_REWARD),
                "gradient, entropy or reward jump with it", "", role="needed"),
        found("grad-norm-spike", "the gradient peaks", role="typical"),
    ),
    advice=(
        "Go back to the checkpoint before that step; lower max_grad_norm and the learning rate.",
        "If the run was resumed there, check that optimizer state and weights were restored.",
    ),
    source="Public issue threads on runs that do not come back from one step",
    doc="""The KL jumps and stays, and the policy's own numbers jump with it. Where only the KL does, it is the reference.""",
)  # fmt: skip

cause(
    "kl-direction-swapped", "current and reference are the wrong way round in the KL term",
    explains=("kl-reversed",), leads_to=("kl-runaway", "kl-spike", "entropy-collapse"),
    signs=(
        found("kl-reversed", "the recorded term is k3 of current - reference", suspect="kl-direction-swapped"),
        measured("ref.kl_recorded_gap_k3", over(0.02), "it is not k3 of reference - current",
                 "the recorded term differs by {}% from k3 of reference - current", role="typical", scale=100.0),
    ),
    advice=(
        "Write the term with x = ref_logprob - logprob: exp(x) - 1 - x.",
        "Near the reference both directions have about the same value: the fault shows where it matters.",
    ),
    source="J. Schulman, Approximating KL divergence, 2020",
    doc="""Samples come from the current policy. k3 of the reversed log-ratio is not an estimate of its KL: it grows
    exponentially where the policy has become sure, and pulls it back from just the tokens that earn reward.""",
)  # fmt: skip

cause(
    "kl-sign-turned", "the KL term has the wrong sign",
    explains=("kl-reversed",), leads_to=("kl-runaway", "kl-spike", "entropy-collapse", "entropy-explosion", "kl-below-zero"),
    signs=(
        found("kl-reversed", "the recorded term is the negative of an estimator", suspect="kl-sign-turned"),
        changes("rises", _KL, "the KL grows", "the KL to the reference"),
    ),
    advice=(
        "The term enters the loss with plus (to be minimised), or the reward with minus; never both turned.",
        "Compare the term on one token where the policy is surer than the reference: it must be positive.",
    ),
    source="J. Schulman, Approximating KL divergence, 2020; public issue threads on KL terms with the wrong sign",
    doc="""A penalty with a turned sign pays for leaving the reference. Generation settings can make an honest k1 negative too;
    then k3 of the same tokens is above 0 and the term agrees with its definition.""",
)  # fmt: skip

cause(
    "kl-limit-stops-updates", "updates stop at the limit on the KL: they are too large for the number of passes",
    explains=("update-cut-short",), leads_to=("ratio-saturation",),
    signs=(
        found("update-cut-short", "batches get fewer passes than set"),
        measured(_OLD[0], over(5e-3), "passes move the policy far", "the KL to the policy that sampled is {} in later passes"),
    ),
    advice=("Lower the learning rate, or the number of epochs, until updates run to their end.",),
    source="PPO implementations stop an update early at a target KL",
    doc="""A safeguard that acts at every step is a setting that is wrong: part of every batch is generated and thrown away.""",
)  # fmt: skip
cause(
    "updates-end-early", "updates end early although the policy hardly moves",
    explains=("update-cut-short",),
    signs=(
        found("update-cut-short", "batches get fewer passes than set"),
        measured(_OLD[0], under(5e-3), "passes do not move the policy far", "the KL to the policy that sampled is {} in later "
                 "passes"),
    ),
    advice=("Look for mini-batches that are skipped: overflows, filters, or an iterator that ends early.",),
    source="Reproduced by leaving out later epochs",
    doc="""Nothing in the KL explains why the passes are cut.""",
)  # fmt: skip
