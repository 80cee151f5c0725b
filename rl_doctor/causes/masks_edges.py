"""Masks that are wrong at their edges, by a shift, or at single tokens."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.causes.masks import AGENTS, BY_RANK, BY_SOURCE, IN_LOSS, LOST, concentrated
from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, measured, over, sign, under

cause(
    "mask-starts-in-prompt",
    "the mask begins some tokens before the response",
    explains=("prompt-in-loss", "mask-misses-eos", "mask-edge-off"),
    leads_to=IN_LOSS,
    signs=(
        found("prompt-in-loss", "prompt tokens are trained"),
        measured(
            "mask.prompt_edge_frac", over(0.5), "only the last tokens of the prompt are",
            "{}% of the rows with prompt tokens in the loss have three or fewer there", scale=100,
        ),
        found("mask-misses-eos", "the last token of the response is not trained", role="typical"),
    ),
    advice=(
        "Logits are one ahead of the tokens that they score: shift logits or mask, not both.",
        "Check the length of the generation header: it belongs to the prompt.",
    ),
    source="public trainer issues on masks that are shifted by one",
    doc="""A shift by one, or a header that is counted as response. The response's last token is then often missing.""",
)  # fmt: skip

cause(
    "template-glue-trained",
    "tokens of the chat template at the edges of turns are trained",
    explains=("observation-in-loss", "mask-edge-off", "missing-rollout-logprob"),
    leads_to=("missing-rollout-logprob", "rollout-trainer-mismatch", "part-off-policy", "mask-edge-off"),
    signs=(
        measured(
            "mask.observation_edge_frac", over(0.9), "all of the tokens in question lie at the edges of turns",
            "{}% of the trained tokens of others lie in short runs beside what the policy wrote", scale=100,
        ),
        measured(
            "mask.written_untrained_frac", over(0.002), "some of what the policy wrote is left out",
            "{}% of what the policy wrote is not trained", role="against", scale=100,
        ),
        measured(
            "mask.extra_head_same_token", over(0.9), "the same token stands before every turn",
            "{}% of the runs before a turn begin with the same token", role="typical", scale=100,
        ),
        measured(
            "mask.extra_tail_same_token", over(0.9), "the same token stands behind every turn",
            "{}% of the runs after a turn begin with the same token", role="typical", scale=100,
        ),
    ),
    advice=(
        "Count the tokens of the header and of what follows the end of a turn, in the tokenizer that is used, and mask them.",
        "Better take the mask from the engine: what it sampled is the response.",
    ),
    source="public issue: the header has four tokens and the code assumed two",
    doc="""The same ids stand at the same offset of every turn, and the engine has no logprob of them. A prefix that is forced,
    such as an opening tag, looks alike, but the policy writes it too and finds it certain.""",
)  # fmt: skip


_EDGES: Final = tuple(f"mask.{name}_frac" for name in ("extra_head", "missing_tail", "missing_head", "extra_tail"))


@sign("both edges lie to the same side", *_EDGES, "mask.padding_after_end_frac")
def _same_side(scene: Scene) -> Look:
    early = min(scene.value("mask.extra_head_frac"), scene.value("mask.missing_tail_frac"))
    if math.isnan(early):
        return Look(None, "both edges lie to the same side", None, scene.missing("mask.extra_head_frac"))
    padding = 0.0 if math.isnan(behind := scene.value("mask.padding_after_end_frac")) else behind
    late = min(scene.value("mask.missing_head_frac"), max(scene.value("mask.extra_tail_frac"), padding))
    return Look(max(early, late) > 0.002, f"{early:.1%} of the stretches are masked too early at both edges, {late:.1%} too late")


cause(
    "mask-shifted",
    "the mask is shifted against the tokens",
    explains=("mask-edge-off", "mask-covers-padding", "advantage-outside-mask", "mask-misses-eos", "observation-in-loss"),
    leads_to=(*IN_LOSS, "mask-misses-eos", "advantage-outside-mask", "written-tokens-untrained"),
    signs=(
        found("mask-edge-off", "the mask begins or ends beside what the policy wrote"),
        _same_side,
        found("advantage-outside-mask", "advantages stand just outside the mask", role="typical"),
    ),
    advice=(
        "Logits, logprobs and masks must be cut alike: position t of the logits scores token t + 1.",
        "Print token, mask, rollout_logprob and advantage around one boundary.",
    ),
    source="logits are one position ahead of the tokens that they score; masks are not",
    doc="""Both edges of every turn are off to the same side by the same number of tokens: the first token of the turn is not
    trained and the first of the observation is, or the reverse.""",
)  # fmt: skip

