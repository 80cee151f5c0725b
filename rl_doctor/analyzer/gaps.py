"""Steps that a run has no rows of, between others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen

_SHOWN: Final = 5


@frozen
class Gap:
    """Steps that a run should have and has not.

    Attributes:
        first: the first of them, by the usual distance of steps.
        last: the last of them.
        missing: how many.
    """

    first: int
    last: int
    missing: int


def gaps_in(steps: NDArray[np.int64]) -> list[Gap]:
    """Where steps, increasing, are further apart than they usually are in this run."""
    if len(steps) < 3:
        return []
    apart = np.diff(steps)
    usual = int(np.median(apart))
    wide = np.flatnonzero(apart > usual)
    return [
        Gap(int(steps[at]) + usual, int(steps[at + 1]) - usual, max((int(apart[at]) - 1) // usual, 1))
        for at in wide.tolist()
        if int(apart[at]) >= 2 * usual
    ]


def gap_note(gaps: Sequence[Gap]) -> str:
    """What is said of gaps in one line; at least one is given."""
    missing = sum(gap.missing for gap in gaps)
    named = [f"{gap.first}-{gap.last}" if gap.last > gap.first else str(gap.first) for gap in gaps[:_SHOWN]]
    which = ", ".join(named) + (f" and {len(gaps) - _SHOWN} more gaps" if len(gaps) > _SHOWN else "")
    return f"no rows of {'1 step' if missing == 1 else f'{missing} steps'} between the first and the last: {which}"
