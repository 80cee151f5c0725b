"""A number of a token that is not known, told apart from a NaN that was computed.

It is a NaN with bits of its own: arithmetic treats it as any other, and copying, slicing and Parquet keep it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BITS: Final = np.array(0x7FC0A11A, np.uint32)
UNKNOWN: Final = _BITS.view(np.float32)
"""What a null is read as, and a column in the rows that lack it, float32."""


def unknown(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where float32 values are not known, of the same shape; a NaN that was recorded is known."""
    found: NDArray[np.bool_] = values.view(np.uint32) == _BITS
    return found
