"""Responses that are cut, that grow and that shrink: told by what cut ones earn, how they end, and what grows with what."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.causes.registry import Look, Role, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, found_any, measured, over, sign, under
from rl_doctor.rules.reading import TRUNCATION
from rl_doctor.rules.spans import pooled

_EARNED: Final = ("reward.truncated_mean", "length.limit_reward_mean")
_NOTHING_EARNED: Final = (
    "reward-flatline", "zero-variance-groups", "near-zero-variance-groups", "grad-zero", "grad-vanished", "reward-component-idle",
    "reward-at-bound", "kl-flatline", "inert-ratio", "reward-drift", "reward-component-imbalance", "value-not-learning",
    "sudden-collapse", "aborted-responses", "reward-variance-shift", "length-explosion",
)  # fmt: skip
"""What follows where responses are cut before they can earn anything."""
_LONG: Final = 100
_CUT: Final = found("length-truncation", "many responses are cut at the length limit")


def _share_cut(scene: Scene) -> tuple[float, int | None]:
    series = next((one for name in TRUNCATION if (one := scene.series(name)) is not None), None)
    return (math.nan, None) if series is None else (pooled(series), int(series.steps[0]))


@sign("most responses are cut at the length limit", *TRUNCATION)
def _most_cut(scene: Scene) -> Look:
    share, step = _share_cut(scene)
    if math.isnan(share):
        return Look(None, "most responses are cut at the length limit", None, ("finish_reason", "config.max_response_length"))
    return Look(share >= 0.45, f"{share:.0%} of the responses of all these steps are cut", step)


def _earning(role: Role) -> Sign:
    @sign("cut responses earn nothing", *_EARNED, *TRUNCATION, "reward.min", "reward.max", role=role)
    def look(scene: Scene) -> Look:
        low, high = scene.series("reward.min"), scene.series("reward.max")
        if low is None or high is None:
            return Look(None, "cut responses earn nothing", None, ("reward",))
        floor, top = float(low.values.min()), float(high.values.max())
        step = int(low.steps[0])
        if floor == top:
            share, _ = _share_cut(scene)
            nothing = not math.isnan(share) and share >= 0.8
            return Look(nothing or None, f"every response earns {floor:.3g}, and {share:.0%} are cut", step, ("finish_reason",))
        earned = next((value for name in _EARNED if not math.isnan(value := scene.value(name))), math.nan)
        if math.isnan(earned):
            return Look(None, "cut responses earn nothing", None, ("finish_reason",))
        place = (earned - floor) / (top - floor)
        return Look(place <= 0.1, f"cut responses earn {earned:.3g}, where rewards go from {floor:.3g} to {top:.3g}", step)

    return look


def _loops(role: Role) -> Sign:
    return measured(
        "repeat.loop_frac", over(0.3), "responses end in a loop of a few tokens", "{}% of the long responses end in a loop",
        role=role, scale=100.0,
    )  # fmt: skip


def _goes_on(role: Role) -> Sign:
    return measured(
        "ending.inside_frac", over(0.3), "responses go on after an end token", "{}% of the rows hold an end token inside",
        role=role, scale=100.0,
    )  # fmt: skip


def _end_untrained(role: Role) -> Sign:
    return measured(
        "mask.eos_missed_frac", over(0.5), "the end token is left out of the loss",
        "{}% of the rows that end by an end token leave it out of the loss", role=role, scale=100.0,
    )  # fmt: skip


def _digits(value: float) -> str:
    """Format of a number of tokens: short lengths with decimals, which their growth is told by."""
    return ".0f" if value >= _LONG else ".3g"


@sign("responses grew towards the limit", "length.mean")
def _grew(scene: Scene) -> Look:
    series = scene.view.get("length.mean")
    if series is None or len(series) < 8:
        return Look(None, "responses grew towards the limit", None, ("response_length",))
    part = max(len(series) // 5, 2)
    first, last = float(series.values[:part].mean()), float(series.values[-part:].mean())
    told = f"mean length goes from {first:{_digits(first)}} to {last:{_digits(last)}} tokens"
    return Look(last >= 1.25 * first, told, int(series.steps[0]))


cause(
    "length-limit-too-short", "max_response_length is too short for most of what the policy writes",
    explains=("length-truncation",), leads_to=_NOTHING_EARNED,
    signs=(_CUT, _most_cut, _earning("needed"), _loops("against"), _goes_on("against"), _end_untrained("against")),
    advice=(
        "Raise max_response_length until fewer than a tenth of the responses are cut, before the reward is touched.",
        "If the limit has to stay, ask for shorter answers, or mask cut responses out of the loss.",
    ),
    source="public runs with a limit of 256 tokens: every response cut, reward, loss and gradient 0",
    doc="""A response that is cut has no answer yet, earns nothing, and so do all others of its group: reward, variance and
    gradient are 0, and the reward function looks broken. Responses that loop, or that cannot end, are cut as well; longer
    limits do not help them. How they end tells.""",
)  # fmt: skip
cause(
    "end-token-not-learned", "the end token is left out of the loss, so that the policy never learns to stop",
    explains=("length-truncation", "length-explosion"), leads_to=_NOTHING_EARNED,
    signs=(
        found_any("responses are cut or grow", "length-truncation", "length-explosion"),
        _end_untrained("needed"), _grew,
    ),
    advice=(
        "Set a padding token that is not the end token, or build the mask from lengths and not from token ids.",
        "Check that the last trained token of a finished response is the end token.",
    ),
    source="public fixes of masks where the padding token is the end token",
    doc="""Nothing rewards stopping where the end token has no gradient: length drifts to the limit. Unlike a limit that is too
    short this takes many steps, and finished responses become rare.""",
)  # fmt: skip
cause(
    "engine-ignores-end", "the engine goes on after the end token",
    explains=("length-truncation",), leads_to=_NOTHING_EARNED,
    signs=(_CUT, _goes_on("needed")),
    advice=("Check ignore_eos, the stop tokens and the generation config of the engine against the tokenizer's end tokens.",),
    source="public issue threads on chat models whose end-of-turn token is not the tokenizer's end token",
    doc="""The policy ends its answer, and the engine does not stop: what follows is noise that is trained on and scored.""",
)  # fmt: skip
cause(
    "responses-outgrow-limit", "responses have grown into the length limit",
    explains=("length-truncation",), leads_to=_NOTHING_EARNED,
    signs=(
        _CUT, _grew, _loops("against"), _goes_on("against"),
        found("length-explosion", "responses grow without earning more", role="against"),
    ),
    advice=(
        "Raise max_response_length while growth pays; else add a length penalty, or mask cut responses out of the loss.",
        "Look at length-explosion: whether growth pays tells which of the two.",
    ),
    source="arXiv:2503.14476, section 3.4",
    doc="""The limit was long enough in the beginning. Reasoning that grows until it is cut loses what it gained.""",
)  # fmt: skip
cause(
    "limit-cuts-some", "some of what the policy writes does not fit into max_response_length",
    explains=("length-truncation",), signs=(_CUT, _loops("against"), _goes_on("against")),
    leads_to=("aborted-responses",),
    advice=("Raise max_response_length, or mask cut responses out of the loss (overlong filtering).",),
    source="arXiv:2503.14476, section 3.4",
    doc="""A part is cut, and it is not the reason for all that goes wrong.""",
)  # fmt: skip


_BIAS: Final = found("wrong-answers-grow", "responses that earn less grow, and those that earn more do not", role="against")
_GREW: Final = found("length-explosion", "responses grow to a multiple without earning more")


@sign("longer responses earn more", "length.reward_corr")
def _pays(scene: Scene) -> Look:
    value = scene.value("length.reward_corr")
    if math.isnan(value):
        return Look(None, "longer responses earn more", None, ("reward", "response_length"))
    return Look(value > 0.2, f"length and reward of the responses correlate by {value:.2f}")


_FROM_GROWTH: Final = ("length-truncation", "entropy-explosion", "kl-runaway", "kl-spike", "reward-drift", "aborted-responses",
                       "reward-hacking-suspected", "reward-variance-shift", "reward-component-imbalance",
                       "sudden-collapse")  # fmt: skip
cause(
    "reward-pays-for-length", "longer responses earn more within a batch, whatever they say",
    explains=("length-explosion",), leads_to=_FROM_GROWTH,
    signs=(_GREW, _pays, _end_untrained("against"), _BIAS),
    advice=(
        "Compare the reward of short and long responses of equal quality; look for parts that count sentences or steps.",
        "Add a length penalty, or score only the final answer.",
    ),
    source="arXiv:2310.03716 (length correlations of rewards)",
    doc="""Where reward and length rise together over the run it is what training is for, and no alarm.""",
)  # fmt: skip
cause(
    "policy-rambles", "responses grow, and neither the reward nor the loss is seen to pay for it",
    explains=("length-explosion",), leads_to=_FROM_GROWTH, signs=(_GREW, _end_untrained("against"), _BIAS),
    advice=(
        "Read the longest responses: loops, several answers, text after the answer.",
        "Go back to a checkpoint from before the onset; add a length penalty if it comes again.",
    ),
    source="public issue threads on gibberish growth",
    doc="""What is left where the more specific causes of growth are ruled out or cannot be looked at.""",
)  # fmt: skip

_SHRANK: Final = found("length-collapse", "responses shrink to a share of their early length")
cause(
    "policy-grows-terse", "the policy writes less and less",
    explains=("length-collapse",), leads_to=("entropy-collapse",),
    signs=(
        _SHRANK,
        measured("data.duplicate_between_frac", under(0.02), "responses to different prompts differ",
                 "{}% of the pairs of responses to different prompts are identical", role="typical", scale=100.0),
    ),
    advice=(
        "Read a few responses. If reasoning is gone and the reward does not fall, it was not needed.",
        "Score an empty answer with the reward function.",
    ),
    source="public logs in which length halves while the reward rises",
    doc="""What a length penalty does, or a task that needs no reasoning. One answer for all prompts shows itself by identical
    responses.""",
)  # fmt: skip
cause(
    "lengths-of-the-mask", "lengths are logged from a mask that was zeroed for cut responses",
    explains=("length-logged-of-mask",), signs=(found("length-logged-of-mask", "the shortest response is logged as 0"),),
    advice=("Take lengths from the attention mask; read those of the log as of finished responses only.",),
    source="a public issue thread on masking truncated completions",
    doc="""The log is wrong, not the training. Mean, smallest and largest length are those of the responses that were kept.""",
)  # fmt: skip
cause(
    "long-samples-discarded", "long responses are left out of training more often than short ones",
    explains=("long-samples-left-out",), leads_to=("length-collapse", "empty-mask"),
    signs=(found("long-samples-left-out", "what is trained on is shorter than what was generated"),),
    advice=(
        "Do not drop groups because they finish late: wait for them, or continue them with the next batch.",
        "If overlong responses are masked on purpose, keep it in mind: the policy never learns that they fail.",
    ),
    source="a public report on discarding stale groups",
    doc="""What takes long to generate is stale when it arrives. Dropping it makes the batch a sample of short answers.""",
)  # fmt: skip
cause(
    "truncation-not-counted", "the log's share of cut responses is not counted",
    explains=("truncation-logged-zero",), signs=(found("truncation-logged-zero", "responses reach the limit, and none counts"),),
    advice=("Take the share from finish_reason or from the lengths; do not rely on the logged one.",),
    source="a public fix of a clip ratio that was logged as 0 always",
    doc="""A number that was never filled in reads as all is well.""",
)  # fmt: skip
