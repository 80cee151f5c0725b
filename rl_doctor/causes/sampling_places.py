"""Differences between engine and trainer that sit somewhere: in some ranks, rows, lengths, turns."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.causes.registry import Look, cause
from rl_doctor.causes.sampling_signs import (
    CONSEQUENCES,
    GAP,
    calm_elsewhere,
    calm_rows,
    concentrated,
    contrast_of,
    some_gap,
    whole_rows,
)
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import measured, over, sign, under

_SCORE: Final = "Score one row that is off and one that is not, alone and unpadded, with engine and trainer."
_SOURCE: Final = "public trainer issues"
_FOLLOWS: Final = (*CONSEQUENCES, "kl-grows-with-padding", "wrong-reference")
_NO_ROW: Final = 0.05
_MANY: Final = 0.3
_CALM: Final = calm_rows("typical", many=True)


@sign("it grows inside the responses, more than from short to long ones", "mismatch.abs_by.position.",
      "mismatch.abs_by.response_length.")  # fmt: skip
def _inside(scene: Scene) -> Look:
    position, length = (contrast_of(scene, by, ordered=True) for by in ("position", "response_length"))
    return Look(position > length, f"late positions stand out {position:.3g} times, long responses {length:.3g} times")


@sign("whole responses are off, from their first tokens", "mismatch.abs_by.position.", "mismatch.abs_by.response_length.")
def _whole(scene: Scene) -> Look:
    position, length = (contrast_of(scene, by, ordered=True) for by in ("position", "response_length"))
    return Look(length >= position, f"late positions stand out {position:.3g} times, long responses {length:.3g} times")


@sign("in the rows that are off the trainer gives the tokens far less probability", "mismatch.off_gap")
def _far_below(scene: Scene) -> Look:
    gap = scene.value("mismatch.off_gap")
    if math.isnan(gap):
        return Look(None, _far_below.words, None, scene.missing("mismatch.off_gap"))
    return Look(gap < -1.0, f"in the rows that are off the trainer's mean logprob is {gap:+.2f} nat from the engine's")


@sign("old_logprob and ref_logprob are alike there, both far from the engine", "mismatch.rollout_to_ref", "mismatch.old_to_ref",
      role="typical")  # fmt: skip
def _reference_alike(scene: Scene) -> Look:
    far, near = scene.value("mismatch.rollout_to_ref"), scene.value("mismatch.old_to_ref")
    if math.isnan(far) or math.isnan(near):
        return Look(None, _reference_alike.words, None, ("ref_logprob",))
    return Look(near < 0.5 * far, f"the reference is {near:.2g} nat from the trainer and {far:.2g} from the engine")


cause(
    "some-rows-differ",
    "some rows take another path through the trainer or the engine",
    explains=("mismatch-in-some-rows", "rollout-trainer-mismatch"),
    leads_to=_FOLLOWS,
    signs=(some_gap("engine and trainer differ"), calm_rows("needed", many=True), whole_rows()),
    advice=(
        "Look at the rows named here, and at what they share: images, tools, a resumed generation, packing.",
        _SCORE,
        "Record rank, microbatch, left_padding, data_source and turn: where it sits tells the cause.",
    ),
    source=_SOURCE,
    doc="""Most rows agree and some do not, and none of the recorded columns tells them apart.""",
)

cause(
    "rows-not-lined-up",
    "in some rows the trainer's logits are not those of the tokens: images or other inserts are counted differently",
    explains=GAP,
    leads_to=_FOLLOWS,
    signs=(
        some_gap("engine and trainer differ"),
        calm_rows("needed", many=True),
        whole_rows(),
        _far_below,
        measured("mismatch.off_corr", under(0.5), "in these rows the two do not correlate, at no offset up to 3",
                 "in the rows that are off they correlate with {}"),
        concentrated("source", "data source", ("data_source",), role="typical"),
        _reference_alike,
    ),
    advice=(
        "Compare the number of logits with that of token ids in such a row: an image is one token, and hundreds once expanded.",
        "Take logprobs from the end of the row, or by the positions of the response, and not from its beginning.",
    ),
    source="public trainer issues: image tokens expanded in the model and not in the ids",
    doc="""The row's logprobs are those of other positions, hundreds of tokens away: no offset up to 3 helps.

    A policy that has collapsed shows in the engine's logprobs too.""",
)  # fmt: skip


@sign("the engine's logprobs in these rows are as large as the trainer's, on average", "mismatch.off_gap")
def _same_level(scene: Scene) -> Look:
    gap = scene.value("mismatch.off_gap")
    if math.isnan(gap):
        return Look(None, _same_level.words, None, scene.missing("mismatch.off_gap"))
    return Look(abs(gap) < 0.3, f"in the rows that are off the trainer's mean logprob is {gap:+.2f} nat from the engine's")


@sign("all rows are off, or the others agree", "mismatch.rows_calm_frac", role="typical")
def _all_or_some(scene: Scene) -> Look:
    share = scene.value("mismatch.rows_calm_frac")
    if math.isnan(share):
        return Look(None, _all_or_some.words, None, scene.missing("mismatch.rows_calm_frac"))
    few = share < _NO_ROW
    return Look(few or share > _MANY, "all rows are off" if few else f"{share:.0%} of the rows agree within .03 nat a token")


