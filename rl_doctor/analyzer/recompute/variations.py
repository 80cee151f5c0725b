"""Ways in which a key may be computed otherwise than its definition says: one ingredient of it exchanged at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rl_doctor.analyzer.recompute.other_masks import other_masks, other_rows
from rl_doctor.analyzer.dialects.recipes import CELL
from rl_doctor.analyzer.recompute.hypotheses import Part
from rl_doctor.analyzer.recompute.measures import Measure, Stages, Step, Varied
from rl_doctor.analyzer.recompute.stages import MICROBATCH, MINIBATCH


def definition(measure: Measure) -> Varied:
    """The key with nothing exchanged."""
    return Varied("", "", measure.terms, measure.stages, measure.needs, measure.optional)


def variations(measure: Measure) -> tuple[Varied, ...]:
    """Every variation of a key, the most specific first: other values, other tokens, other rows, other stages."""
    own = definition(measure)
    found: list[Varied] = []
    for other in measure.others():
        terms = ((other.share, 1.0),) if isinstance(other, Part) else other.terms
        found.append(replace(own, name=other.name, sentence=other.sentence, terms=terms, needs=(*own.needs, *other.needs)))
    found += _signs(own)
    if measure.additive:
        found += other_masks(own, recounts=measure.recounts)
    if len(measure.terms) == 1 and measure.stages.divided:
        found += other_rows(own)
    found += _other_stages(own, measure)
    return tuple(found)


def _signs(own: Varied) -> Iterator[Varied]:
    if len(own.terms) > 1:
        opposite = tuple((share, -factor) for share, factor in own.terms)
        yield replace(own, name="opposite sign", sentence="has the opposite sign", terms=opposite)


def _other_stages(own: Varied, measure: Measure) -> Iterator[Varied]:
    """The same sums in other stages, and taken from a part of the step alone."""
    seen = {own.stages}
    for name, sentence, stages in _stages(measure):
        if stages not in seen:
            seen.add(stages)
            yield replace(own, name=name, sentence=sentence, stages=stages)
    for only, sentence in _ONLY.items():
        yield replace(own, name=f"{only} only", sentence=sentence, stages=replace(own.stages, only=only))


def _stages(measure: Measure) -> Iterator[tuple[str, str, Stages]]:
    """Names, sentences and stages of other ways to put the parts of a step together."""
    own = measure.stages
    if measure.normalised:  # the sums are divided by a number of the mini-batch: its parts are added up
        yield from _SUMMED
        yield "sum over mini-batches", "is added up over the mini-batches, not averaged", _then(own, MINIBATCH, "sum")
        return
    yield "tokens weighted over micro-batches", (
        "weighs every token of the step alike, instead of averaging the means of its parts"
    ), Stages()
    yield from _AVERAGED
    yield "sum over micro-batches", "is added up over the micro-batches, not averaged", Stages(
        CELL, (Step(("microbatch",), "sum"), Step(("rank",), "mean"))
    )  # fmt: skip
    yield "sum over ranks", "is added up over the ranks, not averaged", Stages(
        CELL, (Step(("microbatch",), "mean"), Step(("rank",), "sum"))
    )  # fmt: skip
    yield "sum over mini-batches", "is added up over the mini-batches, not averaged", _then(own, MINIBATCH, "sum")
    yield "sum over the step", "is added up over all micro-batches of the step, not averaged", _then(own, CELL, "sum")


def _then(own: Stages, columns: tuple[str, ...], how: str) -> Stages:
    return replace(own, steps=(*own.steps, Step(columns, how)))


_AVERAGED: Final = (
    ("mean over micro-batches of each rank", "is the plain mean over the micro-batches of every rank", Stages(CELL)),
    (
        "mean over micro-batches", "is the plain mean over micro-batches, each pooled over the ranks", Stages(MICROBATCH),
    ),
    (
        "mean over mini-batches", "is the plain mean over mini-batches, each pooled over its micro-batches and ranks",
        Stages(MINIBATCH),
    ),
    ("mean over ranks", "is the plain mean over ranks, each pooled over its tokens of the step", Stages(("rank",))),
    (
        "mean over micro-batches, then mini-batches",
        "is the mean over micro-batches and ranks within each mini-batch, and of these over the mini-batches",
        Stages(CELL, (Step(("rank", "microbatch"), "mean"),)),
    ),
    ("mean over epochs", "is the plain mean over epochs, each pooled", Stages(("epoch",))),
)  # fmt: skip
_SUMMED: Final = (
    ("mean over micro-batches", "is averaged over micro-batches, whose parts add up", Stages(CELL, (Step(("rank",), "sum"),))),
    (
        "mean over ranks", "is averaged over the ranks, whose parts add up",
        Stages(CELL, (Step(("microbatch",), "sum"), Step(("rank",), "mean"))),
    ),
    (
        "mean over micro-batches of each rank", "is averaged over micro-batches and ranks, whose parts add up", Stages(CELL),
    ),
)  # fmt: skip
_ONLY: Final = {
    "first micro-batch": "is that of the first micro-batch of each mini-batch alone",
    "last micro-batch": "is that of the last micro-batch of each mini-batch alone",
    "first mini-batch": "is that of the first mini-batch of the step alone",
    "last mini-batch": "is that of the last mini-batch of the step alone",
    "first epoch": "is that of the first epoch alone",
    "last epoch": "is that of the last epoch alone",
}
