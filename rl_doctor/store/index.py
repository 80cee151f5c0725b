"""What is counted over the sequence rows alone: order of steps, repeated rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

REPEAT_KEYS: Final = ("step", "epoch", "minibatch", "microbatch", "rank", "uid")
"""Keys of a sequence row; two rows that share them are the same row twice."""


def falls(steps: Iterable[NDArray[np.int64]]) -> int:
    """Number of places where the step falls from one row to the next, over stretches of rows that follow each other."""
    count, last = 0, None
    for stretch in steps:
        if not len(stretch):
            continue
        count += int((np.diff(stretch) < 0).sum()) + int(last is not None and stretch[0] < last)
        last = int(stretch[-1])
    return count


def repeats(columns: Mapping[str, NDArray[Any]]) -> int:
    """Number of rows of one step that repeat the keys of an earlier one; rows without a uid never do."""
    uid = columns.get("uid")
    if uid is None:
        return 0
    known = np.array([value is not None for value in uid], np.bool_)
    if not known.any():
        return 0
    import pyarrow as pa

    codes = pa.array(uid[known], pa.string()).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    keys = [codes.astype(np.int64)]
    keys += [columns[name][known].astype(np.int64) for name in REPEAT_KEYS if name != "uid" and name in columns]
    return int(known.sum()) - len(np.unique(np.stack(keys, axis=1), axis=0))
