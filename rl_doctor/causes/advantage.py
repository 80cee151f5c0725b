"""Advantages that are not what rewards and groups give: told apart by what does give them."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.causes.registry import Look, Role, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, measured, over, sign, under

FOLLOWS: Final = (
    "reward-drift",
    "sudden-collapse",
    "impossible-values",
    "advantage-without-difference",
    "no-baseline",
    "logged-metric-mismatch",
    "entropy-collapse",
    "grad-norm-spike",
    "value-not-learning",
    "advantage-reversed",
)
ADVANTAGES_OFF: Final = found("advantage-mismatch", "advantages are not those that rewards and groups give")
_MATCH: Final = 0.02


def given_by(name: str, words: str, *, role: Role = "needed") -> Sign:
    """A sign that is there where a mistaken formula gives the recorded advantages."""
    return measured(
        f"advantage.other_{name}", under(_MATCH), f"{words} gives them", f"{words} is {{}}% off", role=role, scale=100.0
    )


@sign("several ranks took part", "data.rows_of_rank.")
def _several_ranks(scene: Scene) -> Look:
    """That there is another rank: over one alone, the rank's statistics are the batch's."""
    found_ranks = scene.view.named("data.rows_of_rank.")
    if not found_ranks:
        return Look(None, "several ranks took part", None, scene.missing("data.rows_of_rank.") or ("rank",))
    return Look(len(found_ranks) > 1, f"the number of ranks with rows is {len(found_ranks)}")


def follows_reward(role: Role) -> Sign:
    """A sign that is there where the advantage is a line in the reward over the whole batch."""
    return measured(
        "advantage.batch_corr", over(0.999), "the advantage follows from the reward alone",
        "reward and advantage correlate by {} over the batch", role=role,
    )  # fmt: skip


def _suspected(rule: str, words: str, suspect: str) -> Sign:
    return found(rule, words, suspect=suspect)


@sign("better responses or tokens have smaller advantages", "advantage.reward_corr", "advantage.return_corr")
def _opposite(scene: Scene) -> Look:
    """Against the return less the value where there is a critic, whose advantages hardly follow the reward of one response."""
    for name, words in (
        ("advantage.return_corr", "advantage and return - old_value correlate by {:.3g}"),
        ("advantage.reward_corr", "advantage and reward correlate by {:.3g} within groups"),
    ):
        if (series := scene.series(name)) is not None and math.isfinite(value := scene.value(name)):
            return Look(value < -0.5, words.format(value), int(series.steps[0]))
    return Look(None, "better responses or tokens have smaller advantages", None, scene.missing("advantage.reward_corr"))


cause(
    "advantage-sign-turned",
    "the advantage has the opposite sign",
    explains=("advantage-reversed", "advantage-mismatch", "gae-mismatch"),
    alone=True,
    leads_to=(*FOLLOWS, "zero-variance-groups", "length-explosion"),
    signs=(
        _opposite,
        found("advantage-mismatch", "minus the known formula gives them", suspect="advantage-sign-turned", role="typical"),
        found("gae-mismatch", "minus GAE gives them", suspect="advantage-sign-turned", role="typical"),
    ),
    advice=("Look for a loss that is negated twice, or a reward of which less is better.",),
    source="reproduced by turning the sign",
    doc="""Training works against its reward at full strength. Advantages of other rows are no worse than noise.""",
)
cause(
    "advantages-of-other-rows",
    "the advantages stand in other rows than their rewards",
    explains=("advantage-mismatch", "advantage-without-difference"),
    leads_to=FOLLOWS,
    signs=(
        _suspected("advantage-mismatch", "the right advantages occur, in other rows", "advantages-of-other-rows"),
        found("advantage-without-difference", "groups with one reward have advantages", role="typical"),
    ),
    advice=("Find the step that orders rows between reward and advantage, and move all columns in it.",),
    source="public issue threads: rewards keep the old order after dynamic batching shuffles the rows",
    doc="""Every statistic of the advantages is right; only the join is not.""",
)
cause(
    "standard-deviation-swapped",
    "advantages are divided by the other standard deviation: the batch's for the group's, or vice versa",
    explains=("advantage-mismatch",),
    alone=True,
    leads_to=FOLLOWS,
    signs=(_suspected("advantage-mismatch", "the other deviation gives them", "standard-deviation-swapped"),),
    advice=("Compare the option with the code: which of the two names divides by what.",),
    source="a public fix of two options that were swapped",
    doc="""With the batch's deviation hard and easy prompts weigh less than even ones; with the group's they weigh alike.""",
)
cause(
    "advantage-of-another-estimator",
    "another estimator is at work than the configuration names",
    explains=("advantage-mismatch",),
    alone=True,
    leads_to=FOLLOWS,
    signs=(_suspected("advantage-mismatch", "another known formula gives them", "advantage-of-another-estimator"),),
    advice=("Look for an option that did not reach the place where advantages are computed.",),
    source="public issue threads on options that are not forwarded",
    doc="""The formula is a right one, and not the one that is configured.""",
)
cause(
    "advantage-convention-differs",
    "ddof or epsilon is another than configured",
    explains=("advantage-mismatch",),
    signs=(_suspected("advantage-mismatch", "the same formula with another ddof gives them", "advantage-convention-differs"),),
    advice=("Correct the configuration that is recorded; the factor is absorbed by the learning rate.",),
    source="conventions differ between trainers",
    doc="""A constant factor of sqrt(G / (G - 1)): half-right groups of 8 have advantages of .94 or of 1.""",
)
for _name, _cause, _label, _words, _advice, _source, _doc in (
    (
        "finished_only",
        "unfinished-left-out-of-baseline",
        "responses that were cut or aborted are left out of the baseline of their group",
        "GRPO over the responses that end by themselves",
        "Decide whether a response that is cut counts as a failure of its group; most trainers let it count.",
        "trainers that disagree on it",
        "What is left is compared among itself: better than its group by less, and where failures are cut ones not at all.",
    ),
    (
        "raw",
        "reward-taken-for-advantage",
        "the reward itself is taken for the advantage",
        "the reward itself",
        "Subtract the group's mean; check that groups have more than one sample.",
        "public issue threads on groups of one",
        "Nothing is compared with anything.",
    ),
    (
        "twice",
        "advantage-normalised-twice",
        "advantages are normalised twice, by group and over the batch",
        "GRPO's advantage whitened over the batch",
        "Switch one of the two normalisations off.",
        "trainers that offer both",
        "The batch's deviation scales every step by how many of its groups are dead.",
    ),
    (
        "leave_one_out",
        "deviation-of-the-others",
        "each response is divided by the deviation of the others alone",
        "the formula with the deviation of the others",
        "Use the group's deviation, or bound the result.",
        "NeMo-RL's estimator with normalised rewards",
        "There is no bound: one outlier among equal rewards has an advantage of any size.",
    ),
    (
        "group_in_rank",
        "groups-split-over-ranks",
        "baselines are computed over the part of a group that one rank has",
        "GRPO over each rank's part of a group",
        "Gather the rewards of a group before they are compared.",
        "groups that are spread over ranks",
        "Baselines of two or three samples are noise.",
    ),
    (
        "neighbours",
        "groups-by-position",
        "advantages are computed over blocks of neighbouring rows, not over groups",
        "GRPO over blocks of neighbouring rows",
        "Repeat prompts as p1 p1 p2 p2, or compare by id.",
        "public issue threads: tiled prompts taken in contiguous blocks",
        "Such runs still improve: a baseline of other prompts is a baseline, only a worse one.",
    ),
    (
        "rank_whitened",
        "rewards-whitened-by-rank",
        "rewards are whitened over one rank, and groups ignored",
        "the reward whitened over its rank",
        "Reduce statistics over all ranks, and compare within groups.",
        "public fixes of statistics over a part of the ranks",
        "What is good depends on what else the rank has.",
    ),
):
    cause(
        _cause,
        _label,
        explains=("advantage-mismatch", "advantage-without-difference", "no-baseline"),
        leads_to=FOLLOWS,
        signs=(ADVANTAGES_OFF, given_by(_name, _words), *((_several_ranks,) if "rank" in _name else ())),
        advice=(_advice,),
        source=_source,
        doc=_doc,
    )


@sign("some responses are trained on in no token", "length.untrained_mean", role="typical")
def _left_out(scene: Scene) -> Look:
    series = scene.series("length.untrained_mean")
    if series is None:
        return Look(None, "some responses are trained on in no token", None, scene.missing("length.untrained_mean"))
    return Look(there=True, text=f"{int(series.counts.sum())} responses are trained on in no token", step=int(series.steps[0]))


cause(
    "rejected-rows-left-out-of-baseline",
    "responses that are masked out are left out of the baseline of their group",
    explains=("advantage-mismatch", "advantage-without-difference"),
    leads_to=FOLLOWS,
    signs=(ADVANTAGES_OFF, given_by("trained_only", "GRPO over the responses that are trained on"), _left_out),
    advice=("Decide whether a rejected response counts as a failure of its group; most trainers let it count.",),
    source="public issue threads that disagree on it",
    doc="""Not a mistake as such: with the rejected left out, a group is compared among what was kept.""",
)
cause(
    "no-baseline-subtracted",
    "nothing is subtracted from the reward",
    explains=("no-baseline", "advantage-mismatch"),
    leads_to=FOLLOWS,
    signs=(
        found("no-baseline", "largest and smallest advantage are those of the reward"),
        found("broken-groups", "groups have one response", suspect="group-id-per-response", role="against"),
    ),
    advice=("Subtract the group's mean, a moving average or a value; if none is meant, record adv_estimator = reinforce.",),
    source="REINFORCE without baseline: arithmetic",
    doc="""With rewards of 0 and 1 nothing is ever discouraged.""",
)
cause(
    "advantage-spread-along-wrong-axis",
    "advantages are spread along the wrong axis: they depend on the position, not on the row",
    explains=("advantage-varies-in-response", "advantage-mismatch", "advantage-without-difference"),
    leads_to=(*FOLLOWS, "advantage-mismatch"),
    signs=(
        found("advantage-varies-in-response", "advantages differ within responses"),
        measured(
            "adv.place_frac",
            over(0.8),
            "the position tells the advantage",
            "{}% of the variance of the advantage lies between positions",
            scale=100.0,
        ),
    ),
    advice=("Spread with an explicit axis: advantage[:, None]. Test with a batch that is not square.",),
    source="public issue threads: a masked normalisation broadcasts over the wrong axis",
    doc="""It goes unnoticed where the batch is as high as it is wide.""",
)
cause(
    "advantage-per-token",
    "something per token is added to, or multiplied into, an advantage per response",
    explains=("advantage-varies-in-response", "advantage-without-difference"),
    leads_to=(*FOLLOWS, "advantage-mismatch"),
    signs=(
        found("advantage-varies-in-response", "advantages differ within responses"),
        measured(
            "adv.place_frac",
            over(0.8),
            "the position tells the advantage",
            "{}% of the variance of the advantage lies between positions",
            role="against",
            scale=100.0,
        ),
    ),
    advice=(
        "Look for a KL per token, an entropy bonus or importance weights in the advantage; name the estimator if they are meant.",
    ),
    source="estimators with rewards per token",
    doc="""It may be meant. Then the configuration should say so.""",
)
cause(
    "statistics-of-one-rank",
    "advantages are whitened with the statistics of one rank",
    explains=("advantage-whitened-by-rank",),
    alone=True,
    signs=(found("advantage-whitened-by-rank", "every rank has mean 0 and deviation 1 for itself"),),
    advice=("Reduce sums and counts over all ranks before they become a mean and a deviation.",),
    source="a public fix: statistics over a context-parallel group only",
    doc="""Whitened together, ranks differ by the luck of their prompts.""",
)
_UNEVEN: Final = found("broken-groups", "groups are of different sizes", suspect="samples-lost")
cause(
    "groups-ignored",
    "groups are ignored: one baseline serves the whole batch",
    explains=("advantage-mismatch", "advantage-without-difference"),
    leads_to=FOLLOWS,
    signs=(ADVANTAGES_OFF, follows_reward("needed"), given_by("raw", "the reward itself", role="against")),
    advice=("Look for a fallback where groups have no id, and for an estimator without groups.",),
    source="public issue threads: groups that fall back to one global group",
    doc="""Easy prompts are reinforced and hard ones discouraged, whatever the response says.""",
)
cause(
    "groups-fall-back-to-batch",
    "groups of uneven size fall back to one group of all",
    explains=("advantage-without-difference", "advantage-mismatch", "broken-groups"),
    leads_to=(*FOLLOWS, "broken-groups"),
    signs=(ADVANTAGES_OFF, follows_reward("needed"), _UNEVEN),
    advice=("Compare within groups of any size; reshape only where sizes are known to be equal.",),
    source="public issue threads: sizes 4, 3 and 4 are compared as 11",
    doc="""Code that reshapes to (groups, samples) has to do something where that fails.""",
)
cause(
    "samples-lost-after-advantages",
    "samples were lost after advantages had been computed with them",
    explains=("advantage-without-difference", "advantage-mismatch"),
    leads_to=(*FOLLOWS, "broken-groups"),
    signs=(ADVANTAGES_OFF, _UNEVEN, follows_reward("against")),
    advice=(
        "Look for filters and failures between the advantages and the update; drop or refill whole groups.",
        "If rows are missing in the recording alone, record all of them: the training is then as it should be.",
    ),
    source="arithmetic: the advantages of a group add up to 0 only while it is complete",
    doc="""The advantages are right for groups that are not all there: each stays within what a full group allows.""",
)
cause(
    "advantage-formula-unknown",
    "the advantages come from a formula that is not known, or from other groups or rows",
    explains=("advantage-mismatch", "advantage-without-difference"),
    leads_to=FOLLOWS,
    signs=(ADVANTAGES_OFF,),
    advice=("Recompute the advantages of one batch by group id from the recorded rewards and compare row by row.",),
    source="what is left where every known formula is ruled out",
    doc="""Right formulas with all conventions, and the usual mistakes, have been tried.""",
)
