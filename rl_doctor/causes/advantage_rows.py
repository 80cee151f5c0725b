"""Advantages that are right in most rows, in most groups, but for a number, or for other groups than the recorded ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from rl_doctor.causes.advantage import ADVANTAGES_OFF, FOLLOWS, follows_reward, given_by
from rl_doctor.causes.registry import Look, Role, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, measured, over, sign, under

_IN_EQUAL: Final = 0.98
_NEGLIGIBLE: Final = 0.02
_DIVISOR: Final = ("adv.divisor_slope", "adv.divisor_constant", "group.std_mean", "adv.divisor_residual")
_FITS: Final = 1e-3
"""Share of the squares that is left over at a step whose advantages are multiples of the differences in reward."""

for _suspect, _label, _words, _advice, _source, _doc in (
    (
        "advantage-sign-turned-in-some-rows",
        "the advantage of some responses has the opposite sign",
        "the other rows have minus what the formula gives",
        "Look for what these responses have in common (source, rank, length, tool use), and for a sign that depends on it.",
        "reproduced by turning the sign in a tenth of the rows",
        "These responses are trained away from their reward. The rest outweighs them, so that no curve shows it.",
    ),
    (
        "advantage-of-another-in-group",
        "some responses have the advantage of another response of their group",
        "the other rows have what the formula gives another row of their group",
        "Follow the order of the samples of one prompt from the reward to the advantage: sorts, retries and gathers change it.",
        "reproduced by exchanging rows within groups",
        "Groups are right, their statistics too, and the sum over a group; who gets which advantage is not.",
    ),
    (
        "advantage-scaled-in-some-rows",
        "the advantage of some responses is multiplied by a factor",
        "the other rows have a multiple of what the formula gives",
        "Look for a weight by sign, source or length that is applied to the advantage, and whether it is meant.",
        "estimators that weigh failures less, and weights that are applied twice",
        "It may be meant: then the configuration should say so.",
    ),
    (
        "advantage-zeroed-in-some-rows",
        "some responses have an advantage of 0 that their rewards do not give",
        "the other rows have 0 where the formula gives something",
        "Look for a filter (length, staleness, rejection) or a lost row that sets advantages to 0, and whether it is meant.",
        "trainers that drop responses by setting their advantage to 0",
        "Such rows count in the baseline and in the length of the batch, and teach nothing.",
    ),
):
    cause(
        _suspect, _label, explains=("advantage-mismatch",), leads_to=FOLLOWS, alone=True,
        signs=(found("advantage-mismatch", _words, suspect=_suspect),), advice=(_advice,), source=_source, doc=_doc,
    )  # fmt: skip


def _of_equal(role: Role) -> Sign:
    return measured(
        "advantage.rows_off_equal_frac", over(_IN_EQUAL), "advantages are wrong in groups of one reward alone",
        "{}% of the rows that are off are in groups of one reward", role=role, scale=100.0,
    )  # fmt: skip


cause(
    "epsilon-missing",
    "next to nothing is added to the standard deviation, and rounding noise of equal rewards is blown up",
    explains=("advantage-mismatch", "advantage-without-difference"),
    leads_to=FOLLOWS,
    signs=(
        ADVANTAGES_OFF,
        _of_equal("needed"),
        measured(
            "adv.equal_groups_unit_frac", over(0.9), "there they are of the size of what is divided by its own deviation",
            "in {}% of these groups their mean square is that of what is divided by its own deviation",
            role="typical", scale=100.0,
        ),
    ),
    advice=(
        "Add an epsilon to the deviation that is large against the rounding of the rewards, 1e-4 or so.",
        "Set the advantages of a group to 0 where its rewards agree, before anything is divided.",
    ),
    source="reproduced by leaving the epsilon out",
    doc="""Where rewards of a group differ, the formula gives every advantage. Where they are equal, their difference to the mean
    is what rounding leaves, and so is their deviation: the quotient is about 1, and groups that tell nothing push as hard as
    those that do. Rewards that are recorded in fewer digits than they were computed in look the same.""",
)  # fmt: skip


def _divisor(words: str, test: Callable[[float, float, float], bool], role: Role = "needed") -> Sign:
    """A sign about slope and constant of the divisor and the usual deviation of a group."""

    @sign(words, *_DIVISOR, role=role)
    def look(scene: Scene) -> Look:
        slope, constant = scene.series(_DIVISOR[0]), scene.series(_DIVISOR[1])
        usual, left = scene.value(_DIVISOR[2]), scene.series(_DIVISOR[3])
        if left is None or math.isnan(usual):
            return Look(None, words, None, scene.missing(*_DIVISOR))
        fits = float(np.average(left.values <= _FITS, weights=left.counts))
        if slope is None or constant is None or fits < 0.9:
            return Look(there=False, text=f"advantages are multiples of the differences in reward at {fits:.0%} of the steps")
        by, plus = float(np.median(slope.values)), float(np.median(constant.values))
        size = np.abs(slope.values) * usual + np.abs(constant.values)
        away = np.abs(slope.values - by) * usual + np.abs(constant.values - plus)
        steady = float(np.median(away / size)) <= _NEGLIGIBLE
        told = f"advantages are the difference to the group's mean divided by {by:.4g} times the group's standard deviation"
        if abs(plus) > _NEGLIGIBLE * abs(by) * usual:
            told += f", plus {plus:.3g}"
        return Look(steady and test(by, plus, usual), told, int(slope.steps[0]))

    return look


def _multiple(role: Role) -> Sign:
    return _divisor(
        "the divisor is a multiple of the deviation, or a constant",
        lambda by, plus, usual: (
            (abs(plus) <= _NEGLIGIBLE * abs(by) * usual and not 0.7 <= by <= 1.0 + _NEGLIGIBLE)
            or (abs(by) * usual <= _NEGLIGIBLE * abs(plus) and abs(plus - 1.0) > _NEGLIGIBLE)
        ),
        role,
    )


cause(
    "epsilon-differs",
    "another epsilon is added to the standard deviation",
    explains=("advantage-mismatch",),
    leads_to=FOLLOWS,
    signs=(
        ADVANTAGES_OFF,
        _divisor(
            "the divisor is the deviation plus a constant",
            lambda by, plus, usual: 0.7 <= by <= 1.02 and plus > _NEGLIGIBLE * usual,
        ),
        _of_equal("against"),
    ),
    advice=("Compare the epsilon in the code with the one that is configured; rewards of a small scale feel it most.",),
    source="least squares over the groups; conventions differ between trainers",
    doc="""Groups whose rewards nearly agree then weigh less than others: an epsilon of the size of the deviation is half way to
    Dr. GRPO.""",
)  # fmt: skip
cause(
    "advantage-scaled",
    "all advantages are those of a known formula, multiplied by a constant",
    explains=("advantage-mismatch",),
    leads_to=FOLLOWS,
    signs=(
        ADVANTAGES_OFF,
        _multiple("needed"),
        _of_equal("against"),
    ),
    advice=("Look for a coefficient or a divisor on the advantage: a learning rate absorbs it, a KL or entropy term does not.",),
    source="least squares over the groups",
    doc="""A constant factor changes what the advantage weighs against the other terms of the loss, and the gradient's norm.""",
)  # fmt: skip
cause(
    "compared-within-other-groups",
    "advantages compare responses within other groups than the recorded ones",
    explains=("advantage-mismatch", "advantage-without-difference"),
    leads_to=FOLLOWS,
    signs=(
        ADVANTAGES_OFF,
        measured(
            "adv.compared_frac", over(0.75), "rewards and advantages are those of whole groups, of other rows",
            "{}% of the rows that are off lie on a line with others as those of a group do", scale=100.0,
        ),
        _of_equal("against"),
        follows_reward("against"),
        given_by("raw", "the reward itself", role="against"),
        given_by("group_in_rank", "GRPO over each rank's part of a group", role="against"),
        given_by("neighbours", "GRPO over blocks of neighbouring rows", role="against"),
        given_by("trained_only", "GRPO over the responses that are trained on", role="against"),
        given_by("finished_only", "GRPO over the responses that end by themselves", role="against"),
        found("mixed-groups", "rows of one group answer different prompts", role="against"),
    ),
    advice=(
        "Print group, prompt, reward and advantage of the first rows of a batch where advantages are computed, and as recorded.",
        "Look for a batch that is sorted, filtered or padded between the group ids and the reshape to (groups, samples).",
    ),
    source="reproduced by moving the groups by three rows",
    doc="""Every advantage is right for some group, and not for the recorded one: the rows of a group were taken from several
    prompts, or the group ids were moved afterwards. Which rows were compared follows from the numbers alone: those of a group
    lie on one line, whose sums are those of a group. Advantages that only stand in other rows lie on no such line.""",
)  # fmt: skip


