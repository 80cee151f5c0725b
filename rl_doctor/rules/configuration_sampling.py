"""How responses are sampled, where that contradicts what is done with them: pairs, greedy groups, cut distributions, no room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rl_doctor.report.model import Hit
from rl_doctor.rules.configured import estimator, number, silent, stated, unknown
from rl_doctor.rules.reading import evidence, uncorrected
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import pooled
from rl_doctor.rules.view import View

_BY_DEVIATION: Final = frozenset({"grpo", "gdpo"})
_PAIR: Final = 2
_CONTEXT: Final = (
    "max_model_len", "vllm_max_model_length", "max_model_length", "max_seq_len", "max_seq_length", "model_max_length",
    "data.max_len",
)  # fmt: skip
_PROMPT: Final = ("max_prompt_length", "prompt_max_len", "prompt_length")


@rule(
    "RLD702", "groups-of-two",
    severity="info", since="0.2.0",
    optional=("group.size_max",),
    cause="Groups have two responses, and advantages are divided by the group's deviation.",
    advice=("Sample 4 to 16 responses per prompt, or leave out the division by the deviation.",),
    avoids=("Two responses without that division, as in RLOO.", "Recorded groups that are larger than configured."),
    source="GRPO, arXiv:2402.03300; Dr. GRPO, arXiv:2503.20783",
)  # fmt: skip
def groups_of_two(view: View, limits: Limits) -> Iterator[Hit | Skip]:  # noqa: ARG001 - it has none
    """Of two responses divided by their standard deviation only the order is left.

    The better one gets +.71 and the worse one -.71 whether they differ by a hair or by everything, and a prompt that is solved
    half of the time gives no signal every second time.

    It needs an estimator that divides by the deviation of the group, and a group_size of 2. If the recorded groups are larger,
    the configuration is not what was run, and nothing is said. A group_size of 1 is broken-groups' to judge.
    """
    how, size = estimator(view), view.config.group_size
    if how is None or size is None:
        lacks = ("group_size",) if how is not None else ("adv_estimator", "group_size")
        yield unknown(view, *lacks) or silent("the group")
        return
    largest = view.get("group.size_max")
    if how not in _BY_DEVIATION or size != _PAIR or view.config.adv_norm == "none":
        return
    if largest is None or float(largest.values.max()) <= size:
        measured = () if largest is None else (evidence(largest),)
        yield Hit(
            "Groups have two responses: divided by their deviation, advantages tell which is better and not by how much", "info",
            (stated("group_size", size, unit="sequences"), *measured), suspect="two-responses-per-group",
        )  # fmt: skip


@rule(
    "RLD703", "sampling-temperature-unusual",
    severity="warning", since="0.2.0",
    optional=("data.duplicate_frac",),
    limits={"low": 0.3, "high": 2.0, "varied": 0.5},
    cause="Sampling is greedy or nearly so, or so hot that text falls apart.",
    advice=("Sample at a temperature of .6 to 1.2, with top_p 1 and no top_k; test another one on a few prompts before.",),
    avoids=("Temperatures from .3 to 2.", "A configured 0 while the recorded samples differ: it was not in force."),
    source="Group-relative methods need samples that differ (arXiv:2402.03300); reproduced by greedy sampling",
)  # fmt: skip
def sampling_temperature_unusual(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Responses are sampled greedily, or at a temperature far from 1.

    With temperature 0 (or top_k 1) all samples of a prompt are the same: a group has no variance, and a policy gradient has
    nothing to compare.

    Greedy is a warning where groups are sampled, unless less than `varied` of the recorded samples are duplicates. A
    temperature below `low` or above `high` is info.
    """
    temperature, top_k = view.config.temperature, view.config.top_k
    if temperature is None and top_k is None:
        yield unknown(view, "temperature") or silent("the temperature")
        return
    size = view.config.group_size
    if temperature == 0.0 or top_k == 1:
        same = view.get("data.duplicate_frac")
        if same is not None and pooled(same) < limits["varied"]:
            return
        how = "temperature is 0" if temperature == 0.0 else "top_k is 1"
        group = f"the {size} samples of a prompt are" if size is not None and size > 1 else "every sample of a prompt is"
        field, value = ("temperature", 0.0) if temperature == 0.0 else ("top_k", 1.0)
        measured = () if same is None else (evidence(same, value=pooled(same)),)
        yield Hit(
            f"Sampling is greedy ({how}): {group} the same",
            "warning",
            (stated(field, value), *measured),
            suspect="greedy-sampling",
        )
    elif temperature is not None and not limits["low"] <= temperature <= limits["high"]:
        limit = limits["low"] if temperature < limits["low"] else limits["high"]
        yield Hit(
            f"Responses are sampled at a temperature of {temperature:g}", "info", (stated("temperature", temperature, limit),),
            suspect="temperature-far-from-one",
        )  # fmt: skip


