"""Contradictions in how the update is configured: clip bounds, KL terms, entropy, batches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from rl_doctor.report.model import Hit
from rl_doctor.rules.configured import number, setting, silent, stated, unknown, updates_per_batch
from rl_doctor.rules.reading import KL_OLD, evidence, first_of
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_SLICES: Final = ("policy.slice_zero_frac", "policy.later_zero_frac")
_SLICES_KEPT: Final = (0, 19)
"""The version of TRL from which on log-probabilities of slices that come later are kept."""


@rule(
    "RLD701", "clip-range-contradictory",
    severity="warning", since="0.2.0",
    limits={"sum_low": 1.8, "sum_high": 2.5, "dual": 1.0},
    cause="The clip range cannot be what was meant: bounds where distances belong, bounds that are swapped, or a dual clip that "
    "binds before the ratio has moved.",
    advice=(
        "clip_low and clip_high are distances from 1: .2 and .28 clip at .8 and 1.28.",
        "dual_clip bounds the loss of negative advantages at large ratios: 3 is usual, and it must be above 1.",
    ),
    avoids=("Clip ranges that are wider above than below (clip-higher).", "A lower bound that is switched off: worth knowing."),
    source="PPO, arXiv:1707.06347; dual clip, arXiv:1912.09729, where c > 1; clip-higher, arXiv:2503.14476",
)  # fmt: skip
def clip_range_contradictory(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The configured bounds of the ratio contradict each other, or what they are for.

    A warning: clip_low below and clip_high above 1 with a sum between `sum_low` and `sum_high`, as .8 and 1.2 have, which are
    bounds and not distances from 1; dual_clip of `dual` or less, which takes the gradient from every token with a negative
    advantage whose ratio is 1 or more; a range of 0 where more than one step is taken on each batch, which takes it from every
    token that has moved. Info: clip_low of 1 or more (no lower bound), and clip_low above clip_high.
    """
    low, high, dual = view.config.clip_low, view.config.clip_high, view.config.dual_clip
    if dual is not None and dual <= limits["dual"]:
        yield Hit(
            f"dual_clip is {dual:g}: tokens with a negative advantage and a ratio of {dual:g} or more have no gradient",
            "warning", (stated("dual_clip", dual, limits["dual"]),), suspect="dual-clip-too-small",
        )  # fmt: skip
    if low is None or high is None:
        if dual is None:
            yield unknown(view, "clip_low", "clip_high") or silent("the clip range")
        return
    given = (stated("clip_low", low), stated("clip_high", high))
    if low < 1.0 < high and limits["sum_low"] <= low + high <= limits["sum_high"] and low >= 0.5:
        yield Hit(
            f"clip_low {low:g} and clip_high {high:g} look like the bounds themselves: as distances from 1 they clip at "
            f"{1.0 - low:.3g} and {1.0 + high:.3g}",
            "warning", given, suspect="clip-bounds-for-distances",
        )  # fmt: skip
    elif low == high == 0.0:
        steps = updates_per_batch(view)
        if steps is not None and steps > 1:
            yield Hit(
                f"The clip range is 0 and each batch is used for {steps} steps: a token that has moved learns nothing more",
                "warning", given, suspect="clip-range-of-nothing",
            )  # fmt: skip
    elif low >= 1.0:
        yield Hit(f"clip_low is {low:g}: ratios have no lower bound", "info", given[:1], suspect="no-lower-clip-bound")
    elif low > high:
        yield Hit(
            f"clip_low {low:g} is above clip_high {high:g}: probabilities may fall further than they may rise, in one update",
            "info", given, suspect="clip-bounds-swapped",
        )  # fmt: skip


