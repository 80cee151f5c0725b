"""The loops of ``compiled``, which numba makes machine code of: row by row, in pieces that stay in the first cache.

Arrays come as pointers, two-dimensional ones flat with ``size`` columns, so that nothing here allocates, raises or calls: the
machine code needs nothing of numba. Elementwise loops and sums are apart, because only sums may be reordered: that lets both use
vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any, Final

import numpy as np
from numba import cfunc as make_cfunc
from numba import config, njit, types

from rl_doctor.analyzer.kernels import LARGEST, NOISE
from rl_doctor.analyzer.machine import KINDS, PIECE

_LOG2E: Final = 1.4426950408889634
_LN2_HIGH: Final = 0.6931471803691238
_LN2_LOW: Final = 1.9082149292705877e-10
_ROUNDING: Final = 6755399441055744.0
"""1.5 * 2**52: added to a float64 and taken away again it leaves the nearest whole number."""
_BOUND: Final = 700.0
"""Beyond this, and for NaN, the exponential is the square of that of half the value."""
_TOPS: Final = 1 << 16

_OPTIONS: Final[dict[str, Any]] = {"fastmath": {"contract"}, "error_model": "numpy"}
_plain = njit(**_OPTIONS)
_free = njit(fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")


def entry(name: str, column: str) -> Any:
    """The loop ``name`` compiled for columns of a type, ``float32`` or ``float64``, as a function in C's calling convention."""
    kinds = {
        "c": types.CPointer(getattr(types, column)), "k": types.CPointer(getattr(types, column.replace("float", "int"))),
        "f": types.CPointer(types.float64), "i": types.CPointer(types.int64), "b": types.CPointer(types.int8),
        "s": types.CPointer(types.float32), "u": types.CPointer(types.uint32), "t": types.CPointer(types.int32),
        "n": types.int64, "d": types.float64,
    }  # fmt: skip
    return make_cfunc(types.void(*(kinds[kind] for kind in KINDS[name].replace(" ", ""))), **_OPTIONS)(_LOOPS[name])


def assembly(name: str, column: str) -> tuple[str, str]:
    """The same as LLVM's assembly, as numba writes it before it optimises anything, and the function's symbol there.

    Numba vectorises for the width that LLVM takes by default, and cannot be told another one for a single function.
    """
    usual, config.OPT = config.OPT, type(config.OPT)(0)
    try:
        made = entry(name, column)
    finally:
        config.OPT = usual
    return made.inspect_llvm(), made.native_name


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
        _wild(x, n, bits, scale, power, k3)
        return
    for i in range(n):
        whole = (x[i] * _LOG2E + _ROUNDING) - _ROUNDING
        r = (x[i] - whole * _LN2_HIGH) - whole * _LN2_LOW
        above = r * r * _series(r)
        bits[i] = (int(whole) + 1023) << 52
        power[i] = r + above
        k3[i] = above
    for i in range(n):
        grown = scale[i] * power[i]
        power[i] = grown + scale[i]
        k3[i] = k3[i] if scale[i] == 1.0 else (grown + (scale[i] - 1.0)) - x[i]


@_plain
def _wild(x, n, bits, scale, power, k3):
    """The same for any values."""
    for i in range(n):
        half = min(max(0.5 * x[i], -_BOUND), _BOUND) if x[i] == x[i] else 0.0
        whole = (half * _LOG2E + _ROUNDING) - _ROUNDING
        r = (half - whole * _LN2_HIGH) - whole * _LN2_LOW
        bits[i] = (int(whole) + 1023) << 52
        power[i] = r + r * r * _series(r)
    for i in range(n):
        root = scale[i] * power[i] + scale[i]
        power[i] = root * root if x[i] == x[i] else nan
        k3[i] = x[i] * x[i] * _series(x[i]) if abs(x[i]) < 0.25 else (power[i] - 1.0) - x[i]
        k3[i] = inf if x[i] == inf else k3[i]


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
def _widen(column, start, n, out):
    for i in range(n):
        out[i] = np.float64(column[start + i])


