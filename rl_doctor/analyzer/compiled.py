"""The passes of ``kernels`` compiled by numba, row by row in pieces that stay in the first cache.

The same sums to a relative error of 1e-13 (the exponential is another one, and so is the order of adding within a row); in bits
as independent of how rows are cut into batches. Elementwise loops and sums are apart, because only sums may be reordered:
that lets both use vector instructions. Arguments that may be absent come as empty arrays.
"""

from __future__ import annotations

from math import exp, expm1, inf, nan
from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from rl_doctor.analyzer.kernels import LARGEST, NOISE, Clipping, PairRows, PolicyRows
from rl_doctor.analyzer.states import Extremes
from rl_doctor.analyzer.stretches import Counts, Floats, Single, Stretches

_PIECE: Final = 1024
_LOG2E: Final = 1.4426950408889634
_LN2_HIGH: Final = 0.6931471803691238
_LN2_LOW: Final = 1.9082149292705877e-10
_ROUNDING: Final = 6755399441055744.0
"""1.5 * 2**52: added to a float64 and taken away again it leaves the nearest whole number."""
_BOUND: Final = 700.0
"""Beyond this, and for NaN, the exponential is taken value by value."""

_plain = njit(cache=True, fastmath={"contract"}, error_model="numpy")
_free = njit(cache=True, fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")


@_plain
def _series(r):
    """(exp(r) - 1 - r) / r^2 for abs r below .35, by Taylor's series to a relative error of 1e-17."""
    q = 1.0 / 1307674368000.0
    q = q * r + 1.0 / 87178291200.0
    q = q * r + 1.0 / 6227020800.0
    q = q * r + 1.0 / 479001600.0
    q = q * r + 1.0 / 39916800.0
    q = q * r + 1.0 / 3628800.0
    q = q * r + 1.0 / 362880.0
    q = q * r + 1.0 / 40320.0
    q = q * r + 1.0 / 5040.0
    q = q * r + 1.0 / 720.0
    q = q * r + 1.0 / 120.0
    q = q * r + 1.0 / 24.0
    q = q * r + 1.0 / 6.0
    return q * r + 0.5


@_plain
def _exponentials(x, n, bits, scale, power, k3):
    """Fill exp(x) and exp(x) - 1 - x of the first n values; ``scale`` is ``bits`` seen as float64."""
    fine = 0
    for i in range(n):
        fine += abs(x[i]) <= _BOUND
    if fine < n:
        for i in range(n):
            power[i] = exp(x[i])
            k3[i] = x[i] * x[i] * _series(x[i]) if abs(x[i]) < 0.25 else expm1(x[i]) - x[i]
            if x[i] == inf:
                k3[i] = inf
        return
    for i in range(n):
        whole = (x[i] * _LOG2E + _ROUNDING) - _ROUNDING
        r = (x[i] - whole * _LN2_HIGH) - whole * _LN2_LOW
        above = r * r * _series(r)
        bits[i] = (np.int64(whole) + 1023) << 52
        power[i] = r + above
        k3[i] = above
    for i in range(n):
        grown = scale[i] * power[i]
        power[i] = grown + scale[i]
        k3[i] = k3[i] if scale[i] == 1.0 else (grown + (scale[i] - 1.0)) - x[i]


@_free
def _total(values, n):
    total = 0.0
    for i in range(n):
        total += values[i]
    return total


@_free
def _powers(values, n):
    """Sums of the values, of their squares and of their absolute values."""
    first, second, size = 0.0, 0.0, 0.0
    for i in range(n):
        first += values[i]
        second += values[i] * values[i]
        size += abs(values[i])
    return first, second, size


@_plain
def _stretch(values, n, low, high):
    """Take the values into extremes of their own place, ``low`` and ``high``; NaN are left out. One place can use vectors."""
    for i in range(n):
        low[i] = min(low[i], values[i])
        high[i] = max(high[i], values[i])


@_plain
def _widen(column, out):
    for i in range(len(column)):
        out[i] = np.float64(column[i])


@_plain
def _subtract(y, x, out):
    for i in range(len(y)):
        out[i] = np.float64(y[i]) - np.float64(x[i])


@_plain
def _clamp(values, n, bound):
    if bound == inf:
        return
    for i in range(n):
        values[i] = min(max(values[i], -bound), bound) if values[i] == values[i] else values[i]


@_plain
def _loss(ratio, gain, n, low, high, dual, out):
    for i in range(n):
        cut = min(max(ratio[i], low), high)
        loss = max(-gain[i] * ratio[i], -gain[i] * cut)
        loss = min(loss, -gain[i] * dual) if gain[i] < 0.0 else loss
        out[i] = loss if ratio[i] == ratio[i] and gain[i] == gain[i] else nan


@_plain
def _tally(ratio, gain, n, low, high, dual, counts, row):
    below, above, bound_low, bound_high, dual_bound, unknown = 0, 0, 0, 0, 0, 0
    for i in range(n):
        below += ratio[i] < low
        above += ratio[i] > high
        bound_low += (ratio[i] < low) & (gain[i] < 0.0)
        bound_high += (ratio[i] > high) & (gain[i] > 0.0)
        dual_bound += (ratio[i] > dual) & (gain[i] < 0.0)
        unknown += gain[i] != gain[i]
    counts[1, row] += below
    counts[2, row] += above
    counts[3, row] += bound_low
    counts[4, row] += bound_high
    counts[5, row] += dual_bound
    counts[7, row] += unknown


@_plain
def _policy(new, old, pieces, classes, advantage, weight, bounds, sums, counts, tops, ends):  # noqa: PLR0913, PLR0917
    low, high, dual, clamp = bounds
    bits = np.empty(_PIECE, np.int64)
    scale = bits.view(np.float64)
    single = np.empty(_PIECE, np.float32)
    word = single.view(np.uint32)
    x, ratio, k3, gain, loss = (
        np.empty(_PIECE), np.empty(_PIECE), np.empty(_PIECE), np.zeros(_PIECE), np.empty(_PIECE),
    )  # fmt: skip
    rows, starts, stops = pieces
    for piece in range(len(rows)):
        row = rows[piece]
        top = tops[classes[row]]
        for start in range(starts[piece], stops[piece], _PIECE):
            n = min(_PIECE, stops[piece] - start)
            _subtract(new[start : start + n], old[start : start + n], x)
            _clamp(x, n, clamp)
            _exponentials(x, n, bits, scale, ratio, k3)
            first, second, size = _powers(x, n)
            sums[0, row] += _total(ratio, n)
            sums[1, row] += first
            sums[2, row] += second
            sums[3, row] += _total(k3, n)
            sums[4, row] += size
            zeros, unknown = 0, 0
            for i in range(n):
                single[i] = np.float32(x[i])
                zeros += x[i] == 0.0
                unknown += x[i] != x[i]
            counts[0, row] += zeros
            counts[6, row] += unknown
            for i in range(n):
                top[word[i] >> 16] += 1
            _stretch(ratio, n, ends[0], ends[1])
            if high < inf:
                if len(advantage):
                    _widen(advantage[start : start + n], gain)
                _tally(ratio, gain, n, low, high, dual, counts, row)
                if len(advantage):
                    _loss(ratio, gain, n, low, high, dual, loss)
                    if len(weight):
                        _widen(weight[start : start + n], gain)
                        for i in range(n):
                            loss[i] *= gain[i]
                    sums[5, row] += _total(loss, n)


def policy(
    new: Single,
    old: Single,
    tokens: Stretches,
    clipping: Clipping,
    classes: NDArray[np.int8],
    *,
    advantage: Single | None = None,
    weight: Single | None = None,
) -> PolicyRows:
    """See ``kernels.policy``."""
    rows = len(tokens.edges) - 1
    sums, counts = np.zeros((6, rows)), np.zeros((8, rows), np.int64)
    tops = np.zeros((int(classes.max(initial=0)) + 1, 1 << 16), np.int32)
    ends = _no_ends()
    ranged = clipping.low is not None and clipping.high is not None
    bounds = (
        1.0 - (clipping.low or 0.0),
        1.0 + (clipping.high or 0.0) if ranged else inf,
        inf if clipping.dual is None else clipping.dual,
        inf if clipping.clamp is None else clipping.clamp,
    )
    absent = np.empty(0, np.float32)
    gain, factor = (absent if column is None else column for column in (advantage, weight))
    _policy(_fixed(new), _fixed(old), _pieces(tokens), *map(_fixed, (classes, gain, factor)), bounds, sums, counts, tops, ends)
    of_ratio = Extremes(float(ends[0].min()), float(ends[1].max()), int(tokens.edges[-1]), int(counts[6].sum()))
    return PolicyRows(sums, counts, tops.astype(np.int64), of_ratio)


@_plain
def _divergence(x_of, to, pieces, inner, outer, sums):
    bits = np.empty(_PIECE, np.int64)
    scale = bits.view(np.float64)
    x, power, k3 = np.empty(_PIECE), np.empty(_PIECE), np.empty(_PIECE)
    rows, starts, stops = pieces
    for piece in range(len(rows)):
        row = rows[piece]
        for start in range(starts[piece], stops[piece], _PIECE):
            n = min(_PIECE, stops[piece] - start)
            _subtract(to[start : start + n], x_of[start : start + n], x)
            first, second, size = _powers(x, n)
            sums[0, row] += first
            sums[1, row] += second
            sums[3, row] += size
            _clamp(x, n, inner)
            _exponentials(x, n, bits, scale, power, k3)
            _clamp(k3, n, outer)
            sums[2, row] += _total(k3, n)


def divergence(x_of: Single, to: Single, tokens: Stretches, clamps: tuple[float | None, float | None]) -> Floats:
    """See ``kernels.divergence``."""
    sums = np.zeros((4, len(tokens.edges) - 1))
    inner, outer = (inf if clamp is None else float(clamp) for clamp in clamps)
    _divergence(_fixed(x_of), _fixed(to), _pieces(tokens), inner, outer, sums)
    return sums


@_plain
def _pair(x, y, pieces, sums, ends, sides):
    bits = np.empty(_PIECE, np.int64)
    scale = bits.view(np.float64)
    d, power, k3 = np.empty(_PIECE), np.empty(_PIECE), np.empty(_PIECE)
    rows, starts, stops = pieces
    for piece in range(len(rows)):
        row = rows[piece]
        for start in range(starts[piece], stops[piece], _PIECE):
            n = min(_PIECE, stops[piece] - start)
            _subtract(y[start : start + n], x[start : start + n], d)
            _exponentials(d, n, bits, scale, power, k3)
            _, _, size = _powers(d, n)
            sums[0, row] += size
            sums[1, row] += _total(power, n)
            sums[2, row] += _total(k3, n)
            _stretch(d, n, ends[0], ends[1])
            below, apart = 0, 0
            for i in range(n):
                below += d[i] < -NOISE
                apart += abs(d[i]) > NOISE
            sides[0] += below
            sides[1] += apart


def pair(x: Single, y: Single, tokens: Stretches) -> PairRows:
    """See ``kernels.pair``."""
    sums, ends, sides = np.zeros((3, len(tokens.edges) - 1)), _no_ends(), np.zeros(2, np.int64)
    _pair(_fixed(x), _fixed(y), _pieces(tokens), sums, ends, sides)
    of_difference = Extremes(float(ends[0].min()), float(ends[1].max()), int(tokens.edges[-1]))
    return PairRows(sums, of_difference, int(sides[0]), int(sides[1]))


@_plain
def _tail(x, y, pieces, sums):
    bits = np.empty(_PIECE, np.int64)
    scale = bits.view(np.float64)
    d, power, k3 = np.empty(_PIECE), np.empty(_PIECE), np.empty(_PIECE)
    chance, held = np.empty(_PIECE), np.empty(_PIECE)
    rows, starts, stops = pieces
    for piece in range(len(rows)):
        row = rows[piece]
        for start in range(starts[piece], stops[piece], _PIECE):
            n = min(_PIECE, stops[piece] - start)
            _widen(x[start : start + n], d)
            _exponentials(d, n, bits, scale, chance, k3)
            _subtract(y[start : start + n], x[start : start + n], d)
            _exponentials(d, n, bits, scale, power, k3)
            for i in range(n):
                chance[i] = abs(chance[i] * (k3[i] + d[i]))
                held[i] = min(power[i], LARGEST)
                power[i] *= power[i]
            sums[0, row] += _total(power, n)
            sums[1, row] += _total(held, n)
            sums[2, row] += _total(chance, n)


def tail(x: Single, y: Single, tokens: Stretches) -> Floats:
    """See ``kernels.tail``."""
    sums = np.zeros((3, len(tokens.edges) - 1))
    _tail(_fixed(x), _fixed(y), _pieces(tokens), sums)
    return sums


@_free
def _moments(x, y, pieces, sums):
    rows, starts, stops = pieces
    for piece in range(len(rows)):
        first, second, left, right, product = 0.0, 0.0, 0.0, 0.0, 0.0
        left_part, right_part = x[starts[piece] : stops[piece]], y[starts[piece] : stops[piece]]
        for i in range(len(left_part)):
            a, b = np.float64(left_part[i]), np.float64(right_part[i])
            first += a
            second += b
            left += a * a
            right += b * b
            product += a * b
        sums[0, rows[piece]] += first
        sums[1, rows[piece]] += second
        sums[2, rows[piece]] += left
        sums[3, rows[piece]] += right
        sums[4, rows[piece]] += product


def moments(x: Single, y: Single, tokens: Stretches) -> Floats:
    """See ``kernels.moments``."""
    sums = np.zeros((5, len(tokens.edges) - 1))
    _moments(_fixed(x), _fixed(y), _pieces(tokens), sums)
    return sums


@_free
def _distance(left, right, pieces, sums):
    rows, starts, stops = pieces
    for piece in range(len(rows)):
        total = 0.0
        one, other = left[starts[piece] : stops[piece]], right[starts[piece] : stops[piece]]
        for i in range(len(one)):
            total += abs(np.float64(one[i]) - np.float64(other[i]))
        sums[rows[piece]] += total


def distances(pairs: tuple[tuple[Single, Single], ...], tokens: Stretches) -> Floats:
    """See ``kernels.distances``."""
    sums = np.zeros((len(pairs), len(tokens.edges) - 1))
    for index, (left, right) in enumerate(pairs):
        _distance(_fixed(left), _fixed(right), _pieces(tokens), sums[index])
    return sums


@_plain
def _span(values, pieces, ends):
    unknown = 0
    _, starts, stops = pieces
    for piece in range(len(starts)):
        for start in range(starts[piece], stops[piece], _PIECE):
            part = values[start : min(start + _PIECE, stops[piece])]
            _stretch(part, len(part), ends[0], ends[1])
            for i in range(len(part)):
                unknown += part[i] != part[i]
    return unknown


def span(values: Single, tokens: Stretches) -> tuple[float, float]:
    """See ``kernels.span``."""
    ends = _no_ends().astype(values.dtype)
    unknown = _span(_fixed(values), _pieces(tokens), ends)
    return (float(ends[0].min()), float(ends[1].max())) if tokens.edges[-1] and not unknown else (nan, nan)


@_free
def _powers_of(values, pieces, sums, zeros):
    rows, starts, stops = pieces
    for piece in range(len(rows)):
        first, second, size, count = 0.0, 0.0, 0.0, 0
        part = values[starts[piece] : stops[piece]]
        for i in range(len(part)):
            value = np.float64(part[i])
            first += value
            second += value * value
            size += abs(value)
            count += value == 0.0
        sums[0, rows[piece]] += first
        sums[1, rows[piece]] += second
        sums[2, rows[piece]] += size
        zeros[rows[piece]] += count


def powers(values: Single, tokens: Stretches) -> tuple[Floats, Counts]:
    """See ``kernels.powers``."""
    rows = len(tokens.edges) - 1
    sums, zeros = np.zeros((3, rows)), np.zeros(rows, np.int64)
    _powers_of(_fixed(values), _pieces(tokens), sums, zeros)
    return sums, zeros


@_free
def _column(values, pieces, sums):
    rows, starts, stops = pieces
    for piece in range(len(rows)):
        total = 0.0
        part = values[starts[piece] : stops[piece]]
        for i in range(len(part)):
            total += np.float64(part[i])
        sums[rows[piece]] += total


def column(values: NDArray[Any], tokens: Stretches) -> Floats:
    """See ``kernels.column``."""
    sums = np.zeros(len(tokens.edges) - 1)
    _column(_fixed(values), _pieces(tokens), sums)
    return sums


def _no_ends() -> Floats:
    return np.stack([np.full(_PIECE, inf), np.full(_PIECE, -inf)])


def _fixed(array: NDArray[Any]) -> NDArray[Any]:
    """The array, read-only: numba compiles for read-only and for writable arrays apart, and columns are of both kinds."""
    view = array.view()
    view.flags.writeable = False
    return view


def _pieces(tokens: Stretches) -> tuple[Counts, ...]:
    return tuple(map(_fixed, tokens.pieces))
