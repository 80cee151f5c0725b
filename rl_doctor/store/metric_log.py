"""What the trainer itself logged: long-form (step, name, value)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _empty(dtype: type) -> Any:
    return field(default_factory=lambda: np.empty(0, dtype))


@dataclass(frozen=True, slots=True, eq=False)
class MetricLog:
    """Logged values, in the order of steps; a name logged twice at a step keeps the last.

    Attributes:
        steps: int64 ``[n]``.
        names: object ``[n]``, native names.
        values: float64 ``[n]``.
        splits: object ``[n]``, "train" or "eval".
    """

    steps: NDArray[np.int64] = _empty(np.int64)
    names: NDArray[np.object_] = _empty(np.object_)
    values: NDArray[np.float64] = _empty(np.float64)
    splits: NDArray[np.object_] = _empty(np.object_)

    def __len__(self) -> int:
        return len(self.steps)

    def series(self, name: str, split: str = "train") -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps and values of one native name."""
        chosen = (self.names == name) & (self.splits == split)
        return self.steps[chosen], self.values[chosen]
