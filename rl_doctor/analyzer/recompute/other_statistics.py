"""Statistics of a whole batch with one ingredient exchanged: the statistic, the rows, the tokens, or what it is taken of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Bools, restricted
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, Entries, Hypothesis, entry
from rl_doctor.analyzer.recompute.statistics import (
    NONE,
    STATISTICS,
    Reading,
    Statistics,
    deviation_of,
)
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

Draw = Callable[[Batch], Statistics]
"""Batch -> quantities of its rows or tokens."""


@frozen(eq=False)
class Drawn:
    """How a statistic of a batch is made.

    Attributes:
        draw: what is summed.
        read: what becomes of the sums.
        needs: columns that it needs.
        optional: columns that it reads where the run has them.
    """

    draw: Draw
    read: Reading
    needs: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def reduction(self) -> Reduction:
        """The sums over all rows of a step."""
        return Reduction(self.draw, NONE, self.needs, self.optional, "token")

    def named(self, name: str, sentence: str) -> Hypothesis:
        """The statistic as a hypothesis."""
        return Hypothesis(name, sentence, self.reduction, self.read)


def unmasked(own: Drawn) -> Iterator[Hypothesis]:
    """The same over all tokens of the responses, whatever the mask."""

    def draw(batch: Batch) -> Statistics:
        masks = ("response_mask", "loss_mask")
        columns = {name: values for name, values in batch.columns.items() if name not in masks}
        return own.draw(replace(batch, columns=columns, scratch={}))

    needs = (*own.needs, "response_mask")
    sentence = "counts all tokens of the responses, without the mask"
    yield replace(own, draw=draw, needs=needs).named("without the mask", sentence)


def other_rows(own: Drawn) -> Iterator[Hypothesis]:
    """The same over a part of the rows."""
    for name, (sentence, column, chosen) in _ROWS.items():

        def draw(batch: Batch, column: str = column, chosen: object = chosen) -> Statistics:
            rows: Bools = np.asarray(batch.columns[column] == chosen, np.bool_)
            return own.draw(restricted(batch, rows, tuple(batch.columns)))

        yield replace(own, draw=draw, needs=(*own.needs, column)).named(name, sentence)


_ROWS: Final[Mapping[str, tuple[str, str, object]]] = {
    "rank 0 only": ("is that of rank 0 alone", "rank", 0),
    "terminated responses only": ("is that of the responses that ended by themselves alone", "finish_reason", "stop"),
    "truncated responses only": ("is that of the responses that were cut off at the limit alone", "finish_reason", "length"),
}


def other_readings(own: Drawn, of: str, statistic: str) -> Iterator[Hypothesis]:
    """Another statistic of the same quantity than ``statistic``; of a deviation another deviation."""
    if statistic == "std":
        for name, (sentence, read) in _DEVIATIONS.items():
            yield replace(own, read=read(of)).named(name, sentence)
    for name, read in STATISTICS:
        if name != statistic:
            yield replace(own, read=read(of)).named(name, _WORDS[name])


_WORDS: Final = {"mean": "is the mean", "max": "is the maximum", "min": "is the minimum"}


def _root_mean_square(of: str) -> Reading:
    def read(found: Statistics) -> Entries:
        item = found[of]
        return entry(math.sqrt(item.square), TOLERANCE * item.size) if item.count else Entries()

    return read


def _variance(of: str) -> Reading:
    deviation = deviation_of(of, ddof=1)

    def read(found: Statistics) -> Entries:
        one = deviation(found)
        slack = 2.0 * one.total * one.tolerance + EPSILON32 * one.total**2
        return Entries(one.total**2, one.number, slack) if one.number else one

    return read


_DEVIATIONS: Final[Mapping[str, tuple[str, Callable[[str], Reading]]]] = {
    "ddof 0": ("is a standard deviation that divides by n, not by n - 1", lambda of: deviation_of(of, ddof=0)),
    "variance": ("is the variance, not the standard deviation", _variance),
    "root mean square": ("is the root of the mean square: the mean is not subtracted", _root_mean_square),
}


def complement(own: Drawn) -> Iterator[Hypothesis]:
    """One minus the number."""

    def read(found: Statistics) -> Entries:
        one = own.read(found)
        return replace(one, total=one.number - one.total)

    yield replace(own, read=read).named("1 minus the share", "is 1 minus it")


def others(*families: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Hypotheses of several kinds, the first of each name."""
    found: dict[str, Hypothesis] = {}
    for family in families:
        for one in family:
            found.setdefault(one.name, one)
    return tuple(found.values())