@rule(
    "RLD704", "cut-sampling-with-ratios",
    severity="info", since="0.2.0",
    cause="Sampling cuts or reweights the distribution, and importance ratios compare it with the trainer's, which does not.",
    advice=(
        "Sample with top_p 1, no top_k, no min_p and no repetition penalty, or apply the same to the trainer's logits.",
        "Look at mean exp(logprob - rollout_logprob): where the engine renormalises, it is the probability that was kept.",
    ),
    avoids=("Cut sampling without ratios against the engine: only what was sampled is biased.",),
    source="Public threads on top_p and top_k in importance ratios; arXiv:2510.23027",
)  # fmt: skip
def cut_sampling_with_ratios(view: View, limits: Limits) -> Iterator[Hit | Skip]:  # noqa: ARG001 - it has none
    """Importance ratios against the engine are in use while sampling leaves out part of the distribution.

    The engine renormalises over what it keeps; each ratio then carries the logarithm of the share that was kept, and over
    a response of a thousand tokens that multiplies.

    It needs is_correction, and top_p below 1, top_k, or a native min_p or repetition_penalty that does something.
    """
    if view.config.is_correction is None or view.config.top_p is None:
        yield unknown(view, "is_correction", "top_p") or silent("how ratios are taken")
        return
    if uncorrected(view):
        return
    top_p, top_k = view.config.top_p, view.config.top_k
    cuts = []
    if top_p < 1.0:
        cuts.append(("top_p", top_p))
    if top_k is not None and 0 < top_k < _SOME_TOKENS:
        cuts.append(("top_k", float(top_k)))
    if min_p := number(view, "min_p"):
        cuts.append(("native.min_p", min_p))
    penalty = number(view, "repetition_penalty")
    if penalty is not None and penalty != 1.0:
        cuts.append(("native.repetition_penalty", penalty))
    if cuts:
        words = ", ".join(f"{name.removeprefix('native.')} {value:g}" for name, value in cuts)
        yield Hit(
            f"Ratios against the engine are in use ({view.config.is_correction}), and sampling has {words}", "info",
            tuple(stated(name, value) for name, value in cuts),
            unchecked=("whether mean exp(logprob - rollout_logprob) is below 1: rollout_logprob",),
            suspect="ratios-over-cut-sampling",
        )  # fmt: skip


_SOME_TOKENS: Final = 100_000
"""A top_k from which on nearly all of a vocabulary is kept."""


@rule(
    "RLD708", "no-room-for-response",
    severity="warning", since="0.2.0",
    optional=("length.truncated_frac", "length.limit_frac"),
    limits={"cut": 0.05},
    cause="The engine's context is too short for the longest prompt and the longest response that are allowed.",
    advice=("Raise the engine's context to max_prompt_length + max_response_length, or shorten one of them.",),
    avoids=("Contexts that are not configured.", "Prompts that leave room: only their bound is known, so it is info."),
    source="Public runs whose responses all ended at a limit of the engine",
)  # fmt: skip
def no_room_for_response(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Prompt and response, at the lengths that are allowed, do not fit into the model's context.

    The engine then cuts responses before their own limit, which looks like answers that end nowhere.

    It reads native settings of the context and of the longest prompt. A response that takes the whole context alone is a
    warning. Prompt and response that exceed it together are info, and a warning if more than `cut` of the responses are cut.
    """
    response, context = view.config.max_response_length, number(view, *_CONTEXT)
    if response is None or not context:
        yield unknown(view, "max_response_length") or silent("the engine's context")
        return
    prompt = number(view, *_PROMPT) or 0.0
    given = [stated("max_response_length", response, context, "tokens"), stated("native.context", context, unit="tokens")]
    if response >= context:
        yield Hit(
            f"A response may have {response} tokens, and the context is {context:.0f} with the prompt", "warning", tuple(given),
            suspect="response-takes-context",
        )  # fmt: skip
    elif prompt + response > context:
        cut = view.get("length.truncated_frac") or view.get("length.limit_frac")
        share = 0.0 if cut is None else pooled(cut)
        words = "" if cut is None else f"; {share:.0%} of the responses are cut"
        if cut is not None:
            given.append(evidence(cut, value=share, limit=limits["cut"]))
        yield Hit(
            f"Prompt ({prompt:.0f}) and response ({response}), as allowed, exceed the context of {context:.0f}{words}",
            "warning" if share > limits["cut"] else "info", tuple(given), suspect="prompt-and-response-exceed-context",
        )  # fmt: skip


@rule(
    "RLD711", "discount-hides-reward",
    severity="warning", since="0.2.0",
    optional=("length.mean",),
    limits={"share": 0.01, "possible": 0.1},
    cause="The discount per token is so strong that early tokens do not feel a reward at the end.",
    advice=("Set gamma to 1 for rewards at the end of a response; lam is what trades bias for variance.",),
    avoids=("Rewards per turn or per token: the finding says what is assumed.", "Estimators that use no discount."),
    source="GAE, arXiv:1506.02438; InstructGPT-like PPO uses no discount, arXiv:2203.02155",
)  # fmt: skip
def discount_hides_reward(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The discount to the power of the response's length is next to nothing.

    A reward is usually paid at the last token. With gamma .99 the first of 1,000 tokens sees 4e-5 of it: only endings are
    trained.

    It needs gamma below 1 and an estimator that discounts (gae, reinforce and kin). A warning if gamma to the mean recorded
    length is below `share`; info if gamma to max_response_length is below `possible`.
    """
    gamma, how = view.config.gamma, view.config.adv_estimator
    if how is not None and not how.startswith(("gae", "reinforce")):
        return
    if gamma is None or how is None:
        yield unknown(view, "gamma", "adv_estimator") or silent("the discount")
        return
    if gamma >= 1.0:
        return
    length = view.get("length.mean")
    if length is not None:
        mean = pooled(length)
        left = gamma**mean
        if left < limits["share"]:
            yield Hit(
                f"gamma is {gamma:g} and responses have {mean:.0f} tokens: the first sees {left:.1g} of a reward at the end",
                "warning", (stated("gamma", gamma), evidence(length, value=mean)),
                unchecked=("whether rewards are paid before the end: token_reward",), suspect="discount-too-strong",
            )  # fmt: skip
            return
    longest = view.config.max_response_length
    if longest is not None and gamma**longest < limits["possible"]:
        yield Hit(
            f"gamma is {gamma:g}: the first of {longest} tokens sees {gamma**longest:.1g} of a reward at the end", "info",
            (stated("gamma", gamma), stated("max_response_length", longest, unit="tokens")), suspect="discount-too-strong",
        )  # fmt: skip