@_plain
def _subtract(y, x, start, n, out):
    for i in range(n):
        out[i] = np.float64(y[start + i]) - np.float64(x[start + i])


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
def _tally(ratio, gain, n, low, high, dual, counts, row, size):  # noqa: PLR0913, PLR0917
    below, above, bound_low, bound_high, dual_bound, unknown = 0, 0, 0, 0, 0, 0
    for i in range(n):
        below += ratio[i] < low
        above += ratio[i] > high
        bound_low += (ratio[i] < low) & (gain[i] < 0.0)
        bound_high += (ratio[i] > high) & (gain[i] > 0.0)
        dual_bound += (ratio[i] > dual) & (gain[i] < 0.0)
        unknown += gain[i] != gain[i]
    counts[size + row] += below
    counts[2 * size + row] += above
    counts[3 * size + row] += bound_low
    counts[4 * size + row] += bound_high
    counts[5 * size + row] += dual_bound
    counts[7 * size + row] += unknown


def _policy(  # noqa: PLR0913, PLR0917
    new, old, gains, weights, has_gain, has_weight, rows, starts, stops, pieces, classes, low, high, dual, clamp,
    x, ratio, k3, gain, loss, scale, bits, single, word, sums, counts, size, tops, least, most,
):  # fmt: skip
    for piece in range(pieces):
        row = rows[piece]
        top = classes[row] * _TOPS
        for start in range(starts[piece], stops[piece], PIECE):
            n = min(PIECE, stops[piece] - start)
            _subtract(new, old, start, n, x)
            _clamp(x, n, clamp)
            _exponentials(x, n, bits, scale, ratio, k3)
            first, second, absolute = _powers(x, n)
            sums[row] += _total(ratio, n)
            sums[size + row] += first
            sums[2 * size + row] += second
            sums[3 * size + row] += _total(k3, n)
            sums[4 * size + row] += absolute
            zeros, unknown = 0, 0
            for i in range(n):
                single[i] = x[i]
                zeros += x[i] == 0.0
                unknown += x[i] != x[i]
            counts[row] += zeros
            counts[6 * size + row] += unknown
            for i in range(n):
                tops[top + (word[i] >> 16)] += 1
            _stretch(ratio, n, least, most)
            if high < inf:
                if has_gain:
                    _widen(gains, start, n, gain)
                _tally(ratio, gain, n, low, high, dual, counts, row, size)
                if has_gain:
                    _loss(ratio, gain, n, low, high, dual, loss)
                    if has_weight:
                        for i in range(n):
                            loss[i] *= np.float64(weights[start + i])
                    sums[5 * size + row] += _total(loss, n)


def _divergence(  # noqa: PLR0913, PLR0917
    x_of, to, rows, starts, stops, pieces, inner, outer, x, power, k3, scale, bits, sums, size
):
    for piece in range(pieces):
        row = rows[piece]
        for start in range(starts[piece], stops[piece], PIECE):
            n = min(PIECE, stops[piece] - start)
            _subtract(to, x_of, start, n, x)
            first, second, absolute = _powers(x, n)
            sums[row] += first
            sums[size + row] += second
            sums[3 * size + row] += absolute
            _clamp(x, n, inner)
            _exponentials(x, n, bits, scale, power, k3)
            _clamp(k3, n, outer)
            sums[2 * size + row] += _total(k3, n)


def _pair(  # noqa: PLR0913, PLR0917
    x, y, rows, starts, stops, pieces, d, power, k3, scale, bits, sums, size, least, most, sides
):
    for piece in range(pieces):
        row = rows[piece]
        for start in range(starts[piece], stops[piece], PIECE):
            n = min(PIECE, stops[piece] - start)
            _subtract(y, x, start, n, d)
            _exponentials(d, n, bits, scale, power, k3)
            _, _, absolute = _powers(d, n)
            sums[row] += absolute
            sums[size + row] += _total(power, n)
            sums[2 * size + row] += _total(k3, n)
            _stretch(d, n, least, most)
            below, apart = 0, 0
            for i in range(n):
                below += d[i] < -NOISE
                apart += abs(d[i]) > NOISE
            sides[0] += below
            sides[1] += apart


