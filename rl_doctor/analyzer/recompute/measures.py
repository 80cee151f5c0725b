"""A key as what goes into it: what each sequence adds, over which tokens, in which stages; each can be another one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl_doctor.analyzer.recompute.hypotheses import Part
from rl_doctor.analyzer.recompute.stages import Share



@dataclass(frozen=True, slots=True)
class Step:
    """How numbers that differ only in ``columns`` become one: "mean", "sum", or "weighted", a mean by their denominators."""

    columns: tuple[str, ...]
    how: str


@dataclass(frozen=True, slots=True)
class Stages:
    """How the sums of a step become its entries.

    Attributes:
        apart: columns of ``CELL`` that tell apart what is pooled.
        steps: what becomes of the quotients, the inner first; each that is left is an entry.
        divided: whether what is pooled is divided by its denominator.
        by_ranks: whether the result is multiplied by the number of ranks.
        by_rows: whether each quotient is multiplied by its share of the rows of its mini-batch on its rank.
        only: which of the parts of a step are taken; see ``cells.KEPT``.
    """

    apart: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    divided: bool = True
    by_ranks: bool = False
    by_rows: bool = False
    only: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """Other factors of the terms of the same key."""

    name: str
    sentence: str
    terms: tuple[tuple[Share, float], ...]
    needs: tuple[str, ...] = ()


Others = Callable[[], tuple[Part | Blend, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """What goes into a key.

    Attributes:
        share: what each sequence adds.
        stages: how that becomes the key's entries.
        needs: columns without which it is skipped.
        optional: further ones that are read.
        others: makes other values.
        additive: whether a token's value does not depend on which other tokens are selected.
        beside: further terms, whose averages are added to that of ``share``, each with its factor.
        normalised: whether a recorded number of the mini-batch divides the sums, whose parts then add up.
        recounts: whether that number is the tokens of the mask, which ``share`` counts itself where it is not recorded.
    """

    share: Share
    stages: Stages
    needs: tuple[str, ...]
    optional: tuple[str, ...] = ()
    others: Others = tuple
    additive: bool = True
    beside: tuple[tuple[Share, float], ...] = ()
    normalised: bool = False
    recounts: bool = False

    @property
    def terms(self) -> tuple[tuple[Share, float], ...]:
        """Every term with its factor."""
        return ((self.share, 1.0), *self.beside)


@dataclass(frozen=True, slots=True, eq=False)
class Varied:
    """A key with one of its ingredients exchanged.

    Attributes:
        name: a few words, unique for its key.
        sentence: what the logged number then is or does; follows "the logged <key>".
        terms: what each sequence adds, with the factor of its average.
        stages: how that becomes entries.
        needs: columns without which it cannot be tried.
        optional: further ones that are read.
    """

    name: str
    sentence: str
    terms: tuple[tuple[Share, float], ...]
    stages: Stages
    needs: tuple[str, ...]
    optional: tuple[str, ...] = ()

