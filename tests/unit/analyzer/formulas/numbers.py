"""Numbers of 50 digits that carry the sum of the absolute terms that they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import mpmath
import numpy as np

mpmath.mp.dps = 50
LARGEST = mpmath.mpf(float(np.finfo(np.float64).max))
TINY = mpmath.mpf(2) ** -1022

Like = Union["Number", float, int]


class Number:
    """A value and its size: of a sum the sum of the sizes, of a product their product, of a function what it magnifies."""

    __slots__ = ("size", "value")

    def __init__(self, value: Any, size: Any = None) -> None:
        self.value = mpmath.mpf(value)
        self.size = abs(self.value) if size is None else mpmath.mpf(size)

    def __add__(self, other: Like) -> Number:
        other = of(other)
        return Number(self.value + other.value, self.size + other.size)

    def __sub__(self, other: Like) -> Number:
        other = of(other)
        return Number(self.value - other.value, self.size + other.size)

    def __mul__(self, other: Like) -> Number:
        other = of(other)
        return Number(self.value * other.value, self.size * other.size)

    def __truediv__(self, other: Like) -> Number:
        other = of(other)
        if other.value == 0:
            return Number(mpmath.nan if self.value == 0 else mpmath.inf * mpmath.sign(self.value), 0)
        scale = 1 / abs(other.value)
        return Number(self.value / other.value, self.size * scale * other.size * scale)

    def __radd__(self, other: Like) -> Number:
        return of(other) + self

    def __rsub__(self, other: Like) -> Number:
        return of(other) - self

    def __rmul__(self, other: Like) -> Number:
        return of(other) * self

    def __rtruediv__(self, other: Like) -> Number:
        return of(other) / self

    def __neg__(self) -> Number:
        return Number(-self.value, self.size)

    def __abs__(self) -> Number:
        return Number(abs(self.value), self.size)

    def __lt__(self, other: Like) -> bool:
        return bool(self.value < of(other).value)

    def __le__(self, other: Like) -> bool:
        return bool(self.value <= of(other).value)

    def __gt__(self, other: Like) -> bool:
        return bool(self.value > of(other).value)

    def __ge__(self, other: Like) -> bool:
        return bool(self.value >= of(other).value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == of(other).value)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash(self.value)

    @property
    def unknown(self) -> bool:
        return bool(mpmath.isnan(self.value))


def of(value: Like) -> Number:
    return value if isinstance(value, Number) else Number(value)


NAN = Number(mpmath.nan, 0)


def exp(x: Like) -> Number:
    x = of(x)
    value = mpmath.exp(x.value)
    return Number(value, value * (1 + x.size) if value else 0)


def log(x: Like) -> Number:
    x = of(x)
    if x.value == 0:
        return Number(-mpmath.inf, 0)
    value = mpmath.log(x.value)
    return Number(value, abs(value) + x.size / abs(x.value))


def sqrt(x: Like) -> Number:
    x = of(x)
    value = mpmath.sqrt(x.value)
    return Number(value, value * x.size / x.value if x.value else 0)


def least(a: Like, b: Like) -> Number:
    a, b = of(a), of(b)
    return NAN if a.unknown or b.unknown else min(a, b)


def most(a: Like, b: Like) -> Number:
    a, b = of(a), of(b)
    return NAN if a.unknown or b.unknown else max(a, b)


def clip(x: Like, low: Like, high: Like) -> Number:
    return least(most(x, low), high)


def total(values: Sequence[Number]) -> Number:
    found = Number(0)
    for value in values:
        found = found + value
    return found


def average(values: Sequence[Number]) -> Number:
    return total(values) / len(values) if values else NAN


def scatter(values: Sequence[Number], ddof: int) -> Number:
    if len(values) <= ddof:
        return NAN
    centre = average(values)
    return total([(x - centre) * (x - centre) for x in values]) / (len(values) - ddof)


def parts(values: Sequence[Any], splits: Sequence[int]) -> list[list[Any]]:
    return [list(values[splits[i] : splits[i + 1]]) for i in range(len(splits) - 1)]


def exact(value: Any) -> Any:
    """An argument as plain Python: floats as numbers of 50 digits."""
    if isinstance(value, np.ndarray):
        return [exact(item) for item in value] if value.dtype.kind == "f" else value.tolist()
    if isinstance(value, float | np.floating):
        return Number(float(value))
    if isinstance(value, tuple):
        return tuple(exact(item) for item in value)
    return value


def agrees(found: Any, expected: Any) -> bool:
    """Whether a float or a flag is the expected one, to 1e-12 of the sum of its absolute terms."""
    if not isinstance(expected, Number):
        return bool(found == expected)
    if expected.unknown or mpmath.isinf(expected.value) or abs(expected.value) > LARGEST:
        value = float(expected.value) if abs(expected.value) <= LARGEST or expected.unknown else expected.value * mpmath.inf
        return str(float(found)) == str(float(value))
    if not np.isfinite(found):
        return False
    return bool(abs(mpmath.mpf(float(found)) - expected.value) <= mpmath.mpf("1e-12") * expected.size + TINY)


def flat(values: Any) -> list[Any]:
    """Results as one list."""
    if isinstance(values, Number | bool | int | float | np.generic):
        return [values]
    if isinstance(values, np.ndarray):
        return list(values.ravel())
    return [item for value in values for item in flat(value)]
