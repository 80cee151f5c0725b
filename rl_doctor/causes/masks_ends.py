"""The token that ends responses: not trained, stripped, or another one than the run says."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.causes.masks import BY_RANK, BY_SOURCE, LOST
from rl_doctor.causes.registry import Look, Role, Sign, cause
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found, measured, over, sign, under

_MISSED: Final = found("mask-misses-eos", "the EOS that ends responses is not trained")
_STOPPED: Final = found("stop-without-eos", "responses that stopped by themselves hold no EOS")
_CUT: Final = "mask.cut_last_missed_frac"


def _ids(role: Role, *, shared: bool) -> Sign:
    """That padding and EOS have one id, or two."""
    words = "padding and EOS share an id" if shared else "padding and EOS have ids of their own"

    def look(scene: Scene) -> Look:
        pad, ends = scene.view.info.pad_token_id, scene.view.info.eos_token_ids
        if pad is None or not ends:
            return Look(None, words, None, ("pad_token_id",))
        return Look((pad in ends) is shared, f"padding is id {pad}, EOS {', '.join(map(str, ends))}")

    return Sign(words, role, (), look)


def _cut(role: Role, *, lose: bool) -> Sign:
    """That responses which did not end by EOS lose their last token too, or keep it."""
    words = "responses without EOS lose their last token too" if lose else "responses without EOS keep their last token"

    def look(scene: Scene) -> Look:
        if scene.series(_CUT) is None:  # of the first steps, or of a run in which every response ended
            return Look(None, words, None, scene.missing(_CUT) or ("a response that was cut",))
        share = scene.value(_CUT)
        return Look((share > 0.5) is lose, f"{100 * share:.3g}% of the responses without EOS do not train their last token")

    return Sign(words, role, (_CUT,), look)


_LEFT: Final = ("mask.written_untrained_frac", "mask.missing_tail_frac")
_ONE: Final = 1.5
"""Tokens left out per response that lacks its last one, up to which it is that one alone; other rows may lack single tokens."""


def _many(role: Role, *, many: bool) -> Sign:
    """That responses which lack their last token lack several."""
    words = "more than the last token is left out" if many else "the last token alone is left out"

    @sign(words, *_LEFT, role=role)
    def look(scene: Scene) -> Look:
        tokens, rows = (scene.value(name) * scene.count(name) for name in _LEFT)
        if not rows > 0 or math.isnan(tokens):
            return Look(None, words, None, scene.missing(*_LEFT))
        told = f"for each stretch that lacks its last token {tokens / rows:.3g} of the policy's tokens are left out"
        return Look((tokens > _ONE * rows) is many, told)

    return look


_LEADS: Final = (
    "length-explosion", "length-truncation", "logged-metric-mismatch", "advantage-outside-mask", "written-tokens-untrained",
    "tokens-contradict-entropy", "empty-mask",
)  # fmt: skip

cause(
    "eos-masked-with-padding",
    "EOS is masked out together with padding",
    explains=("mask-misses-eos", "mask-edge-off"),
    leads_to=_LEADS,
    signs=(
        _MISSED, _ids("typical", shared=True), _ids("against", shared=False), _cut("against", lose=True),
        _many("against", many=True),
        found("length-explosion", "responses get longer", role="typical"), BY_RANK, BY_SOURCE,
    ),
    advice=(
        "Mask padding by position (after the first EOS of the response), not by id.",
        "Give the tokenizer a padding token of its own.",
        "Watch the response length: without EOS in the loss it drifts to the limit.",
    ),
    source="public trainer issues and fixes on padding ids equal to EOS ids",
    doc="""One token per response is missing, and it is the one that says when to stop. Padding in the loss is the opposite: extra
    tokens after EOS. If responses that were cut lose their last token as well, the mask is one short, and EOS is not special.""",
)  # fmt: skip

cause(
    "mask-one-short",
    "the mask ends one token early, whatever that token is",
    explains=("mask-misses-eos", "mask-edge-off"),
    leads_to=LOST,
    signs=(_MISSED, _cut("needed", lose=True), _many("against", many=True), BY_RANK, BY_SOURCE),
    advice=(
        "Look for a mask that was cut with the logits (which are shifted by one) or built from lengths minus one.",
        "Check a response of one token: its mask must hold one 1.",
    ),
    source="logits are one position ahead of the tokens that they score; masks are not",
    doc="""Every response loses its last token: EOS where it ended, any other where it was cut.""",
)  # fmt: skip

cause(
    "mask-ends-early",
    "the mask ends before the response does, by more than a token: it was made for another length, or for another row",
    explains=("mask-misses-eos", "mask-edge-off"),
    leads_to=LOST,
    signs=(_MISSED, _many("needed", many=True), BY_RANK, BY_SOURCE),
    advice=(
        "Compare the number of trained tokens of a few rows with their lengths: where they are those of other rows, masks moved.",
        "Find the step that orders or cuts rows (balancing, dynamic batches, a filter), and move or cut the masks in it too.",
        "Build the mask from the row's own attention mask, after the last reordering.",
    ),
    source="reproduced by exchanging the masks of rows",
    doc="""Whole ends of responses are not trained, and not one token each: a mask that is one short, or takes EOS for padding,
    leaves out no more than that. Padding that other rows train instead is seldom recorded.""",
)  # fmt: skip

cause(
    "eos-left-out",
    "the mask leaves out the end token itself",
    explains=("mask-misses-eos", "mask-edge-off"),
    leads_to=_LEADS,
    signs=(_MISSED, _cut("needed", lose=False), _ids("against", shared=True), _many("against", many=True)),
    advice=(
        "Look for special tokens that are skipped where the mask is built, or a mask built from text without them.",
        "Watch the response length: without EOS in the loss it drifts to the limit.",
    ),
    source="masks built from text that was decoded without special tokens",
    doc="""Responses that were cut keep all of their tokens, those that ended lose the one that says so, and padding has another
    id: it is the end token that is left out, and not padding or the last place.""",
)  # fmt: skip


def _other_token(role: Role) -> Sign:
    """That nearly all of the responses that stopped without EOS end by one token."""
    words = "they all end by one other token"

    def look(scene: Scene) -> Look:
        if scene.series(_SAME) is None:
            return Look(None, words, None, scene.missing(_SAME))
        share, token = scene.value(_SAME), scene.value(_ID)
        which = f", id {token:.0f}" if share > 0.99 and abs(token - round(token)) < 0.01 else ""
        return Look(share > 0.95, f"{share:.0%} of them end by the same token{which}")

    return Sign(words, role, (_SAME, _ID), look)


_SAME: Final = "mask.stop_same_token_frac"
_ID: Final = "mask.stop_token_id"
_WITHOUT: Final = "mask.stop_without_eos_frac"
_TOLD: Final = "{}% of the responses that stopped hold none"
_STRINGS: Final = "If responses are meant to end at a stop string, nothing is wrong: ignore this rule."
_KEEP: Final = "Keep the end token that the engine returns (some strip it with the stop reason), and train on it."
_PRINT: Final = "Print the last tokens of a few responses that stopped: is the end token there, and which id has it?"
_RETURNED: Final = "an engine that stops at EOS returns it as the last token, unless it is told to stop at other ids or strings"

cause(
    "end-token-has-other-id",
    "responses end by a token that is not among the EOS ids of the run",
    explains=("stop-without-eos",),
    leads_to=LOST,
    signs=(_STOPPED, measured(_WITHOUT, over(0.9), "hardly any of them does", _TOLD, scale=100), _other_token("needed")),
    advice=(
        "Decode that token: if it is an end token (of a turn, of another tokenizer), add its id to the EOS ids of the run.",
        "If it ends a stop string, nothing is wrong: ignore this rule.",
        "What searches for EOS by its id (masks, lengths, penalties) finds none: check each such place.",
    ),
    source=_RETURNED,
    doc="""All responses end by one token, so that it is there and trained, but whatever looks for the recorded id misses it. A
    tokenizer with another template, or an engine with its own generation config, stops at other ids than the trainer knows.""",
)  # fmt: skip

cause(
    "end-token-not-recorded",
    "the end token is stripped from the responses",
    explains=("stop-without-eos",),
    leads_to=LOST,
    signs=(_STOPPED, measured(_WITHOUT, over(0.9), "hardly any of them does", _TOLD, scale=100), _other_token("against")),
    advice=(_PRINT, _KEEP, _STRINGS),
    source=_RETURNED,
    doc="""No response that stopped holds the token that says so, and they end by tokens of all kinds: it was taken off.""",
)  # fmt: skip

cause(
    "end-token-stripped-in-some",
    "the end token is stripped from some of the responses",
    explains=("stop-without-eos",),
    leads_to=LOST,
    signs=(
        _STOPPED, measured(_WITHOUT, under(0.9), "others hold it", _TOLD, scale=100),
        _other_token("against"), BY_RANK, BY_SOURCE,
    ),
    advice=(
        "Compare a response that holds it with one that does not: engine, turn, data source, or how it was stopped.",
        _KEEP, _STRINGS,
    ),
    source=_RETURNED,
    doc="""The id is right, since some responses end by it: it is one of the ways in which responses are made that loses it.""",
)  # fmt: skip