_EDGE: Final = 0.002
_UNTRAINED: Final = measured(
    "mask.written_untrained_frac", over(0.0), "tokens that the policy wrote are not trained",
    "{}% of what the policy wrote is not trained", scale=100,
)  # fmt: skip
_OTHERS: Final = ("mask.observation_edge_frac", "mask.padding_after_end_frac")


@sign("tokens of others, or padding, are trained instead", *_OTHERS, role="against")
def _instead(scene: Scene) -> Look:
    edge, padding = (scene.value(name) for name in _OTHERS)
    if math.isnan(edge) and math.isnan(padding):
        return Look(None, _instead.words, None, scene.missing(*_OTHERS))
    if padding > 0.05:
        return Look(there=True, text=f"{padding:.1%} of the responses that ended train padding instead")
    if edge > 0.0:
        return Look(there=True, text=f"{edge:.1%} of the trained tokens of others lie at edges")
    return Look(there=False, text="neither padding nor tokens of others at edges are trained instead")


cause(
    "mask-begins-late",
    "the mask begins late and leaves out the first tokens of what the policy wrote",
    explains=("mask-edge-off",),
    leads_to=LOST,
    signs=(
        found("mask-edge-off", "the mask begins late or ends early"),
        measured(
            "mask.missing_head_frac", over(_EDGE), "first tokens are left out",
            "{}% of the stretches leave out their first tokens", scale=100,
        ),
        measured(
            "mask.missing_tail_frac", under(_EDGE), "last tokens are not",
            "{}% of the stretches leave out their last tokens", scale=100,
        ),
        _instead,
        _UNTRAINED,
    ),
    advice=(
        "Look for a mask that is cut with the logits, which are one ahead of the tokens: both shifted, one token too far.",
        "Check offsets for headers that the prompt already holds: counted again, they cut the response's start.",
        "Print tokens and mask of one short response: its first token must be trained.",
    ),
    source=AGENTS,
    doc="""Nothing wrong is trained, and the ends are there, but the first tokens of every stretch are missing: the choice that
    decides most of what follows gets no gradient. A response of one token has none at all.""",
)  # fmt: skip

cause(
    "turn-edges-cut",
    "the mask leaves out the first or last tokens of turns",
    explains=("mask-edge-off",),
    leads_to=LOST,
    signs=(
        found("mask-edge-off", "the mask begins late or ends early"),
        found("mask-misses-eos", "the EOS of responses is not trained", role="against"),
        _instead,
        _UNTRAINED,
    ),
    advice=(
        "The end token of a turn is the policy's decision to hand over: train it.",
        "Check offsets for headers that the prompt already holds.",
    ),
    source=AGENTS,
    doc="""Nothing wrong is trained, but something right is missing: usually the end token of each turn, or its first token.""",
)  # fmt: skip

cause(
    "tokens-dropped-by-id",
    "tokens drop out of the mask wherever their id is taken for a marker or for padding",
    explains=("written-tokens-untrained",),
    leads_to=("logged-metric-mismatch", "advantage-outside-mask"),
    signs=(
        found("written-tokens-untrained", "single tokens of the policy are not trained"),
        concentrated("mask.wrong_by.turn.", "turn"),
        BY_SOURCE,
        BY_RANK,
    ),
    advice=("List the ids that are left out: if they are few, they are taken for something else.",),
    source="masks built by searching for ids",
    doc="""A mask made by comparing ids leaves out these ids wherever they occur. A selection on purpose leaves out far more.""",
)  # fmt: skip

cause(
    "tokens-selected",
    "a part of the tokens is selected for the loss",
    explains=("written-tokens-untrained",),
    leads_to=("logged-metric-mismatch", "advantage-outside-mask"),
    signs=(found("written-tokens-untrained", "many tokens of the policy are not trained", suspect="tokens-selected"),),
    advice=("Nothing, if it is meant; record the whole mask as loss_mask so that it is known.",),
    source="token-level rejection and selection by entropy",
    doc="""Rejection by importance weight and selection by entropy leave out tokens in the midst of a response, by design.""",
)  # fmt: skip