@rule(
    "RLD706", "slices-without-old-logprob",
    severity="info", since="0.2.0",
    optional=_SLICES,
    cause="A generation batch is spread over several optimizer steps, and versions of the trainer take its later slices for "
    "on-policy: their ratio is 1 whatever was learned in between.",
    advice=(
        "Make gradient_accumulation_steps a multiple of steps_per_generation * num_iterations, or update the trainer.",
        "Record the run: the ratio of later slices tells.",
    ),
    avoids=("Runs whose ratios were recorded: they are judged by their ratios.", "Versions that compute old_logprob there."),
    source="Public issue on a trainer that had no old log-probabilities for later slices of a generation batch",
)  # fmt: skip
def slices_without_old_logprob(view: View, limits: Limits) -> Iterator[Hit | Skip]:  # noqa: ARG001 - it has none
    """TRL's accumulation does not end where a generation batch does.

    With one iteration over each batch, TRL before 0.19 decided by comparing the two numbers whether log-probabilities are kept.
    Where they do not divide each other, slices that come after an optimizer step are off-policy without a ratio.

    It fires for those versions if gradient_accumulation_steps is above steps_per_generation and no multiple of it.
    """
    accumulation, slices = number(view, "gradient_accumulation_steps"), number(view, "steps_per_generation")
    iterations = number(view, "num_iterations")
    if not accumulation or not slices or iterations is None:
        yield silent("how a generation batch is spread over steps")
        return
    if first_of(view, *_SLICES) is not None or iterations != 1 or accumulation <= slices or accumulation % slices == 0:
        return
    if (view.info.trainer or "").lower() not in {"", "trl"} or _as_numbers(view.info.trainer_version) >= _SLICES_KEPT:
        return
    yield Hit(
        f"Steps of {accumulation:.0f} micro-batches end within generation batches of {slices:.0f}",
        "info",
        (stated("native.gradient_accumulation_steps", accumulation), stated("native.steps_per_generation", slices)),
        unchecked=("the ratio of the later slices: logprob and old_logprob",),
        suspect="slices-taken-for-on-policy",
    )


def _as_numbers(version: str | None) -> tuple[int, ...]:
    """Major and minor number of a version, or of the lower of its bounds; none where it is unknown."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version or "")[:2])


@rule(
    "RLD707", "batch-left-over",
    severity="warning", since="0.2.0",
    cause="The sizes of batches do not divide each other: the last update of each batch is a smaller one, or a group does not "
    "fit.",
    advice=("Choose a mini-batch that divides the generation batch, and batches that hold whole groups.",),
    avoids=("Batches of tokens (dynamic batching), whose number of sequences varies by design.",),
    source="Documentation of trainers that require or round such sizes",
)  # fmt: skip
def batch_left_over(view: View, limits: Limits) -> Iterator[Hit | Skip]:  # noqa: ARG001 - it has none
    """The generation batch is no whole number of mini-batches, or smaller than one group.

    A last mini-batch with a tenth of the samples weighs as much as the others: its samples count ten times. Where a group does
    not fit into the batch its baseline is one of a part.

    It reads native settings whose units are known: verl's train_batch_size and ppo_mini_batch_size (prompts), OpenRLHF's
    rollout.batch_size and n_samples_per_prompt against train.batch_size, TRL's generation_batch_size against num_generations.
    Too small is a warning, a remainder info.
    """
    trainer = (view.info.trainer or "").lower()
    group = view.config.group_size
    if trainer == "verl":
        whole, part = number(view, "data.train_batch_size"), number(view, "actor.ppo_mini_batch_size")
        names = ("native.data.train_batch_size", "native.actor.ppo_mini_batch_size")
    elif trainer == "openrlhf":
        prompts, samples = number(view, "rollout.batch_size"), number(view, "rollout.n_samples_per_prompt")
        whole = None if not prompts or not samples else prompts * samples
        part, names = number(view, "train.batch_size"), ("native.rollout", "native.train.batch_size")
    elif trainer == "trl":
        whole, part = number(view, "generation_batch_size"), None if group is None else float(group)
        names = ("native.generation_batch_size", "group_size")
    else:
        yield silent("in what units batches are counted")
        return
    if not whole or not part:
        yield silent("how large batches are")
        return
    given = (stated(names[0], whole, unit="sequences"), stated(names[1], part, unit="sequences"))
    what = "one group" if trainer == "trl" else "one mini-batch"
    if whole < part:
        yield Hit(
            f"A generation batch of {whole:.0f} is smaller than {what} of {part:.0f}", "warning", given,
            suspect="batch-smaller-than-its-part",
        )  # fmt: skip
    elif whole % part:
        yield Hit(
            f"A generation batch of {whole:.0f} is {whole // part:.0f} times {what} of {part:.0f}, and {whole % part:.0f} are "
            "left over",
            "info", given, suspect="batch-with-remainder",
        )  # fmt: skip


@rule(
    "RLD709", "entropy-penalised",
    severity="warning", since="0.2.0",
    optional=("policy.entropy",),
    limits={"fall": 0.5, "steps": 4},
    cause="The entropy coefficient is negative: entropy is penalised, where a bonus was probably meant.",
    advice=("Turn the sign: the loss is policy loss - entropy_coef * entropy, with entropy_coef of 0 or above.",),
    avoids=("Entropy minimisation on purpose, while the entropy holds: worth knowing only.",),
    source="PPO, arXiv:1707.06347, equation 9, where the bonus is added to what is maximised",
)  # fmt: skip
def entropy_penalised(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The configured entropy bonus has the wrong sign.

    The policy is pushed towards certainty beside whatever the reward asks for; groups of equal answers, and no signal, follow.

    It is info for a coefficient below 0, and a warning if the entropy is below `fall` of its start over `steps` steps or more.
    """
    coef = view.config.entropy_coef
    if coef is None:
        yield unknown(view, "entropy_coef") or silent("the entropy coefficient")
        return
    if coef >= 0.0:
        return
    series = view.get("policy.entropy")
    fallen = series is not None and len(series) >= limits["steps"] and series.values[-1] < limits["fall"] * series.values[0]
    words = "" if series is None else f", and the entropy went from {series.values[0]:.3g} to {series.values[-1]:.3g} nat"
    measured = () if series is None else (evidence(series, value=float(series.values[-1]), baseline=float(series.values[0])),)
    yield Hit(
        f"entropy_coef is {coef:g}{words}", "warning" if fallen else "info", (stated("entropy_coef", coef, 0.0), *measured),
        unchecked=() if series is not None else ("whether the entropy falls: entropy",), suspect="entropy-bonus-reversed",
    )  # fmt: skip


