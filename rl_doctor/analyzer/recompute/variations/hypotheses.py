"""Other values of a key as hypotheses: each is one more sum over the same parts, with the stages of the definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rl_doctor.analyzer.recompute.registry import Entries, Hypothesis
from rl_doctor.analyzer.recompute.stages import Terms, sums_by
from rl_doctor.analyzer.recompute.variations.measures import Part
from rl_doctor.analyzer.states import Keyed

Staged = Callable[[Terms], Callable[[Keyed], Entries]]
"""Which averages to add up -> how those of the micro-batches become entries."""


def parted(
    by: tuple[str, ...], staged: Staged, needs: tuple[str, ...], others: Iterable[Part],
    optional: tuple[str, ...] = ("grad_accumulation",),
) -> tuple[Hypothesis, ...]:  # fmt: skip
    """A hypothesis for each part.

    Args:
        by: columns that tell the micro-batches apart.
        staged: the stages of the key.
        needs: columns that every part needs.
        others: other averages of the key.
        optional: as those of the key.
    """

    def hypothesis(part: Part) -> Hypothesis:
        reduction = sums_by(by, part.share, needs=(*needs, *part.needs), optional=optional)
        return Hypothesis(part.name, part.sentence, reduction, staged(((0, 1.0),)))

    return tuple(map(hypothesis, others))