cause(
    "rollout-logprobs-of-other-rows",
    "the engine's logprobs are those of other rows",
    explains=GAP,
    leads_to=(*_FOLLOWS, "missing-rollout-logprob", "mismatch-within-response", "unlawful-rollout-logprob"),
    signs=(
        some_gap("engine and trainer differ"),
        measured("mismatch.off_corr", under(0.3), "in these rows the two do not correlate, at no offset up to 3",
                 "in the rows that are off they correlate with {}"),
        _same_level,
        _all_or_some,
    ),
    advice=(
        "Compare the order of rows before and after every sort, filter and balance step: all columns must move together.",
        "Look for the rollout_logprob of one of these rows in the other rows of its step.",
    ),
    source="Reproduced by exchanging the rollout logprobs of rows",
    doc="""Each number is a lawful logprob and stands in another row, in all rows or in some: the two columns are unrelated there
    and equally large.

    Where a row is longer than the one whose logprobs it got, its end is filled with 0.""",
)  # fmt: skip

cause(
    "left-padding-positions",
    "the position ids count left padding",
    explains=GAP,
    leads_to=_FOLLOWS,
    signs=(
        some_gap("engine and trainer differ"),
        measured("mismatch.left_padding_corr", over(0.3), "a row's difference grows with its left padding",
                 "over rows |d| and left padding correlate with {}"),
        concentrated("left_padding", "left padding from", ("left_padding",), ordered=True),
        calm_elsewhere("left_padding", ordered=True),
        whole_rows(),
        _CALM,
    ),
    advice=(
        "Give the forward pass position_ids made from the attention mask, in every pass (old, new, reference).",
        "Score a row with and without its padding: the unpadded pass is the one to believe.",
    ),
    source="public trainer issues: padded passes without position ids, and packed ones that were blamed for it",
    doc="""A row without padding agrees, and the more padding the worse. Which of the two is wrong is not told.""",
)  # fmt: skip

cause(
    "long-rows-differ",
    "long responses are scored differently from their first tokens on",
    explains=GAP,
    leads_to=_FOLLOWS,
    signs=(
        some_gap("engine and trainer differ"),
        concentrated("response_length", "length from", ("response_length",), ordered=True),
        calm_elsewhere("response_length", ordered=True),
        whole_rows(),
        _whole,
        _CALM,
    ),
    advice=(
        "Look at what switches with the length: scaled positions, sliding windows, sequence parallelism, splits of a row.",
        _SCORE,
    ),
    source=_SOURCE,
    doc="""Short responses agree, long ones do not, from their first tokens: the forward pass depends on the length.""",
)  # fmt: skip

cause(
    "late-positions-differ",
    "engine and trainer part inside the responses",
    explains=GAP,
    leads_to=(*_FOLLOWS, "mismatch-within-response"),
    signs=(
        some_gap("engine and trainer differ"),
        concentrated("position", "position from", (), ordered=True),
        calm_elsewhere("position", ordered=True),
        _inside,
        measured(
            "inner.shifted_frac",
            over(0.5),
            "from there on one column follows the other some tokens later",
            "in {}% of the rows that part one column follows the other 1 to 3 tokens later",
            role="against",
            scale=100.0,
        ),
        measured(
            "inner.after_gap_frac",
            over(0.5),
            "it begins right after untrained tokens",
            "in {}% of the rows that part it begins right after untrained tokens",
            role="against",
            scale=100.0,
        ),
        calm_rows("typical", many=False),
    ),
    advice=(
        "Look at what changes on the way: text that is tokenised again, a cache in low precision, a resumed generation.",
        "Find the first token that differs in a row, and compare the ids that were sampled with those that are trained on.",
    ),
    source=_SOURCE,
    doc="""The first tokens agree and later ones do not, in rows of all lengths.""",
)

for _by, _name, _what, _ordered, _advice in (
    ("rank", "one-rank-differs", "rank", False,
     "Compare that rank's weights, adapters, precision and library versions with another's."),
    ("microbatch", "one-microbatch-differs", "micro-batch", False,
     "Look at what a micro-batch shares: its padding, its packing, what the pass before it left behind."),
    ("turns", "rows-of-many-turns-differ", "number of turns", True,
     "Compare the ids of a row of several turns with what the engine saw in each turn."),
    ("turn", "later-turns-differ", "turn", True,
     "Compare the ids of each turn with what the engine saw: text that is tokenised again gives other ids."),
    ("prompt_length", "long-prompts-differ", "prompt length from", True,
     "Look at what depends on the prompt's length: cut prompts, a prefix cache, scaled positions."),
):  # fmt: skip
    cause(
        _name,
        {
            "rank": "one rank computes something else than the others",
            "microbatch": "some micro-batches are computed differently",
            "turns": "responses of several turns are scored differently",
            "turn": "engine and trainer part at a later turn",
            "prompt_length": "rows with long prompts are scored differently",
        }[_by],
        explains=GAP,
        leads_to=_FOLLOWS,
        signs=(
            some_gap("engine and trainer differ"),
            concentrated(_by, _what, (_by,), ordered=_ordered),
            calm_elsewhere(_by, ordered=_ordered),
            whole_rows("typical" if _by == "turn" else "needed"),
            _CALM,
        ),
        advice=(_advice, _SCORE),
        source=_SOURCE,
        doc=f"""The difference sits where the {_what.removesuffix(" from")} says, and the rest of the batch agrees.""",
    )
