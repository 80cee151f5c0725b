"""An old_logprob that is not the policy's: outdated weights, the reference, or another pass over the same weights."""

from __future__ import annotations

from typing import Final

from rl_doctor.causes.registry import cause
from rl_doctor.causes.signs import between, found, measured, over
from rl_doctor.causes.staleness_signs import (
    absent_at_first,
    nearest,
    noise_of_a_pass,
    other_precision,
    rate_is_zero,
    repeats_reference,
    rounding_sized,
    rows_that_differ,
    same_level,
    unrelated,
)

_RULE: Final = "stale-old-logprob"
_FOLLOWS: Final = (
    "kl-penalty-dominates", "grad-clipped-always",
    "ratio-saturation", "kl-spike", "kl-runaway", "rollout-trainer-mismatch", "inert-ratio", "reward-flatline", "grad-norm-spike",
    "grad-vanished", "stale-samples-uncorrected", "update-cut-short", "mismatch-before-explosion", "truncated-sampling-mismatch",
    "unlawful-rollout-logprob", "coarse-logprob", "mismatch-in-some-rows", "kl-below-zero", "tokens-contradict-entropy",
    "exponent-overflow",
)  # fmt: skip
_OFF: Final = measured("mismatch.first_k3", over(2e-5), "before any update the ratio is not 1", "before any update k3 is {} nat")
_FOUND: Final = found(_RULE, "logprob and old_logprob, or the engine, are different policies")
_NEW: Final = (
    "mismatch.rollout_to_new", "mismatch.rollout_to_old", "the engine agrees with logprob, not with old_logprob",
    "rollout_logprob is {} nat from logprob and {} from old_logprob",
)  # fmt: skip
_SLOPE: Final = measured(
    "mismatch.first_slope", between(0.9, 1.1), "the two passes have one temperature",
    "the slope of logprob on old_logprob is {}", role="typical",
)  # fmt: skip
_SATURATED: Final = found("ratio-saturation", "many ratios lie outside the clip range", role="typical")

cause(
    "old-logprob-outdated",
    "old_logprob is computed with outdated weights",
    explains=(_RULE,),
    leads_to=_FOLLOWS,
    signs=(
        _FOUND, _OFF, absent_at_first("needed"), nearest("typical", *_NEW), _SLOPE, _SATURATED,
        repeats_reference("against"), rate_is_zero("against"), unrelated("against"),
    ),
    advice=(
        "Compute old_logprob from the weights that sampled, before the first optimizer step on the batch.",
        "Look for a cached copy: a second model for scoring, an adapter merged late, a pass that is done one batch ahead.",
        "If rollouts lag on purpose, record weight_version and policy_version and correct with importance weights.",
    ),
    source="PPO's ratio is 1 before the first update by definition (arXiv:1707.06347)",
    doc="""Clipping is anchored to a policy that did not act: part of every batch is clipped before anything was learned from
    it.

    An engine with outdated weights looks alike from afar. There the rollout is the odd one out: logprob and old_logprob agree
    with each other, and rollout_logprob with neither. A pass with dropout or in another precision differs from the first step
    on, when there are no older weights yet; outdated weights differ by as much as the policy has moved.""",
)  # fmt: skip

cause(
    "old-logprob-repeats-reference",
    "old_logprob repeats the reference",
    explains=(_RULE,),
    leads_to=(*_FOLLOWS, "kl-flatline"),
    signs=(
        _FOUND, _OFF, repeats_reference("needed"), absent_at_first("typical"), nearest("typical", *_NEW),
        _SATURATED,
    ),
    advice=(
        "Compute old_logprob with the policy's own weights: adapters are switched off, or the reference worker answers.",
        "Check which module scores old_logprob after a resume.",
    ),
    source="PPO's ratio is 1 before the first update by definition (arXiv:1707.06347)",
    doc="""The pass for old_logprob runs through the reference: adapters are off, or one worker serves both.

    The ratio then measures how far the policy is from the reference, and the clip range stops training once it has moved by
    .2. Outdated weights catch up when the learning rate falls; the reference never does.""",
)  # fmt: skip

cause(
    "old-logprob-of-another-policy",
    "old_logprob is not from the policy that is trained",
    explains=(_RULE,),
    leads_to=(*_FOLLOWS, "logprob-misaligned"),
    signs=(_FOUND, _SATURATED, nearest("typical", *_NEW)),
    advice=(
        "Score one batch twice with the same weights and compare: if the passes differ, it is not the weights.",
        "Check that old_logprob is computed from the weights that sampled, before the first optimizer step on the batch.",
        "Record rollout_logprob, ref_logprob, epoch and minibatch: they tell outdated weights from another pass.",
    ),
    source="PPO's ratio is 1 before the first update by definition (arXiv:1707.06347)",
    doc="""logprob and old_logprob differ where they should be equal, and what is recorded does not say why: outdated weights,
    another model, or another way to compute the same one.""",
)  # fmt: skip

