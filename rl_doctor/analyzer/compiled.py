"""The passes of ``kernels`` as machine code, see ``loops``.

The same sums to a relative error of 1e-13 (the exponential is another one, and so is the order of adding within a row); in bits
as independent of how rows are cut into batches.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.kernels import Clipping, PairRows, PolicyRows, row_span
from rl_doctor.analyzer.machine import PIECE, loop
from rl_doctor.analyzer.states import Extremes
from rl_doctor.analyzer.stretches import Counts, Floats, Single, Stretches

_ROOM: Final = np.zeros((6, PIECE))
_SINGLE: Final = np.empty(PIECE, np.float32)
_SCRATCH: Final = tuple(room.ctypes.data for room in _ROOM)
"""Where a loop computes. Only one runs at a time, as each keeps the interpreter's lock."""
_BITS: Final = _SCRATCH[-1]
_GAIN: Final = 3
_LARGEST: Final = {np.dtype(np.float32): 0x7F800000, np.dtype(np.float64): 0x7FF0 << 48}
"""Infinity as an integer, by type."""


def _run(name: str, columns: tuple[Single, ...], tokens: Stretches, *arguments: Any, before: tuple[int, ...] = ()) -> None:
    """Run a loop: over columns of one type, ``before`` the pieces of ``tokens`` further numbers, and the rest after them."""
    rows, starts, stops = tokens.pieces
    given = (*columns, *before, rows, starts, stops, len(rows), *arguments)
    addresses = (value.ctypes.data if isinstance(value, np.ndarray) else value for value in given)
    loop(name, str(columns[0].dtype).replace("int", "float"))(*addresses)


def _alike(*columns: Single) -> tuple[Single, ...]:
    """The columns without gaps, in float32 where all are, else in float64."""
    narrow = all(column.dtype == np.float32 for column in columns)
    return tuple(np.ascontiguousarray(column, np.float32 if narrow else np.float64) for column in columns)


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
    low, high = _no_ends()
    ranged = clipping.low is not None and clipping.high is not None
    bounds = (
        1.0 - (clipping.low or 0.0),
        1.0 + (clipping.high or 0.0) if ranged else inf,
        inf if clipping.dual is None else clipping.dual,
        inf if clipping.clamp is None else clipping.clamp,
    )
    given = _alike(new, old, *(new if column is None else column for column in (advantage, weight)))
    _ROOM[_GAIN] = 0.0
    _run(
        "policy", given, tokens, np.ascontiguousarray(classes, np.int8), *bounds, *_SCRATCH, _BITS, _SINGLE, _SINGLE,
        sums, counts, rows, tops, low, high, before=(advantage is not None, weight is not None),
    )  # fmt: skip
    of_ratio = Extremes(float(low.min()), float(high.max()), int(tokens.edges[-1]), int(counts[6].sum()))
    return PolicyRows(sums, counts, tops, of_ratio)


def divergence(x_of: Single, to: Single, tokens: Stretches, clamps: tuple[float | None, float | None]) -> Floats:
    """See ``kernels.divergence``."""
    sums = np.zeros((4, len(tokens.edges) - 1))
    bounds = (inf if clamp is None else float(clamp) for clamp in clamps)
    _run("divergence", _alike(x_of, to), tokens, *bounds, *_SCRATCH[-4:], _BITS, sums, sums.shape[1])
    return sums


def pair(x: Single, y: Single, tokens: Stretches) -> PairRows:
    """See ``kernels.pair``."""
    sums, (low, high), sides = np.zeros((3, len(tokens.edges) - 1)), _no_ends(), np.zeros(2, np.int64)
    _run("pair", _alike(x, y), tokens, *_SCRATCH[-4:], _BITS, sums, sums.shape[1], low, high, sides)
    of_difference = Extremes(float(low.min()), float(high.max()), int(tokens.edges[-1]))
    return PairRows(sums, of_difference, int(sides[0]), int(sides[1]))


def tail(x: Single, y: Single, tokens: Stretches) -> Floats:
    """See ``kernels.tail``."""
    sums = np.zeros((3, len(tokens.edges) - 1))
    _run("tail", _alike(x, y), tokens, *_SCRATCH, _BITS, sums, sums.shape[1])
    return sums


def moments(x: Single, y: Single, tokens: Stretches) -> Floats:
    """See ``kernels.moments``."""
    sums = np.zeros((5, len(tokens.edges) - 1))
    _run("moments", _alike(x, y), tokens, sums, sums.shape[1])
    return sums


def distances(pairs: tuple[tuple[Single, Single], ...], tokens: Stretches) -> Floats:
    """See ``kernels.distances``."""
    sums = np.zeros((len(pairs), len(tokens.edges) - 1))
    for index, columns in enumerate(pairs):
        _run("distance", _alike(*columns), tokens, sums[index])
    return sums


def ends(values: Single, tokens: Stretches) -> tuple[Single, Single]:
    """See ``kernels.ends``."""
    (column,) = _alike(values)
    bits = column.view(f"i{column.itemsize}")
    most, sign, infinity = np.iinfo(bits.dtype).max, bits.itemsize * 8 - 1, _LARGEST[column.dtype]
    found = np.full((2, len(tokens.edges) - 1), np.array([[most], [-most - 1]]), bits.dtype)
    _run("ends", (bits,), tokens, found[0], found[1], before=(sign,))
    unknown = (found[0] < -infinity - 1) | (found[1] > infinity)
    low, high = np.where(unknown, np.nan, (found ^ ((found >> sign) & most)).view(column.dtype)).astype(column.dtype)
    return low, high


def span(values: Single, tokens: Stretches) -> tuple[float, float]:
    """See ``kernels.span``."""
    return row_span(*ends(values, tokens))


def powers(values: Single, tokens: Stretches) -> tuple[Floats, Counts]:
    """See ``kernels.powers``."""
    rows = len(tokens.edges) - 1
    sums, zeros = np.zeros((3, rows)), np.zeros(rows, np.int64)
    _run("powers", _alike(values), tokens, sums, rows, zeros)
    return sums, zeros


def column(values: NDArray[Any], tokens: Stretches) -> Floats:
    """See ``kernels.column``."""
    sums = np.zeros(len(tokens.edges) - 1)
    _run("column", _alike(values), tokens, sums)
    return sums


def _no_ends() -> tuple[Floats, Floats]:
    return np.full(PIECE, inf), np.full(PIECE, -inf)
