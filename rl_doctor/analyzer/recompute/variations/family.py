"""Ways in which a key may be computed otherwise than its definition says: one ingredient of it exchanged at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rl_doctor.analyzer.dialects.recipes import CELL
from rl_doctor.analyzer.recompute.registry import Logged
from rl_doctor.analyzer.recompute.stages import MICROBATCH, MINIBATCH, Summed
from rl_doctor.analyzer.recompute.variations.columns import other_columns
from rl_doctor.analyzer.recompute.variations.masks import other_counts, other_masks, other_rows, recounted
from rl_doctor.analyzer.recompute.variations.measures import Own, Stage, Stages, Varied

COUNTED: Final = " (recounted)"
"""What the names of variations end with that count the mask's own tokens where a recorded number of them divides."""


def definition(item: Logged) -> Varied | None:
    """The key with nothing exchanged; None for one that is no sum over the sequences of parts of a step."""
    reads = item.reduction
    if not isinstance(reads, Summed):
        return None
    return Varied("", "", reads.shares, Own(reads.columns, item.entries), reads.needs, reads.optional)


def variations(item: Logged) -> tuple[Varied, ...]:
    """Every variation of a key, the most specific first: other columns, other tokens, other rows, other stages."""
    own = definition(item)
    if own is None:
        return ()
    found = [*other_columns(own), *other_masks(own), *other_rows(own), *_other_stages(own)]
    if "batch_num_tokens" in own.optional:
        # Divided by a recorded number of tokens its parts add up; a trainer that means them counts their own.
        counted = replace(own, shares=tuple(map(recounted, own.shares)), optional=("is_padding",))
        more = (*other_counts(counted), *other_rows(counted), *_other_stages(counted))
        found += [replace(one, name=one.name + COUNTED) for one in more]
    return tuple(found)


def _other_stages(own: Varied) -> Iterator[Varied]:
    """The same sums in other stages, and taken from a part of the step alone."""
    for name, sentence, stages in _STAGES:
        yield replace(own, name=name, sentence=sentence, stages=stages)
    if isinstance(own.stages, Own):
        summed = replace(own.stages, how="sum")
        sentence = "is added up over the parts of the step, not averaged"
        yield replace(own, name="sum over the step", sentence=sentence, stages=summed)
    for only, sentence in _ONLY.items():
        yield replace(own, name=f"{only} only", sentence=sentence, only=only)


_STAGES: Final = (
    (
        "tokens weighted over micro-batches", "weighs every token of the step alike, instead of averaging the means of its parts",
        Stages(),
    ),
    ("mean over micro-batches of each rank", "is the plain mean over the micro-batches of every rank", Stages(CELL)),
    ("mean over micro-batches", "is the plain mean over micro-batches, each pooled over the ranks", Stages(MICROBATCH)),
    (
        "mean over mini-batches", "is the plain mean over mini-batches, each pooled over its micro-batches and ranks",
        Stages(MINIBATCH),
    ),
    ("mean over ranks", "is the plain mean over ranks, each pooled over its tokens of the step", Stages(("rank",))),
    (
        "mean over micro-batches of mini-batches",
        "is the mean over micro-batches and ranks within each mini-batch, and of these over the mini-batches",
        Stages(CELL, (Stage(("rank", "microbatch"), "mean"),)),
    ),
    ("mean over epochs", "is the plain mean over epochs, each pooled", Stages(("rollout_step", "epoch"))),
    (
        "sum over micro-batches", "is added up over the micro-batches, not averaged",
        Stages(CELL, (Stage(("microbatch",), "sum"), Stage(("rank",), "mean"))),
    ),
    (
        "sum over ranks", "is added up over the ranks, not averaged",
        Stages(CELL, (Stage(("microbatch",), "mean"), Stage(("rank",), "sum"))),
    ),
    (
        "sum over mini-batches", "is added up over the mini-batches, not averaged",
        Stages(CELL, (Stage(("rank", "microbatch"), "mean"), Stage(MINIBATCH, "sum"))),
    ),
    ("sum over micro-batches and ranks", "is added up over all micro-batches of the step", Stages(CELL, (Stage(CELL, "sum"),))),
    (
        "sum over micro-batches of each rank", "is added up over the micro-batches of the step, averaged over the ranks",
        Stages(CELL, (Stage(MICROBATCH, "sum"), Stage(("rank",), "mean"))),
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
