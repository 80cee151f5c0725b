"""The trainer's own numbers against the recomputed ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """One logged metric against its recomputation.

    Attributes:
        name: native name, as the trainer logged it.
        metric: canonical metric that it corresponds to, or None.
        unit: unit of both.
        steps: int64 ``[n]``, steps at which both exist.
        logged: float64 ``[n]``.
        recomputed: float64 ``[n]``.
        tolerance: float64 ``[n]``, what rounding in the trainer and in the log can explain.
    """

    name: str
    metric: str | None
    unit: str
    steps: NDArray[np.int64]
    logged: NDArray[np.float64]
    recomputed: NDArray[np.float64]
    tolerance: NDArray[np.float64]
