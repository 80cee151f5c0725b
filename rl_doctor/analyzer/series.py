"""A metric over steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen


@frozen(eq=False)
class Series:
    """One metric per step.

    Attributes:
        metric: canonical name.
        unit: unit of ``values``.
        steps: int64 ``[n]``, strictly increasing.
        values: float64 ``[n]``; NaN where the step has nothing to measure (then ``counts`` is 0) or the data themselves are NaN.
        counts: int64 ``[n]``, the number of tokens, sequences or groups behind each value.
    """

    metric: str
    unit: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.steps)

    def measured(self) -> Series:
        """The steps whose value is a finite number measured on at least one item."""
        return self.where(np.isfinite(self.values) & (self.counts > 0))

    def where(self, keep: NDArray[np.bool_]) -> Series:
        """The steps where ``keep``, ``[n]``, holds."""
        return Series(self.metric, self.unit, self.steps[keep], self.values[keep], self.counts[keep])
