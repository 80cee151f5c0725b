"""A ratio that cannot leave 1, or that leaves the clip range in bulk: what the update does with its own weights."""

from __future__ import annotations

from typing import Final

import numpy as np

from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import configured, found, measured, over, sign, under
from rl_doctor.causes.staleness_signs import grows, with_role
from rl_doctor.rules.reading import TINY_STEP
from rl_doctor.rules.spans import pooled

_INERT: Final = "inert-ratio"
_SATURATED: Final = "ratio-saturation"
_LATER: Final = measured(
    "policy.later_zero_frac", over(0.99), "the ratio is exactly 1 after optimizer steps",
    "the log-ratio is exactly 0 on {}% of the tokens after an optimizer step", scale=100.0,
)  # fmt: skip


@sign("the policy moves all the same", "ref.kl_k3")
def _moves(scene: Scene) -> Look:
    kl = scene.view.get("ref.kl_k3")
    if kl is not None and len(kl) >= 2 and float(kl.values[0]) == 0.0:  # the same numbers for the same weights
        last = float(kl.values[-1])
        return Look(bool(np.any(kl.values > 0.0)), f"the KL to the reference is exactly 0 at first and {last:.2g} at the end")
    if kl is not None and len(kl) >= 4:
        first, last = float(kl.values[0]), float(np.median(kl.values[-max(len(kl) // 4, 2) :]))
        moves = last > max(2.0 * first, 1e-9) or (len(np.unique(kl.values)) > 0.5 * len(kl) and last > 1e-6)
        return Look(bool(moves), f"the KL to the reference is {first:.2g} at first and {last:.2g} at the end")
    return Look(None, _moves.words, None, () if kl is not None else scene.missing("ref.kl_k3"))


@sign("the policy does not move: its KL to the reference stays where it was", "ref.kl_k3")
def _rests(scene: Scene) -> Look:
    found_one = _moves.look(scene)
    return Look(None if found_one.there is None else not found_one.there, found_one.text if found_one.there is not None
                else _rests.words, found_one.step, found_one.missing)  # fmt: skip


@sign("there is a gradient", "optim.grad_norm", role="typical")
def _gradient(scene: Scene) -> Look:
    series = scene.series("optim.grad_norm")
    if series is None:
        return Look(None, _gradient.words, None, scene.missing("optim.grad_norm"))
    return Look(bool(np.median(series.values) > 0.0), f"the gradient norm is {np.median(series.values):.2g}")


_TINY_STEP: Final = measured(
    "optim.learning_rate", under(TINY_STEP), "a step is too small for bfloat16 weights", "the learning rate is {}", role="typical"
)
_LARGE_STEP: Final = measured(
    "optim.learning_rate", over(TINY_STEP), "a step is large enough for bfloat16 weights", "the learning rate is {}",
    role="against",
)  # fmt: skip


@sign(
    "only slices not seen before are at 1; in later passes the ratio moves",
    "policy.slice_zero_frac",
    "policy.reuse_zero_frac",
)
def _only_slices(scene: Scene) -> Look:
    slices, reused = scene.series("policy.slice_zero_frac"), scene.series("policy.reuse_zero_frac")
    if slices is None:
        return Look(None, _only_slices.words, None, scene.missing("policy.slice_zero_frac"))
    share = pooled(slices)
    if reused is None:
        return Look(None, _only_slices.words, None, ("epoch",)) if share > 0.99 else Look(there=False, text=f"{share:.0%} of the "
                    "tokens of later slices have a ratio of 1")  # fmt: skip
    again = pooled(reused)
    told = f"the ratio is 1 on {share:.0%} of the tokens of later slices, and on {again:.0%} in later passes"
    return Look(share > 0.99 and again < 0.5, told)


_MOVES_FOLLOW: Final = ("update-cut-short", "reward-flatline")

cause(
    "ratio-blind-to-sampler",
    "the ratio compares the trainer with itself, and does not see that the sampler is another policy",
    explains=(_INERT,),
    leads_to=_MOVES_FOLLOW,
    signs=(found(_INERT, "the ratio is 1 although the samples are another policy's", suspect="ratio-blind-to-sampler"),),
    advice=(
        "Find why the sampler is another policy: stale weights, a wrong push, a cache.",
        "Take the sampler's logprobs for old_logprob, or correct with an importance weight.",
    ),
    source="Public issue threads on ratios divided by their own detached value",
    doc="""old_logprob is the trainer's own, so that the ratio is 1 whatever the engine samples with. By itself that is the
    usual way; it means that clip share and KL cannot show what is wrong with the samples.""",
)  # fmt: skip

cause(
    "ratio-of-itself",
    "the ratio compares logprob with itself",
    explains=(_INERT,),
    leads_to=_MOVES_FOLLOW,
    signs=(found(_INERT, "the ratio is inert"), _LATER, _moves, _gradient, with_role("against", _only_slices)),
    advice=(
        "Compute old_logprob once per generation batch, before its first step, and keep it; x / x.detach() is always 1.",
        "If one step per batch is intended, set epochs and mini-batches to 1: the ratio is then 1 by design.",
    ),
    source="Public issue threads on ratios divided by their own detached value",
    doc="""The policy moves from mini-batch to mini-batch and the ratio does not see it: there is no trust region. With one
    step per batch that is harmless, and by design.""",
)  # fmt: skip

cause(
    "later-slices-without-old-logprobs",
    "later slices of a generation batch are trained on without old logprobs",
    explains=(_INERT,),
    leads_to=_MOVES_FOLLOW,
    signs=(found(_INERT, "the ratio is inert"), _only_slices, with_role("typical", _moves), _gradient),
    advice=(
        "Compute old_logprob for the whole generation batch before its first step.",
        "With one pass let the gradient accumulation be a multiple of the number of slices: no step is taken between them.",
    ),
    source="Public trainer issues on slices that are used after a step with the current logprobs as old ones",
    doc="""The first pass over each slice takes the current logprobs for the old ones, although a step was taken since
    sampling. In later passes the kept ones are used, so that the ratio moves there.""",
)  # fmt: skip

cause(
    "optimizer-not-stepping",
    "the optimizer does not change the weights",
    explains=(_INERT, "kl-flatline", "reward-flatline"),
    leads_to=(_INERT, "kl-flatline", "reward-flatline"),
    signs=(found(_INERT, "the ratio is inert"), _LATER, _rests, _gradient),
    advice=(
        "Compare a weight before and after a step, bit for bit.",
        "Check that the optimizer holds the parameters that are trained (shards, adapters), and that no scaler skips its steps.",
    ),
    source="Public trainer issues: the second mini-batch's ratio is still 1 with a loss and a gradient that are not 0",
    doc="""The gradient is there and nothing moves: neither the ratio within a batch, nor the KL to the reference over the
    run.""",
)  # fmt: skip

cause(
    "steps-vanish-in-bfloat16",
    "the learning rate is too small for weights in bfloat16: steps round to nothing",
    explains=(_INERT, "kl-flatline", "reward-flatline"),
    leads_to=(_INERT, "kl-flatline", "reward-flatline"),
    signs=(found(_INERT, "the ratio is inert"), _LATER, _rests, _TINY_STEP, _LARGE_STEP, _gradient),
    advice=(
        "Keep master weights in float32 (or round stochastically): less than half a unit in the last place is nothing.",
        "Compare a weight before and after a step, bit for bit, at the configured and at a hundred times the learning rate.",
    ),
    source="Public trainer issues; bfloat16 has 8 bits of precision: a step must be about 1/500 of a weight to change it",
    doc="""With a learning rate of 1e-6 a step of Adam moves a weight of .02 by 1/20,000 of it, and bfloat16 resolves 1/256.""",
)  # fmt: skip


@sign("the first mini-batch is inside the clip range", "policy.first_outside_frac")
def _first_inside(scene: Scene) -> Look:
    series = scene.series("policy.first_outside_frac")
    if series is None:
        return Look(None, _first_inside.words, None, scene.missing("policy.first_outside_frac"))
    share = pooled(series)
    return Look(share < 0.05, f"{share:.1%} of the tokens are outside before any update")


def _by_update(scene: Scene) -> list[tuple[tuple[int, int], float]]:
    """Share outside the clip range by (epoch, mini-batch), in order."""
    parts = scene.named("policy.outside_by.update.")
    return sorted((tuple(map(int, name.split(".")))[:2], share) for name, share in parts.items())  # type: ignore[misc]


@sign("a single update leaves the clip range", "policy.outside_by.update.")
def _first_step_far(scene: Scene) -> Look:
    shares = _by_update(scene)
    if len(shares) < 2:
        return Look(None, _first_step_far.words, None, ("epoch", "minibatch"))
    after, last = shares[1][1], max(share for _, share in shares)
    told = f"{after:.0%} are outside after one update, {last:.0%} after {len(shares) - 1}"
    return Look(after > 0.5 * last, told)


@sign("the share outside grows from update to update", "policy.outside_by.update.")
def _builds_up(scene: Scene) -> Look:
    shares = _by_update(scene)
    if len(shares) < 3:
        return Look(None, _builds_up.words, None, ("epoch", "minibatch")) if len(shares) < 2 else Look(
            there=False, text="there is one update after the first mini-batch")  # fmt: skip
    after, last = shares[1][1], shares[-1][1]
    told = f"{after:.0%} are outside after one update, {last:.0%} after {len(shares) - 1}"
    return Look(after <= 0.5 * last, told)


_TOO_MUCH: Final = (
    "grad-clipped-always",
    "kl-spike", "kl-runaway", "grad-norm-spike", "grad-vanished", "entropy-collapse", "entropy-explosion", "reward-drift",
    "reward-flatline", "update-cut-short", "kl-penalty-dominates", "length-explosion", "length-truncation", "duplicate-samples",
    "zero-variance-groups", "near-zero-variance-groups", "reward-variance-shift", "reward-hacking-suspected", "non-finite",
    "exponent-overflow",
)  # fmt: skip
_OUTSIDE: Final = found(_SATURATED, "many ratios lie outside the clip range")
_OLD: Final = measured(
    "stale.mean", over(0.9), "the samples are versions old", "the samples are {} versions old on average", role="against"
)

cause(
    "single-updates-too-large",
    "single updates are too large: the learning rate is too high",
    explains=(_SATURATED,),
    leads_to=_TOO_MUCH,
    signs=(
        _OUTSIDE, _first_inside, _first_step_far, _OLD,
        found("grad-norm-spike", "the gradient norm spikes", role="typical"), found("kl-spike", "the KL spikes", role="typical"),
    ),
    advice=(
        "Lower the learning rate, or lengthen the warm-up, until a single update leaves few ratios outside the clip range.",
        "Check that gradients are clipped, and what accumulation and the loss' scale make of them.",
    ),
    source="arXiv:1707.06347, section 3",
    doc="""One update already moves the policy out of the clip range. Fewer epochs do not help: each mini-batch's only step is
    too large.""",
)  # fmt: skip

cause(
    "batch-updated-too-often",
    "each generation batch is trained on too often",
    explains=(_SATURATED,),
    leads_to=_TOO_MUCH,
    signs=(
        _OUTSIDE, _first_inside, _builds_up, _OLD,
        configured("epochs", lambda epochs: epochs > 1, "there are several epochs", "config.epochs is {}", role="typical"),
        configured("minibatches", lambda number: number > 4, "there are many mini-batches", "config.minibatches is {}",
                   role="typical"),
    ),
    advice=(
        "Lower the number of epochs and mini-batches per generation batch, or stop the update at a limit on the KL.",
        "Then lower the learning rate.",
    ),
    source="arXiv:1707.06347, section 3; arXiv:2507.18071, section 5.2",
    doc="""Each update moves the policy a little, and they add up: the later ones of a batch are mostly clipped and teach
    nothing.""",
)  # fmt: skip

cause(
    "updates-too-far",
    "the updates on a generation batch move the policy out of the clip range",
    explains=(_SATURATED,),
    leads_to=_TOO_MUCH,
    signs=(_OUTSIDE, _OLD, with_role("typical", _first_inside)),
    advice=(
        "Lower the learning rate, or the number of epochs and mini-batches per generation batch.",
        "Record epoch, minibatch and weight_version: they tell too large steps from too many, and from stale samples.",
    ),
    source="arXiv:1707.06347, section 3; arXiv:2507.18071, section 5.2",
    doc="""The share outside the clip range is large, and what is recorded does not say at which update it got there.""",
)  # fmt: skip

cause(
    "mismatch-feeds-collapse",
    "engine and trainer drift apart until single tokens drive the gradient",
    explains=("mismatch-before-explosion", "stale-old-logprob", "rollout-trainer-mismatch"),
    leads_to=(
        "inert-ratio", "stale-samples-uncorrected", "kl-below-zero", "sudden-collapse", "grad-norm-growth",
        "grad-norm-spike", "kl-spike", "kl-runaway", "entropy-explosion", "entropy-collapse", "reward-drift", "reward-flatline",
        "reward-variance-shift", "ratio-saturation", "rollout-trainer-mismatch", "stale-old-logprob", "length-explosion",
        "length-truncation", "zero-variance-groups", "non-finite", "duplicate-samples",
    ),
    signs=(
        found("mismatch-before-explosion", "the gap turned up before the gradient norm did"),
        grows(wanted=True),
        measured("stale.mean", under(0.5), "the samples are fresh", "the samples are {} versions old on average", role="typical"),
        found("entropy-explosion", "the entropy rises with it", role="typical"),
        found("reward-drift", "the reward falls after it", role="typical"),
    ),
    advice=(
        "Go back to a checkpoint from before the gap began to rise, not only from before the gradient did.",
        "Mask or truncate by the ratio of trainer and engine, per sequence (geometric mean) where responses are long.",
        "Raise the precision of the engine's and the trainer's last layer, and make their kernels the same.",
    ),
    source="Public posts and trainer issues on late collapse of runs whose engine and trainer disagree",
    doc="""Improbable tokens, and tokens after tool output, carry the gap. They are weighted wrongly, the policy moves towards
    where engine and trainer disagree most, and the gradient explodes some steps later. Without a gap that comes first, look
    for a learning rate or a clip range that is too large.""",
)  # fmt: skip
