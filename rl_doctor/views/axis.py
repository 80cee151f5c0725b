"""Axes whose steps are not those of the value: bins that are equally wide as drawn, and where its numbers stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["log", "signed-log"]

_TICKS: Final = 8
_LEAST: Final = 1e-300
"""Below this a value is taken for 0."""
_APART: Final = 0.6
"""Part of the usual distance below which a number would stand in another."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """A drawn axis.

    Attributes:
        kind: "log", or "signed-log", which is linear near 0 and logarithmic beyond.
        linear: value up to which a signed one is about linear.
        low: position of the lower end.
        high: position of the upper end.
        bins: number of bins between them.
    """

    kind: Kind
    linear: float
    low: float
    high: float
    bins: int

    @property
    def edges(self) -> Floats:
        """Positions of the bins' edges, float64 ``[bins + 1]``."""
        return np.linspace(self.low, self.high, self.bins + 1)

    @property
    def centres(self) -> Floats:
        """Positions of the bins' middles, float64 ``[bins]``."""
        edges = self.edges
        return (edges[1:] + edges[:-1]) / 2

    def position(self, values: Floats | float) -> Floats:
        """Where values stand, float64 ``[n]``; the ends of the axis for those beyond."""
        return np.clip(place(values, self.kind, self.linear), self.low, self.high)

    def value(self, positions: Floats | float) -> Floats:
        """The values that stand there, float64 ``[n]``."""
        at = np.asarray(positions, np.float64)
        return np.power(10.0, at) if self.kind == "log" else np.sinh(at) * self.linear

    def inside(self, value: float) -> bool:
        """Whether a value stands between the ends."""
        return bool(self.low <= place(value, self.kind, self.linear) <= self.high)

    def counted(self, values: Floats, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of items in each bin, int64 ``[bins]``; those beyond an end count in its bin."""
        width = (self.high - self.low) / self.bins
        at = np.clip((self.position(values) - self.low) / width, 0, self.bins - 1).astype(np.int64)
        return np.bincount(at, weights=counts, minlength=self.bins).astype(np.int64)

    def ticks(self, anchor: float) -> tuple[Floats, tuple[str, ...]]:
        """Where numbers stand beside the axis, and the numbers, short; ``anchor`` is among them where it is on the axis."""
        usual = (self.high - self.low) / _TICKS
        rounded = {float(f"{value:.2g}") for value in self.value(np.linspace(self.low, self.high, _TICKS + 1)).tolist()}
        kept: list[tuple[float, float]] = []
        if self.inside(anchor):
            kept.append((float(self.position(anchor)), anchor))
        for value in sorted(rounded, key=abs):
            at = float(self.position(value))
            if self.inside(value) and all(abs(at - other) > _APART * usual for other, _ in kept):
                kept.append((at, value))
        kept.sort()
        return np.array([at for at, _ in kept]), tuple(f"{value:.4g}" for _, value in kept)


def place(values: Floats | float, kind: Kind, linear: float) -> Floats:
    """Where values stand on an axis without ends, float64 ``[n]``."""
    with np.errstate(divide="ignore", over="ignore"):
        if kind == "log":
            return np.asarray(np.log10(np.maximum(values, _LEAST)), np.float64)
        return np.asarray(np.arcsinh(np.asarray(values, np.float64) / linear), np.float64)
