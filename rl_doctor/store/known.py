"""What was found out of a run's rows before, so that only later steps are looked at again."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from rl_doctor.store.index import Counts, count
from rl_doctor.store.plan import Fragment, Segment, rows_in_order, windows_of
from rl_doctor.store.presence import empty_floats, floats
from rl_doctor.store.rows import Rows

_THROUGH: Final = "through"


def look(
    known: dict[str, Any],
    fragments: Sequence[Fragment],
    segments: Sequence[Segment],
    columns: Collection[str],
    proven: Callable[[str], bool],
    null: Iterable[str],
) -> tuple[Counts, tuple[str, ...]]:
    """Counts over all rows, and the float columns in which every value is null or NaN; see ``count`` and ``empty_floats``.

    Args:
        known: what was found out up to a step, empty for nothing; holds what was found out now, afterwards.
        fragments: the run's fragments.
        segments: the run's segments.
        columns: canonical columns that the run has.
        proven: whether a footer proves that the column has a value that is not NaN.
        null: canonical columns that are null everywhere.
    """
    through = known.get(_THROUGH, -math.inf)
    later = [segment for segment in segments if segment.step > through]
    fresh = count(fragments, later, columns)
    counts = Counts(*(before + more for before, more in zip(known.get("counts", (0, 0, 0)), _row(fresh), strict=True)))
    valued = set(known.get("valued", ()))

    def has_number(name: str) -> bool:
        return name in valued or proven(name)

    def read(name: str) -> Iterator[Rows]:
        return (rows for _, rows in rows_in_order(fragments, windows_of(later), [name]))

    null = list(null)
    empty = empty_floats(columns, has_number, read, null)
    last = max((segment.step for segment in later), default=None)
    if last is not None:
        found = sorted(name for name in floats(columns) if name not in empty and not proven(name))
        known.update({_THROUGH: last, "counts": _row(counts), "valued": sorted({*valued, *found})})
    return counts, empty


def _row(counts: Counts) -> list[int]:
    return [counts.sequences, counts.tokens, counts.repeated]