def _tail(  # noqa: PLR0913, PLR0917
    x, y, rows, starts, stops, pieces, d, power, k3, chance, held, scale, bits, sums, size
):
    for piece in range(pieces):
        row = rows[piece]
        for start in range(starts[piece], stops[piece], PIECE):
            n = min(PIECE, stops[piece] - start)
            _widen(x, start, n, d)
            _exponentials(d, n, bits, scale, chance, k3)
            _subtract(y, x, start, n, d)
            _exponentials(d, n, bits, scale, power, k3)
            for i in range(n):
                chance[i] = abs(chance[i] * (k3[i] + d[i]))
                held[i] = min(power[i], LARGEST)
                power[i] *= power[i]
            sums[row] += _total(power, n)
            sums[size + row] += _total(held, n)
            sums[2 * size + row] += _total(chance, n)


@_free
def _products(x, y, start, stop):
    """Sums of x, y, x^2, y^2 and x y."""
    first, second, left, right, product = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(start, stop):
        a, b = np.float64(x[i]), np.float64(y[i])
        first += a
        second += b
        left += a * a
        right += b * b
        product += a * b
    return first, second, left, right, product


def _moments(x, y, rows, starts, stops, pieces, sums, size):
    for piece in range(pieces):
        row = rows[piece]
        first, second, left, right, product = _products(x, y, starts[piece], stops[piece])
        sums[row] += first
        sums[size + row] += second
        sums[2 * size + row] += left
        sums[3 * size + row] += right
        sums[4 * size + row] += product


@_free
def _apart(left, right, start, stop):
    total = 0.0
    for i in range(start, stop):
        total += abs(np.float64(left[i]) - np.float64(right[i]))
    return total


def _distance(left, right, rows, starts, stops, pieces, sums):
    for piece in range(pieces):
        sums[rows[piece]] += _apart(left, right, starts[piece], stops[piece])


def _ends(values, sign, rows, starts, stops, pieces, low, high):
    """Extremes per row of floats seen as integers: those below zero have all bits but the ``sign`` flipped, to keep the order."""
    for piece in range(pieces):
        row = rows[piece]
        least, most = low[row], high[row]
        for i in range(starts[piece], stops[piece]):
            key = values[i] ^ ((values[i] >> sign) & ((1 << sign) - 1))
            least = min(least, key)
            most = max(most, key)
        low[row] = least
        high[row] = most


@_free
def _powers_in(values, start, stop):
    first, second, size, zeros = 0.0, 0.0, 0.0, 0
    for i in range(start, stop):
        value = np.float64(values[i])
        first += value
        second += value * value
        size += abs(value)
        zeros += value == 0.0
    return first, second, size, zeros


def _powers_of(values, rows, starts, stops, pieces, sums, size, zeros):
    for piece in range(pieces):
        row = rows[piece]
        first, second, absolute, none = _powers_in(values, starts[piece], stops[piece])
        sums[row] += first
        sums[size + row] += second
        sums[2 * size + row] += absolute
        zeros[row] += none


@_free
def _total_in(values, start, stop):
    total = 0.0
    for i in range(start, stop):
        total += np.float64(values[i])
    return total


def _column(values, rows, starts, stops, pieces, sums):
    for piece in range(pieces):
        sums[rows[piece]] += _total_in(values, starts[piece], stops[piece])


_LOOPS: Final[dict[str, Callable[..., None]]] = {
    "policy": _policy,
    "divergence": _divergence,
    "pair": _pair,
    "tail": _tail,
    "moments": _moments,
    "distance": _distance,
    "ends": _ends,
    "powers": _powers_of,
    "column": _column,
}