_BY_ITS_MEAN: Final = measured(
    "adv.mean_line_left", under(_FITS), "within each group advantages are multiples of the difference to its mean",
    "multiples of the difference to the group's mean leave {}% of the square of the advantage", scale=100.0,
)  # fmt: skip


@sign("an advantage beyond what a group allows", "adv.max", "adv.min", role="needed")
def _beyond(scene: Scene) -> Look:
    """Whether an advantage is twice sqrt(G - 1), the most that GRPO can give in a group of G with either ddof."""
    words, size = "an advantage beyond what a group allows", scene.view.config.group_size
    high, low = scene.series("adv.max"), scene.series("adv.min")
    if size is None or size < 2 or high is None or low is None:
        return Look(None, words, None, ("config.group_size",) if size is None else scene.missing("adv.max"))
    largest, bound = max(float(high.values.max()), -float(low.values.min())), math.sqrt(size - 1)
    return Look(largest > 2.0 * bound, f"the largest advantage is {largest:.3g}, where {size} samples allow {bound:.3g}")


cause(
    "deviation-cancels",
    "the standard deviation is lost in rounding, and what is divided by it explodes",
    explains=("advantage-mismatch", "impossible-values"),
    leads_to=(*FOLLOWS, "grad-norm-spike"),
    signs=(
        ADVANTAGES_OFF,
        _beyond,
        _BY_ITS_MEAN,
        follows_reward("against"),
        given_by("leave_one_out", "the deviation of the others", role="against"),
        _multiple("against"),
    ),
    advice=(
        "Compute the deviation from differences to the mean, in float32 or better, never as mean of squares less squared mean.",
        "Raise the epsilon beside it, or drop groups whose rewards nearly agree.",
    ),
    source="public issue threads: a leave-one-out deviation in float32 gives advantages of -2075",
    doc="""In a group of G no advantage exceeds sqrt(G - 1). What does was divided by a deviation that is not the group's.""",
)
cause(
    "divided-by-another-number",
    "the advantages of each group are divided by something else than its standard deviation",
    explains=("advantage-mismatch",),
    leads_to=FOLLOWS,
    signs=(
        ADVANTAGES_OFF,
        _BY_ITS_MEAN,
        _multiple("against"),
        _of_equal("against"),
        given_by("leave_one_out", "the deviation of the others", role="against"),
    ),
    advice=("Divide the difference to the group's mean by the advantage, group by group: what comes out is the divisor.",),
    source="reproduced with the mean absolute deviation",
    doc="""The baseline is right, the scale differs from group to group, and not as the standard deviation does.""",
)
cause(
    "another-baseline",
    "the baseline of a group is another number than its mean",
    explains=("advantage-mismatch",),
    leads_to=FOLLOWS,
    signs=(
        ADVANTAGES_OFF,
        measured(
            "adv.line_left", under(_FITS), "within each group advantages are a line in the reward",
            "straight lines in the reward, one for each group, leave {}% of the advantages' squares unexplained", scale=100.0,
        ),
        measured(
            "adv.mean_line_left", over(0.02), "these lines do not go through the mean of the group",
            "such lines through the group's mean leave {}% unexplained", scale=100.0,
        ),
        measured(
            "advantage.rows_off_frac", over(0.5), "most rows have another advantage than the formula gives",
            "{}% of the rows have another advantage than the nearest formula gives", scale=100.0,
        ),
        follows_reward("against"),
        given_by("raw", "the reward itself", role="against"),
        given_by("twice", "GRPO's advantage whitened over the batch", role="against"),
        given_by("trained_only", "GRPO over the responses that are trained on", role="against"),
        given_by("finished_only", "GRPO over the responses that end by themselves", role="against"),
        given_by("group_in_rank", "GRPO over each rank's part of a group", role="against"),
        measured(
            "adv.compared_frac", over(0.75), "rewards and advantages are those of whole groups, of other rows",
            "{}% of the rows that are off lie on a line with others as those of a group do", role="against", scale=100.0,
        ),
        found("broken-groups", "groups are of different sizes", suspect="samples-lost", role="against"),
    ),
    advice=("Take the reward at which the advantage of a group is 0: that is its baseline. Look for what gives it.",),
    source="reproduced with the median and the best of a group",
    doc="""Advantages of a group no longer add up to 0, so that whole prompts are pushed up or down.""",
)  # fmt: skip
