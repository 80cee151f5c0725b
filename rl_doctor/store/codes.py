"""Equal values as equal small integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def codes(values: NDArray[Any]) -> NDArray[np.int64]:
    """Codes 0..k-1, int64 ``[n]``, the same for equal values; None and NaN are values like any other."""
    if values.dtype.kind != "O":
        found: NDArray[np.int64] = np.unique(values, return_inverse=True)[1]
        return found
    plain = values.tolist()
    distinct = dict.fromkeys(plain)
    if len(distinct) == len(plain):
        return np.arange(len(plain))
    known = {value: code for code, value in enumerate(distinct)}
    return np.fromiter(map(known.__getitem__, plain), np.int64, len(plain))