@rule(
    "RLD712", "clip-range-for-other-ratio",
    severity="warning", since="0.2.0",
    optional=("policy.clip_frac", "policy.outside_frac", *KL_OLD),
    limits={"sequence": 0.05, "token": 2e-3, "steps": 8, "often": 0.3},
    cause="The clip range is that of the other kind of ratio: about 3e-4 for one ratio per sequence, about .2 for one per token.",
    advice=("Start at 3e-4 and 4e-4 with one ratio per sequence (gspo), at .2 with one per token.",),
    avoids=("A wide range that still clips, or cannot since nothing moves within a batch: worth knowing only.",),
    source="GSPO, arXiv:2507.18071, section 5.1; public issue threads on GSPO that never clips",
)  # fmt: skip
def clip_range_for_other_ratio(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The clip range does not fit the kind of ratio that the algorithm clips.

    The ratio of a sequence is a geometric mean over its tokens and stays a hundred times closer to 1 than that of a token. A
    range of .2 never clips it, so that nothing bounds the update; a range of 3e-4 clips almost every token.

    With gspo a range of `sequence` or more is info, and a warning if the share of clipped, recorded or logged, is exactly 0 at
    `steps` steps or more though the policy moves within a batch. With any other algorithm a range below `token` is info, and a
    warning if the median of that share, or of the share outside the range, is above `often` over `steps` steps or more.
    """
    low, high = view.config.clip_low, view.config.clip_high
    algorithm = (view.info.algorithm or "").lower()
    if low is None or high is None or not algorithm:
        yield unknown(view, "clip_low", "clip_high") or Skip("config", "the algorithm is not known", ("info.algorithm",))
        return
    by_sequence = algorithm == "gspo" or setting(view, "importance_sampling_level") == "sequence"
    wrong = min(low, high) >= limits["sequence"] if by_sequence else 0.0 < max(low, high) < limits["token"]
    if not wrong or algorithm in {"gmpo", "cispo", "sapo"}:
        return
    clipped, moved = view.get("policy.clip_frac"), first_of(view, *KL_OLD)
    if not by_sequence:
        clipped = first_of(view, "policy.outside_frac", "policy.clip_frac")
    sure, words = False, ""
    if clipped is not None and len(clipped) >= limits["steps"]:
        level = float(np.median(clipped.values))
        inert = not clipped.values.any() and moved is not None and bool(moved.values.any())
        sure = inert if by_sequence else level > limits["often"]
        words = f", and {level:.0%} are {'clipped' if by_sequence else 'outside'} (median)"
    kind = "sequence" if by_sequence else "token"
    yield Hit(
        f"The clip range of a {kind}'s ratio is {low:g} to {high:g}{words}",
        "warning" if sure else "info",
        (stated("clip_low", low), stated("clip_high", high), *((evidence(clipped),) if clipped is not None else ())),
        unchecked=() if sure else ("how far the ratios go: logprob and old_logprob",),
        suspect="range-of-tokens-on-sequences" if by_sequence else "range-of-sequences-on-tokens",
    )
