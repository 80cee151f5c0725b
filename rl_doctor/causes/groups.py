"""Groups that tell nothing: too hard, too easy, copies of each other, or not the samples of one prompt."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.causes.registry import Look, Role, Sign, cause
from rl_doctor.causes.reward import end_by_themselves
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, measured, over, sign

_FOLLOWS: Final = ("grad-zero", "grad-vanished", "kl-flatline", "reward-flatline", "inert-ratio", "source-without-signal")
_DEAD: Final = found("zero-variance-groups", "all samples of a group have one reward, in most groups")
_FIRST_ONLY: Final = found("only-first-prompt-rewarded", "only the first group of every rank ever earns a reward", role="against")
_BASELINE: Final = (
    "no-baseline",
    "advantage-mismatch",
    "zero-variance-groups",
    "advantage-without-difference",
    "reward-drift",
    "sudden-collapse",
)


def _copies(role: Role) -> Sign:
    return measured(
        "data.duplicate_frac",
        over(0.5),
        "the samples of a prompt are the same text",
        "{}% of the responses repeat another of their group",
        role=role,
        scale=100.0,
    )


def _by_prompt(role: Role) -> Sign:
    return measured(
        "reward.between_frac",
        over(0.98),
        "rewards differ between prompts, and not within",
        "{}% of the reward's variance lies between groups",
        role=role,
        scale=100.0,
    )


@sign("the samples of a group have different texts", "data.duplicate_frac", role="typical")
def _different(scene: Scene) -> Look:
    share = scene.value("data.duplicate_frac")
    if math.isnan(share):
        return Look(None, "the samples of a group have different texts", None, scene.missing("data.duplicate_frac"))
    return Look(share < 0.2, f"{share:.0%} of the responses repeat another of their group")


def _side(suspect: str, words: str) -> Sign:
    return found("zero-variance-groups", words, suspect=suspect)


cause(
    "sampling-deterministic",
    "the samples of a prompt are copies: sampling is greedy, or engines share a seed",
    explains=("zero-variance-groups",),
    leads_to=_FOLLOWS,
    signs=(_DEAD, _copies("needed"), found("duplicate-samples", "copies are too improbable to be chance", role="typical")),
    advice=(
        "Check temperature and top_k of the engine, and that every sample and rank has a seed of its own.",
        "Filtering prompts does not help: no prompt can have variance.",
    ),
    source="public issue threads on engines and ranks that share a seed",
    doc="""Copies earn the same, whatever the prompt. Prompts that are too hard or too easy have different texts.""",
)
cause(
    "prompts-too-hard",
    "the prompts are too hard: whole groups fail",
    explains=("zero-variance-groups",),
    leads_to=_FOLLOWS,
    signs=(
        _side("prompts-too-hard", "most of these groups earn the least"),
        end_by_themselves(),
        _copies("against"),
        _different,
        _FIRST_ONLY,
    ),
    advice=(
        "Filter prompts by success rate (dynamic sampling), or take easier ones first.",
        "Raise group_size, or give partial credit, so that rare successes are seen.",
        "Score a few failures by hand first: a scorer that misses right answers looks the same.",
    ),
    source="arXiv:2503.14476, section 3.2",
    doc="""Groups of different texts that all fail, and that end by themselves.""",
)
cause(
    "prompts-too-easy",
    "the prompts are too easy: whole groups succeed",
    explains=("zero-variance-groups",),
    leads_to=_FOLLOWS,
    signs=(_side("prompts-too-easy", "most of these groups earn the most"), _copies("against"), _different),
    advice=("Filter prompts by success rate (dynamic sampling), or take harder ones.", "Stop if held-out scores stand still."),
    source="arXiv:2503.14476, section 3.2",
    doc="""The mean reward is high and the gradient small: most of the compute goes to what is known already.""",
)
cause(
    "reward-depends-on-prompt-only",
    "the reward depends on the prompt and not on the response",
    explains=("zero-variance-groups",),
    leads_to=_FOLLOWS,
    signs=(
        _DEAD,
        _by_prompt("needed"),
        measured(
            "group.zero_std_frac", over(0.95), "next to no group has variance", "{}% of the groups have no variance", scale=100.0
        ),
        _different,
        _copies("against"),
        found("zero-variance-groups", "most of these groups earn the least", suspect="prompts-too-hard", role="against"),
        found("zero-variance-groups", "most of these groups earn the most", suspect="prompts-too-easy", role="against"),
    ),
    advice=(
        "Check what the scorer gets: the prompt or the solution in place of the response, or one response for the whole group.",
    ),
    source="a public issue thread: a component with a spread of 5 over the batch and none within groups",
    doc="""The spread over the batch looks healthy; within groups there is none, and that is what is learned from. Prompts of very
    different difficulty come near it, but now and then one of their groups holds both outcomes.""",
)
cause(
    "noise-amplified",
    "rewards that differ by next to nothing are blown up to full advantages",
    explains=("near-zero-variance-groups",),
    leads_to=("grad-norm-spike", "entropy-explosion", "reward-hacking-suspected"),
    signs=(
        found("near-zero-variance-groups", "rewards differ within groups by less than a thousandth of their range"),
        measured(
            "adv.abs_mean",
            over(0.5),
            "advantages are of full size all the same",
            "the mean absolute advantage is {}",
            role="typical",
        ),
    ),
    advice=(
        "Round the reward, or drop groups whose deviation is below the noise of the reward.",
        "Do not divide by the deviation (Dr. GRPO), or raise the epsilon beside it.",
    ),
    source="arXiv:2503.20783, section 3.1",
    doc="""Rewards of .61, .60, .62 and .61 give advantages of about 1 in size, not of about 0: they are divided by their own
    deviation. Only rewards that are equal to the bit give 0.""",
)
cause(
    "group-id-per-response",
    "every response has a group id of its own",
    explains=("broken-groups", "no-baseline", "advantage-mismatch"),
    leads_to=_BASELINE,
    signs=(
        found("broken-groups", "groups have one response", suspect="group-id-per-response"),
        found("no-baseline", "advantages are the rewards themselves", role="typical"),
    ),
    advice=(
        "Give every sample of a prompt the same group id, before rewards are compared.",
        "Expect other curves afterwards: a baseline makes some late collapses easier to see.",
    ),
    source="public issue threads: a unique id per trajectory makes every group a group of one",
    doc="""With nothing to compare, trainers take 0 for the mean and 1 for the deviation: the advantage is the reward, or 0.""",
)
cause(
    "one-sample-per-prompt",
    "one response is sampled per prompt, and the estimator compares responses to one prompt",
    explains=("broken-groups",),
    leads_to=("grad-zero", "grad-vanished", "kl-flatline", *_BASELINE),
    signs=(found("broken-groups", "group_size is 1", suspect="one-sample-per-prompt"),),
    advice=("Sample several responses per prompt, or use an estimator with a baseline of its own (a critic, REINFORCE++).",),
    source="a public issue thread: Dr. GRPO with one sample has advantages of 0",
    doc="""The mean of one reward is that reward: the advantage is 0 for every response.""",
)
cause(
    "groups-merged",
    "several prompts, or several draws of one, share a group id",
    explains=("broken-groups",),
    leads_to=("mixed-groups", "advantage-mismatch", "zero-variance-groups"),
    signs=(
        found("broken-groups", "groups are a multiple of group_size", suspect="groups-merged"),
        measured(
            "group.mixed_frac",
            over(0.05),
            "their prompts differ",
            "{}% of the groups hold several prompts",
            role="typical",
            scale=100.0,
        ),
    ),
    advice=("Add the draw to the identity of the group; check for ids that repeat between ranks.",),
    source="public issue threads on ids that repeat",
    doc="""Two draws of one prompt compared together do little harm; two prompts do.""",
)
cause(
    "samples-lost",
    "samples are lost between sampling and training",
    explains=("broken-groups",),
    signs=(found("broken-groups", "groups lack samples", suspect="samples-lost"),),
    advice=("Look for filters and failed requests between sampling and training; drop or refill whole groups.",),
    source="public issue threads on uneven groups",
    doc="""What is lost is seldom lost at random: long responses first.""",
)
cause(
    "groups-of-several-prompts",
    "groups are blocks of rows, and prompts stand in another order",
    explains=("mixed-groups", "broken-groups", "advantage-mismatch"),
    leads_to=("zero-variance-groups", "advantage-mismatch", "advantage-without-difference"),
    signs=(found("mixed-groups", "rows of one group answer different prompts"),),
    advice=(
        "Repeat prompts as p1 p1 p2 p2, or group by the prompt's identity.",
        "Recompute advantages by prompt: how much they differ is the harm.",
    ),
    source="public issue threads: tiled prompts taken in contiguous blocks",
    doc="""Such runs still improve, since a baseline of other prompts is a baseline; it is only a worse one.""",
)
