"""Numbers that are not finite: told by the first that breaks, in the order of steps and then of computation."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rl_doctor.causes.registry import EVERYTHING, Look, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, measured, over, sign

_SOURCE: Final = "public reports: NaN in one number at a step, then in all, and one token over and over"

_GO_BACK: Final = (
    "If the loss, the gradient norm or logprobs stay NaN from there on, go back to a checkpoint from before the first step named"
    ": such weights do not recover. If they are finite, the update was skipped, or did not use the numbers that broke."
)


@sign("after it responses are one token over and over", "ending.constant_frac", role="typical")
def _one_token(scene: Scene) -> Look:
    series = scene.view.get("ending.constant_frac")
    if series is None:
        return Look(None, "after it responses are one token over and over", None, ("token_id",))
    after = series.values[series.steps >= (scene.first_step or 0)]
    share = float(after.max()) if after.size else 0.0
    step = int(series.steps[series.values >= 0.5][0]) if share >= 0.5 else None
    told = f"at one step {share:.0%} of the responses are one token over and over"
    return Look(share >= 0.5, told if share > 0.0 else "no response is one token over and over", step)


@sign("the gradient is not finite either", "optim.grad_norm", role="typical")
def _gradient_too(scene: Scene) -> Look:
    series = scene.view.raw("optim.grad_norm")
    if series is None or not len(series):
        return Look(None, "the gradient is not finite either", None, ("grad_norm",))
    bad = [int(step) for step, value in zip(series.steps, series.values, strict=True) if not math.isfinite(value)]
    if not bad:
        return Look(there=False, text=f"the gradient norm is finite at all {len(series)} steps")
    return Look(there=True, text=f"the gradient norm is not finite at {len(bad)} of {len(series)} steps", step=bad[0])


@sign("the gradient norm is finite", "optim.grad_norm", role="typical")
def _gradient_finite(scene: Scene) -> Look:
    series = scene.view.raw("optim.grad_norm")
    if series is None or not len(series):
        return Look(None, "the gradient norm is finite", None, ("grad_norm",))
    fine = sum(map(math.isfinite, series.values))
    return Look(fine > 0, f"the gradient norm is finite at {fine} of {len(series)} steps")


_EXPLAINED: Final = "no more advantages are off than there are responses in groups with a missing reward"


@sign(_EXPLAINED, "advantage.rows_off_frac", "group.size_max", "numerics.missing_reward_frac")
def _off_by_missing(scene: Scene) -> Look:
    names = ("advantage.rows_off_frac", "group.size_max", "numerics.missing_reward_frac")
    off, size, missing = (scene.view.get(name) for name in names)
    if off is None or missing is None or size is None or not len(size):
        return Look(None, _EXPLAINED, None, scene.missing(*names))
    number = float(np.nansum(off.values * off.counts))
    most = float(np.nanmax(size.values) * np.nansum(missing.values * missing.counts))
    return Look(number <= most, f"{number:.0f} advantages are off, and at most {most:.0f} responses are in such groups")


@sign("other findings begin with it or after it")
def _earliest(scene: Scene) -> Look:
    own = scene.results.get("non-finite")
    begin = min((item.first_step for item in own.findings if item.first_step is not None), default=None) if own else None
    if begin is None:
        return Look(None, "other findings begin with it or after it: it has no first step")
    others = [item.first_step for one in scene.results.values() for item in one.findings if item.first_step is not None]
    later = sum(step >= begin for step in others) - 1
    if later < 1:
        return Look(None, "other findings begin with it or after it: there are none from that step on")
    told = f"from that step on there {'is' if later == 1 else 'are'} {later} other finding{'' if later == 1 else 's'}"
    return Look(there=True, text=told, step=begin)


def _first(
    name: str,
    label: str,
    words: str,
    *signs: Sign,
    advice: tuple[str, ...],
    doc: str,
    explains: tuple[str, ...] = ("non-finite",),
) -> None:
    cause(
        name, label, explains=explains, leads_to=EVERYTHING,
        signs=(found("non-finite", words, suspect=name), _earliest, *signs, _gradient_too, _one_token),
        advice=(_GO_BACK, *advice),
        source=_SOURCE, doc=doc,
    )  # fmt: skip


_first(
    "old-logprob-not-finite", "the pass that computes old_logprob returns NaN, before anything else breaks",
    "old_logprob is the first number that is not finite",
    advice=("Run that pass on the rows named, alone and unpadded: an attention mask without any token, or float16 overflow.",),
    doc="""The weights are still sound: the update before was normal. The loss is NaN at that step, then the gradient, then the
    weights; from the next rollout on the engine samples token 0 over and over, the largest of NaN.""",
)  # fmt: skip
_first(
    "reference-not-finite", "the reference policy returns NaN",
    "ref_logprob is the first number that is not finite",
    advice=("Check how the reference was loaded and in which precision it runs.",),
    doc="""The KL term carries it into the loss.""",
)  # fmt: skip
_first(
    "forward-not-finite", "the trainer's forward pass returns NaN",
    "logprob or entropy is the first number that is not finite, and old_logprob is finite",
    advice=("Look at the update before: the weights may have been broken by it. Check the loss scale and the precision.",),
    doc="""The pass before the update was finite and the one in it is not: an overflow in one of the two, or weights that the last
    mini-batch broke.""",
)  # fmt: skip
_first(
    "reward-not-finite", "the reward function returns a number that is not finite",
    "the reward is the first number that is not finite",
    advice=("Guard divisions in the reward function (0/0 on empty answers), and treat a failed verifier as missing.",),
    doc="""One such reward makes the mean of its group NaN, and the advantages of all its samples.""",
)  # fmt: skip
_first(
    "value-not-finite", "the critic returns a number that is not finite",
    "the value is the first number that is not finite",
    advice=("Look at the critic's loss and gradient at the steps before.",),
    doc="""Advantages and returns rest on it.""",
)  # fmt: skip
_first(
    "advantage-undefined", "the normalisation of advantages divides 0 by 0",
    "advantages are the first numbers that are not finite, while rewards are finite",
    measured("group.singleton_frac", over(0.0), "some groups have one sample", "{}% of the groups have one sample",
             role="typical", scale=100.0),
    measured("mask.empty_frac", over(0.0), "some responses have no trained token", "{}% of the rows have no trained token",
             role="typical", scale=100.0),
    advice=("Add eps to the standard deviation, and give a group of one sample an advantage of 0.",),
    doc="""The standard deviation of one sample is 0/0 with ddof 1; that of equal rewards is 0 without eps; the mean over an empty
    mask is 0/0.""",
)  # fmt: skip
_first(
    "exponent-overflows", "exp of a log-ratio overflows",
    "the ratio or the KL term is the first number that is not finite, while logprobs are finite",
    found("exponent-overflow", "log-ratios at stored positions reach the overflow", role="typical"),
    advice=("Select before exp, clamp the log-ratio, and fill padding with the same number in both columns.",),
    doc="""From 88.7 on exp is infinite in float32 and bfloat16. Often that happens at padding only.""",
)  # fmt: skip
_first(
    "loss-undefined", "the loss divides 0 by 0, or an overflow enters it",
    "the loss is the first number that is not finite",
    advice=("Check for empty masks in the mean and for infinite ratios; record the token columns to see more.",),
    doc="""What lies before it in the order of computation is finite, or was not recorded.""",
)  # fmt: skip
_first(
    "gradient-overflows", "the gradient breaks although the loss is finite",
    "the gradient norm is the first number that is not finite",
    found("exponent-overflow", "log-ratios at stored positions reach the overflow", role="typical"),
    advice=(
        "Look for exp or log before the mask (NaN times 0 is NaN in the gradient), and for float16 without a loss scale.",
        "Skip updates whose norm is not finite.",
    ),
    doc="""A masked infinity does not show in the loss. Where a trainer skips such updates nothing else happens.""",
)  # fmt: skip
_first(
    "learning-rate-not-finite", "the schedule returns a learning rate that is not finite",
    "the learning rate is the first number that is not finite",
    advice=("Check the schedule for a division by a number of steps that is 0.",),
    doc="""One step with it ruins every weight.""",
)  # fmt: skip
cause(
    "updates-skipped", "single batches overflow, and their updates are skipped",
    explains=("non-finite",),
    signs=(found("non-finite", "numbers are not finite at single steps, and finite right after", suspect="updates-skipped"),),
    advice=("Look at these batches for an empty or overlong response; a few of them do no harm.",),
    source="float16 training with a dynamic loss scale",
    doc="""Weights that hold NaN do not come back: where the next step is finite the update was not applied.""",
)  # fmt: skip
cause(
    "padding-overflows", "exp is taken at padding, where logprob and old_logprob do not belong together",
    explains=("exponent-overflow", "non-finite"), leads_to=EVERYTHING,
    signs=(
        found("exponent-overflow", "log-ratios outside the mask are near the overflow of exp, or beyond it",
              suspect="padding-overflows"),
        _gradient_too,
    ),
    advice=("Select before exp, or put 0 for the log-ratio outside the mask.",),
    source="public report: 8 of 14 runs died so, without a precursor in the scalars",
    doc="""The loss is finite until the step at which the gradient is not. This is the only sign before.""",
)  # fmt: skip
cause(
    "trained-ratios-overflow", "the log-ratio of trained tokens is so large that its exp overflows, or nearly",
    explains=("exponent-overflow",), leads_to=("non-finite",),
    signs=(
        found("exponent-overflow", "log-ratios of trained tokens are near the overflow of exp, or beyond it",
              suspect="trained-ratios-overflow"),
        _gradient_too,
    ),
    advice=(
        "Find out why logprob and old_logprob are so far apart there: other rows, another policy, an update that went too far.",
        "Clamp the log-ratio before exp until then.",
    ),
    source="arithmetic: exp(88.8) is infinite in float32 and bfloat16",
    doc="""Such tokens are trained, so that no mask helps: old_logprob gives them no chance at all, and they were sampled all the
    same.""",
)  # fmt: skip
cause(
    "column-without-numbers", "columns of the recording hold no number at any trained token",
    explains=("non-finite",), leads_to=EVERYTHING,
    signs=(
        found("non-finite", "a column is not finite at any trained token", suspect="column-without-numbers"),
        _gradient_finite,
    ),
    advice=(
        "Look at where these columns are handed to the recorder: after they are computed, and before they are freed.",
        "Record anew: what rests on these columns was not judged.",
    ),
    source="arithmetic: a loss of NaN leaves no finite gradient",
    doc="""Where the gradient norm or the loss of the log is finite, the training had numbers and the recording lost them.
    Otherwise the training may be broken from its first step on.""",
)  # fmt: skip
cause(
    "reward-missing", "some responses have no reward: the reward function returned NaN, or gave no verdict",
    explains=("non-finite",), leads_to=("advantage-mismatch", "reward-not-its-parts"),
    signs=(
        found("non-finite", "rewards are NaN or missing beside others that are there", suspect="reward-missing"),
        _off_by_missing,
    ),
    advice=(
        "Look at the responses without a reward: a verifier that failed, 0/0 on an empty answer, a missing label.",
        "Decide what such a response counts as, before the mean of its group is taken: left out of it, or a fixed reward.",
    ),
    source="public reports: a failed verifier gives NaN",
    doc="""The mean of a group depends on whether such a response is left out of it or counts as 0, so that its advantages
    follow no formula of the rewards that were recorded.""",
)  # fmt: skip
cause(
    "rollout-logprobs-end", "the engine's logprobs end at a step: from there on all are NaN",
    explains=("non-finite",), leads_to=("missing-rollout-logprob",),
    signs=(found("non-finite", "rollout_logprob holds no number from a step on", suspect="rollout-logprobs-end"),),
    advice=(
        "Look at what changed in the engine at that step: a restart without logprobs, another engine, a path without them.",
        "If importance weights are made of them, check what the trainer puts in their place from there on.",
    ),
    source="arithmetic",
    doc="""What the engine samples can no longer be held against what is trained on, and a correction of the difference has
    nothing to work with.""",
)  # fmt: skip
