"""What is counted over the sequence rows alone: how many there are, falling steps, repeated rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen
from rl_doctor.store.codes import codes
from rl_doctor.store.plan import Fragment, Segment, rows_in_order, windows_of
from rl_doctor.store.rows import Rows, concatenate

REPEAT_KEYS: Final = ("epoch", "microbatch", "minibatch", "rank", "uid")
"""With the step, the keys of a sequence row: two rows that share them are the same row twice."""


@frozen
class Counts:
    """Counts over all sequence rows."""

    sequences: int = 0
    tokens: int = 0
    repeated: int = 0


def count(fragments: Sequence[Fragment], segments: Sequence[Segment], columns: Collection[str]) -> Counts:
    """Count rows, tokens and repeated rows, step by step.

    Args:
        fragments: the run's fragments.
        segments: the run's segments.
        columns: canonical columns that the run has.
    """
    keys = [name for name in REPEAT_KEYS if name in columns]
    total = Counts()
    pieces = rows_in_order(fragments, windows_of(segments), keys)
    for _, step in groupby(pieces, key=lambda piece: piece[0]):
        total = _add(total, (rows for _, rows in step), with_uid="uid" in keys)
    return total


def falls(steps: Iterable[tuple[int, int, int]]) -> int:
    """Number of places where the step falls from one row to the next.

    Args:
        steps: for each stretch of rows, in order: its first step, its last step, the number of falls within it.
    """
    number, last = 0, None
    for first, final, within in steps:
        number += within + int(last is not None and first < last)
        last = final
    return number


def repeats(columns: Mapping[str, NDArray[Any]]) -> int:
    """Number of rows of one step that repeat the keys of an earlier one; rows without a uid never do."""
    uid = columns["uid"]
    known: NDArray[np.bool_] = uid != np.array(None, np.object_)
    if not known.any():
        return 0
    keys = [
        codes(uid[known]),
        *(columns[name][known].astype(np.int64) for name in REPEAT_KEYS if name in columns and name != "uid"),
    ]
    return int(known.sum()) - len(np.unique(np.stack(keys, axis=1), axis=0))


def _add(total: Counts, pieces: Iterator[Rows], *, with_uid: bool) -> Counts:
    sequences, tokens = total.sequences, total.tokens
    held: list[Rows] = []
    for rows in pieces:
        sequences += rows.n_sequences
        tokens += rows.n_tokens
        if with_uid:
            held.append(Rows(rows.columns, np.zeros(rows.n_sequences + 1, np.int64)))
    return Counts(sequences, tokens, total.repeated + (repeats(concatenate(held).columns) if held else 0))
