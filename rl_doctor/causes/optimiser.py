"""Gradients that are not there, learning rates that are not, and norms that are something else than they seem."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.causes.registry import Look, Role, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import configured, found, measured, over, sign, under

_STILL: Final = (
    "reward-flatline", "kl-flatline", "inert-ratio", "grad-zero", "grad-vanished", "entropy-collapse", "value-not-learning",
    "reward-component-idle", "preference-not-learning", "adapter-rate-too-low", "zero-variance-groups",
)  # fmt: skip
"""What a policy that does not move shows."""
_GONE: Final = ("grad-zero", "grad-vanished")
_MOST: Final = 0.8
"""Share of groups without variance from which on there is next to nothing to learn from."""


def _gradient_gone() -> Sign:
    def look(scene: Scene) -> Look:
        hits = [item for name in _GONE if (one := scene.results.get(name)) is not None for item in one.findings]
        first = min((item.first_step for item in hits if item.first_step is not None), default=None)
        return Look(bool(hits), "the gradient is 0, or next to it" if hits else "the gradient is there", first)

    return Sign("the gradient is 0, or next to it", "needed", (), look)


def _no_variance(role: Role) -> Sign:
    return measured(
        "group.zero_std_frac", over(_MOST), "in most groups all samples have the same reward",
        "{}% of the groups have no variance", role=role, scale=100.0,
    )  # fmt: skip


def _all_clipped(role: Role) -> Sign:
    return measured(
        "policy.clip_frac", over(0.9), "nearly every token is clipped", "{}% of the tokens are clipped", role=role, scale=100.0
    )


def _all_masked(role: Role) -> Sign:
    return measured(
        "mask.empty_frac", over(0.9), "nearly every response is masked as a whole", "{}% of the rows have no trained token",
        role=role, scale=100.0,
    )  # fmt: skip


_ADVANTAGES: Final = ("adv.max", "adv.min")
_SOME_ADVANTAGE: Final = 0.01
"""Advantages of groups without variance are 0 up to rounding."""


def _largest_advantage(scene: Scene) -> float:
    """How far the largest or the smallest advantage lies from 0 at half of the steps, whichever is further; NaN if unknown."""
    known = [series.values for name in _ADVANTAGES if (series := scene.series(name)) is not None]
    return max((float(np.median(np.abs(values))) for values in known), default=math.nan)


@sign("samples have advantages other than 0", *_ADVANTAGES, role="against")
def _has_advantages(scene: Scene) -> Look:
    size = _largest_advantage(scene)
    if math.isnan(size):
        return Look(None, "samples have advantages other than 0", None, scene.missing("adv.max"))
    return Look(size > _SOME_ADVANTAGE, f"the advantages of a step reach {size:.3g}")


@sign("groups differ in their rewards", "group.zero_std_frac", *_ADVANTAGES)
def _signal(scene: Scene) -> Look:
    share, size = scene.value("group.zero_std_frac"), _largest_advantage(scene)
    if not math.isnan(share):
        return Look(share < _MOST, f"{100.0 * share:.3g}% of the groups have no variance")
    if not math.isnan(size):
        return Look(size > _SOME_ADVANTAGE, f"the advantages of a step reach {size:.3g}")
    return Look(None, "groups differ in their rewards", None, scene.missing("group.zero_std_frac"))


cause(
    "no-signal-in-groups", "all samples of a group have the same reward, so that there is nothing to learn from",
    explains=_GONE, leads_to=("kl-flatline", "reward-component-idle", "inert-ratio"),
    signs=(_gradient_gone(), _no_variance("needed"), _all_masked("against"), _has_advantages),
    advice=(
        "Filter prompts that are always or never solved, raise group_size, or use finer rewards.",
        "If responses are cut at the length limit, raise that first.",
    ),
    source="public runs with a gradient of exactly 0 on most steps",
    doc="""In group-relative training the advantage is the difference to the group. The loss and its gradient are in order; it is
    the rewards that do not differ.""",
)  # fmt: skip
cause(
    "everything-masked", "the mask leaves nothing to train on",
    explains=_GONE, leads_to=_STILL,
    signs=(_gradient_gone(), _all_masked("needed")),
    advice=("Check what sets the mask to 0: a filter of overlong responses, a wrong role, an alignment that is off.",),
    source="public issue threads on filters that mask every response",
    doc="""Where all responses are filtered the step has no loss.""",
)  # fmt: skip
cause(
    "everything-clipped", "nearly every token is outside the clip range, so that the gradient is 0",
    explains=_GONE, leads_to=_STILL,
    signs=(_gradient_gone(), _all_clipped("needed")),
    advice=("Find why ratios are so far from 1 (outdated old_logprob, lag, temperature) before the range is widened.",),
    source="arXiv:1707.06347: a clipped token has no gradient",
    doc="""The finding about the ratio tells what is behind it.""",
)  # fmt: skip
cause(
    "loss-detached", "the loss has lost its gradient: logprobs are detached, or its scale underflows",
    explains=_GONE, leads_to=_STILL,
    signs=(
        _gradient_gone(), _signal, _all_clipped("against"), _all_masked("against"),
    ),
    advice=(
        "Check that the loss requires a gradient and that no logprob is detached or computed under no_grad.",
        "If it began in mid-run, look at what changed there: a mode that was left on, a frozen module, a loss scale of 0.",
    ),
    source="reproduced by detaching logprobs in mid-run",
    doc="""There is variance to learn from, tokens to learn on and a range to move in, and still no gradient.""",
)  # fmt: skip
cause(
    "learning-rate-ran-out", "the schedule has run out: the learning rate is 0 up to the end",
    explains=("learning-rate-zero",), leads_to=_STILL,
    signs=(found("learning-rate-zero", "the learning rate is exactly 0 from a step on to the end",
                 suspect="learning-rate-ran-out"),),
    advice=("Give the scheduler the number of optimizer steps of the whole run: batches times passes times mini-batches.",),
    source="public issue threads on schedulers that count other steps",
    doc="""Schedulers count optimizer steps, dataloaders batches, resumed runs from 0. What is left after the end is wasted.""",
)  # fmt: skip
cause(
    "learning-rate-never-set", "the learning rate is 0 from first to last, and the policy does not move",
    explains=("learning-rate-zero",), leads_to=_STILL,
    signs=(
        found("learning-rate-zero", "the learning rate is 0 at all steps, and the policy does not move",
              suspect="learning-rate-never-set"),
    ),
    advice=("Look for a rate that was parsed as text or as an integer, and for a scheduler that is stepped in another place.",),
    source="public issue threads on warm-up steps",
    doc="""A log that rounds to three decimals shows 1e-6 as 0 as well; there the policy moves.""",
)  # fmt: skip
cause(
    "learning-rate-starts-late", "the learning rate is 0 for the first steps",
    explains=("learning-rate-zero",),
    signs=(found("learning-rate-zero", "the learning rate is 0 from the first step on for some steps",
                 suspect="learning-rate-starts-late"),),
    advice=("Check when the scheduler is stepped; one step at 0 is usual with a warm-up, several are not.",),
    source="public issue threads on the first step of a warm-up",
    doc="""These steps cost generation and teach nothing.""",
)  # fmt: skip
cause(
    "learning-rate-rounded", "the logged learning rate is rounded to 0, or is that of another group of parameters",
    explains=("learning-rate-zero",),
    signs=(found("learning-rate-zero", "the learning rate is logged as 0 throughout, which a rounded log shows of any",
                 suspect="learning-rate-rounded"),),
    advice=("Log the learning rate in full precision.",),
    source="public issue threads on console output that prints 1e-6 as 0.000",
    doc="""No fault of the training.""",
)  # fmt: skip
cause(
    "warm-up-takes-the-run", "the warm-up takes up a large part of the run",
    explains=("warm-up-too-long",), leads_to=_STILL,
    signs=(found("warm-up-too-long", "a large share of the steps is warm-up"),),
    advice=("Warm up for 10 to 20 steps.",),
    source="public recipes corrected from .95 of the run to .285",
    doc="""A ratio that was meant for pre-training, or steps counted in another unit.""",
)  # fmt: skip
cause(
    "adapter-learns-too-slowly", "the adapter is trained at a rate that is meant for all weights",
    explains=("adapter-rate-too-low",), leads_to=_STILL,
    signs=(found("adapter-rate-too-low", "an adapter, a rate of 2e-6 or less, and a policy that stays"),),
    advice=("Raise the rate to 1e-5 to 1e-4.",),
    source="public threads on LoRA runs at 1e-6 that stall",
    doc="""Everything works, and too slowly to be seen.""",
)  # fmt: skip
cause(
    "outlier-batch", "one batch has an outlier, and the run recovers from it",
    explains=("grad-norm-spike",), leads_to=("kl-spike", "ratio-saturation"),
    signs=(found("grad-norm-spike", "the gradient norm stands above its level for a few steps and comes back",
                 suspect="outlier-batch"),),
    advice=("Nothing if max_grad_norm is set; else set it.", "Look at the batch if it happens again."),
    source="public issue threads; trainers log the norm before clipping",
    doc="""A spike is clipped, and the next step is as before.""",
)  # fmt: skip
cause(
    "loss-scale-changed", "the scale of the loss changed at one step",
    explains=("grad-norm-spike",),
    leads_to=("kl-spike", "kl-runaway", "ratio-saturation", "entropy-explosion", "entropy-collapse", "sudden-collapse"),
    signs=(
        found("grad-norm-spike", "the gradient norm rises at once and stays there", suspect="loss-scale-changed"),
        found("optimizer-state-lost", "the schedule starts anew", role="typical"),
        configured("max_grad_norm", lambda value: not value, "gradients are not clipped", "max_grad_norm is {}", role="typical"),
    ),
    advice=(
        "Compare the configuration before and after the step: number of micro-batches, normaliser of the loss, reward scale.",
        "If nothing was changed, one update left the policy where its gradient is large: go back to before.",
    ),
    source="public issue threads on losses scaled by the number of micro-batches",
    doc="""A restart with another number of ranks or micro-batches is the usual reason. Drift takes many steps, this one.""",
)  # fmt: skip
cause(
    "spike-not-recovered", "the run has not recovered from a gradient that stood far above its level",
    explains=("grad-norm-spike",),
    leads_to=("kl-spike", "kl-runaway", "ratio-saturation", "entropy-explosion", "reward-drift", "sudden-collapse"),
    signs=(found("grad-norm-spike", "the gradient norm stands above its level"),),
    advice=("Set or lower max_grad_norm, and go back to a checkpoint from before.",),
    source="public issue threads on divergence",
    doc="""The end of the run is still in it: whether it comes back cannot be told.""",
)  # fmt: skip
cause(
    "gradient-grows", "the gradient grows from step to step",
    explains=("grad-norm-growth",),
    leads_to=(
        "grad-norm-spike", "kl-spike", "kl-runaway", "ratio-saturation", "entropy-explosion", "reward-drift", "sudden-collapse",
    ),
    signs=(found("grad-norm-growth", "the gradient norm grew to a multiple of its start"),),
    advice=("Lower the learning rate; look at what grows with it.",),
    source="public reports on late collapse",
    doc="""The symptom without a cause that these columns tell.""",
)  # fmt: skip
cause(
    "gradient-clipped-by-shard", "each rank clips by the norm of its own shard of the gradient",
    explains=("grad-norm-differs-by-rank",), leads_to=("grad-norm-spike", "ratio-saturation", "kl-spike", "grad-norm-growth"),
    signs=(found("grad-norm-differs-by-rank", "ranks report different norms for one optimizer step"),),
    advice=("Sum the squares over ranks before the root is taken.",),
    source="public issues on clipping sharded parameters",
    doc="""Ranks whose data differ report different losses, but of one gradient there is one norm.""",
)  # fmt: skip
cause(
    "norm-logged-after-clipping", "the gradient norm is logged after clipping",
    explains=("grad-norm-logged-clipped",),
    signs=(found("grad-norm-logged-clipped", "the norm is exactly the bound on most steps and never above it"),),
    advice=("Log the norm before clipping.",),
    source="public reports: a norm of exactly 1.000 at most steps",
    doc="""The training is in order; spikes cannot be seen.""",
)  # fmt: skip
cause(
    "resumed-without-optimizer", "the run was resumed without the state of its optimizer or schedule",
    explains=("optimizer-state-lost", "kl-spike"),
    leads_to=("kl-spike", "grad-norm-spike", "ratio-saturation", "reward-drift", "sudden-collapse", "mismatch-before-explosion"),
    signs=(
        found("optimizer-state-lost", "the schedule starts anew in mid-run"),
        measured("mismatch.abs", under(0.2), "engine and trainer agree", "the mean difference of engine and trainer is {} nat",
                 role="typical"),
    ),
    advice=("Save and load optimizer and scheduler with the weights; else warm up again.",),
    source="public threads on resumed runs",
    doc="""Weights that were not loaded, or sent wrongly, make engine and trainer differ; here they agree, and only updates are
    large.""",
)  # fmt: skip
