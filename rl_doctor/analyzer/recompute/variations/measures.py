"""A key with one of its ingredients exchanged: what each sequence adds, over which tokens, in which stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rl_doctor.analyzer.recompute.registry import Entries
from rl_doctor.analyzer.recompute.stages import Share
from rl_doctor.frozen import frozen

_RANK: Final = "rank"


@frozen
class Stage:
    """How numbers that differ only in ``columns`` become one: "mean" or "sum"."""

    columns: tuple[str, ...]
    how: str


@frozen
class Stages:
    """How the sums of a step become its entries.

    Attributes:
        apart: columns of ``CELL`` that tell apart what is pooled into one quotient.
        steps: what becomes of the quotients, the inner first; each that is left is an entry.
    """

    apart: tuple[str, ...] = ()
    steps: tuple[Stage, ...] = ()


@frozen
class Own:
    """The stages of the definition itself.

    Attributes:
        columns: what tells the sums apart.
        entries: ``Keyed`` by these -> entries.
        how: "mean" of a step's entries, as they are logged, or their "sum".
    """

    columns: tuple[str, ...]
    entries: Callable[[Any], Entries]
    how: str = "mean"


@frozen(eq=False)
class Part:
    """Another average of the same key: the name and the sentence of a ``Hypothesis``, what is summed, and columns needed."""

    name: str
    sentence: str
    share: Share
    needs: tuple[str, ...] = ()


@frozen(eq=False)
class Varied:
    """A key with one of its ingredients exchanged.

    Attributes:
        name: a few words, unique for its key.
        sentence: what the logged number then is or does; follows "the logged <key>".
        shares: what each sequence adds; the averages of several are added up.
        stages: how that becomes entries.
        needs: columns without which it cannot be tried.
        optional: further ones that are read.
        only: which part of a step is taken; see ``cells.KEPT``, or ``rank <n>``.
    """

    name: str
    sentence: str
    shares: tuple[Share, ...]
    stages: Stages | Own
    needs: tuple[str, ...]
    optional: tuple[str, ...] = ()
    only: str = ""

    @property
    def of_ranks(self) -> bool:
        """Whether it tells the ranks apart, or adds them up."""
        return isinstance(self.stages, Stages) and _RANK in (
            *self.stages.apart,
            *(c for s in self.stages.steps for c in s.columns),
        )

    @property
    def at_one_rank(self) -> object:
        """The same for variations that are the same where there is one rank."""
        if not isinstance(self.stages, Stages):
            return self.name
        steps = ((tuple(name for name in stage.columns if name != _RANK), stage.how) for stage in self.stages.steps)
        apart = tuple(name for name in self.stages.apart if name != _RANK)
        return self.only, self.shares, apart, tuple(step for step in steps if step[0])