cause(
    "passes-differ-in-precision",
    "the two passes of the trainer differ in precision or code path",
    explains=(_RULE,),
    leads_to=_FOLLOWS,
    signs=(
        _FOUND, _OFF, other_precision, absent_at_first("needed", wanted=False), rows_that_differ("needed", few=False),
        repeats_reference("against"),
    ),
    advice=(
        "Compute log_softmax in float32 in both passes, inside the same autocast region.",
        "Score one batch by both code paths and compare token by token; then use one of them for both.",
        "With one step per batch, take old_logprob = logprob.detach() and the difference is gone.",
    ),
    source="Public fix of a PPO trainer whose log_softmax ran outside autocast, on half-precision logits",
    doc="""All tokens differ, from the first step on, to one side, or one of the two has only values of half precision.

    A bias moves every ratio in one direction, and with sparse rewards that is as large as the signal. Dropout is unbiased and
    larger; kernels that depend on the batch leave most rows alone.""",
)  # fmt: skip

cause(
    "dropout-in-a-pass",
    "dropout (or another random part) is active in one pass of the trainer",
    explains=(_RULE,),
    leads_to=_FOLLOWS,
    signs=(
        _FOUND, _OFF, noise_of_a_pass, absent_at_first("needed", wanted=False), rows_that_differ("needed", few=False),
        repeats_reference("against"), rate_is_zero("typical"), _SLOPE, unrelated("against"),
    ),
    advice=(
        "Put the model in evaluation mode for old_logprob, and set dropout (adapters' too) to 0 for training.",
        "Repeat the pass over one batch: with dropout it differs from itself.",
    ),
    source="Public fix of an old-logprob pass that was not in evaluation mode; the same question was asked of the first trainers",
    doc="""Unbiased noise at every token of every row, from the first step on, which does not fall when the policy stands
    still.

    Outdated weights differ by as much as the policy has moved: by nothing at first, and by nothing at learning rate 0.""",
)  # fmt: skip

cause(
    "kernels-depend-on-batch",
    "kernels give other numbers in a batch of another size",
    explains=(_RULE,),
    leads_to=("inert-ratio", "mismatch-in-some-rows", "rollout-trainer-mismatch"),
    signs=(
        _FOUND, _OFF, rows_that_differ("needed", few=True), rounding_sized("needed", wanted=True),
        absent_at_first("typical", wanted=False), _SLOPE,
    ),
    advice=(
        "If the difference is small, nothing: it is the noise of half precision.",
        "Use one micro-batch size for old_logprob and update, or batch-invariant kernels.",
        "With one step per batch, take old_logprob = logprob.detach().",
        "If it grows with length or padding, look for position ids.",
    ),
    source="Public trainer issues on ratios that are not exactly 1 in some rows, in bfloat16 far more than in float16",
    doc="""Some rows differ and the others are the same to the last bit: matrix products are split by the shape of the batch,
    or a row went through another kernel. Unbiased, and harmless while small; no alarm is raised for that.""",
)  # fmt: skip

cause(
    "old-logprobs-of-other-rows",
    "old_logprob is that of other rows",
    explains=(_RULE,),
    leads_to=(*_FOLLOWS, "mismatch-within-response", "logprob-misaligned"),
    signs=(
        _FOUND, _OFF, unrelated("needed"),
        same_level,
        found("logprob-misaligned", "they agree at another position", suspect="trainer-passes-shifted", role="against"),
        repeats_reference("against"),
    ),
    advice=(
        "Compare the order of rows before and after every sort, filter and balance step: all columns must move together.",
        "Look for the old_logprob of one row in the other rows of its step.",
    ),
    source="Reproduced by exchanging the old logprobs of rows",
    doc="""Each number is a lawful logprob and stands in another row: the two columns are unrelated and equally large, in all
    rows or in some. Dropout and outdated weights leave them related, as the same tokens are hard for both.

    Rows that repeat the same few tokens may then agree at another offset, by chance.""",
)  # fmt: skip

cause(
    "old-logprob-off-in-some-rows",
    "in some rows old_logprob is that of another pass",
    explains=(_RULE,),
    leads_to=_FOLLOWS,
    signs=(
        _FOUND, _OFF, rows_that_differ("needed", few=True), rounding_sized("needed", wanted=False), unrelated("against"),
        absent_at_first("typical", wanted=False),
    ),
    advice=(
        "Look at what the rows that differ share: rank, micro-batch, turn, a resumed generation, a cached batch.",
        "Score one of these rows again, alone and in its batch.",
    ),
    source="Reproduced by damaging the old logprobs of a rank, of a micro-batch and of rows",
    doc="""The other rows are the same to the last bit, so that it is not the weights of all; and the rows that differ do so by
    more than kernels and rounding can.""",
)  # fmt: skip
