"""The passes over tokens: flat columns in, sums per row out, block by block so that what is between stays in the cache.

Every row is summed by itself, so that its sums do not depend on what stands before it or on where a block ends.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer import estimators
from rl_doctor.analyzer.states import Extremes

Floats = NDArray[np.float64]
Single = NDArray[Any]
Counts = NDArray[np.int64]
Bools = NDArray[np.bool_]

BLOCK: Final = 1 << 15
"""Tokens taken at once, more where one row has more: a handful of float64 arrays of it fit into two megabytes of cache."""
NOISE: Final = 0.02
"""Differences of logprobs below this (nat) carry no sign: rounding of the engine and of bfloat16."""
LARGEST: Final = 10.0
"""What an importance weight is cut at, so that single tokens cannot dominate a mean."""

WORTH_COMPILING: Final = 20_000_000
"""Tokens of a run from which on the compiled passes are worth their start: importing numba and loading what it has compiled
before takes .7 s of CPU, and a token takes 40 to 55 ns less (benchmarks/README.md)."""
_ONE: Final = np.uint64(1)
_HALF: Final = np.uint64(32)
_FIRST_FACTOR: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR: Final = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class Clipping:
    """What the policy loss cuts: ``low`` and ``high`` bound the ratio, ``dual`` the loss, ``clamp`` the log-ratio."""

    low: float | None = None
    high: float | None = None
    dual: float | None = None
    clamp: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRows:
    """Sums per row over x = logprob - old_logprob.

    Attributes:
        sums: float64 ``[6, rows]``: exp(x), x, x^2, exp(x) - 1 - x, abs x, loss (0 without advantages or a clip range).
        counts: int64 ``[8, rows]``: tokens with x = 0; with a ratio below and above the range; at which the lower and the upper
            bound bind; at which dual clip binds; at which x is NaN; at which the advantage is NaN.
        tops: int64 ``[classes, 2**16]``, number of tokens by the top 16 bits of x as a float32, by the class of the row.
        ends: extremes of exp(x).
    """

    sums: Floats
    counts: Counts
    tops: Counts
    ends: Extremes


@dataclass(frozen=True, slots=True, eq=False)
class PairRows:
    """Sums per row over d = y - x.

    Attributes:
        sums: float64 ``[3, rows]``: abs d, exp(d), exp(d) - 1 - d.
        ends: extremes of d.
        below: number of tokens with d < -NOISE.
        apart: number of tokens with abs d > NOISE.
    """

    sums: Floats
    ends: Extremes
    below: int
    apart: int


@dataclass(frozen=True, slots=True, eq=False)
class AdvantageRows:
    """Of the advantages A of each row: the sums ``[3, rows]`` of A, A^2 and abs A, zeros, smallest and largest ``[rows]``."""

    sums: Floats
    zeros: Counts
    low: Floats
    high: Floats


@cache
def of(run_tokens: int) -> ModuleType:
    """The module with the passes for a run of about so many tokens: this one, or ``compiled`` where it is worth its start."""
    if run_tokens < WORTH_COMPILING or find_spec("numba") is None:
        return sys.modules[__name__]
    from rl_doctor.analyzer import compiled

    return compiled


class _Block:
    """Neighbouring rows with at least one token each, and their tokens."""

    def __init__(self, rows: slice, tokens: slice, starts: Counts, bounds: Counts) -> None:
        self.rows = rows
        self.tokens = tokens
        self.starts = starts
        self.bounds = bounds

    def wide(self, column: Single) -> Floats:
        """The block's part of a column, in float64."""
        return column[self.tokens].astype(np.float64)

    def sums(self, values: Floats) -> Floats:
        """Sum per row."""
        found: Floats = np.add.reduceat(values, self.starts)
        return found

    def number(self, flags: Bools) -> Counts:
        """Number of true flags per row."""
        count = int(np.count_nonzero(flags))
        if count == 0:
            return np.zeros(len(self.starts), np.int64)
        if count == flags.size:
            return np.diff(self.bounds)
        before = np.searchsorted(np.flatnonzero(flags), self.bounds)
        counted: Counts = before[1:] - before[:-1]
        return counted


def blocks(edges: Counts) -> Iterator[_Block]:
    """Cut rows into blocks.

    Args:
        edges: int64 ``[rows + 1]``, where the tokens of each row start; no row is empty.
    """
    stops = edges.tolist()
    first, count = 0, len(stops) - 1
    while first < count:
        start = stops[first]
        last = max(first + 1, bisect_right(stops, start + BLOCK) - 1)
        bounds = edges[first : last + 1] - start
        yield _Block(slice(first, last), slice(start, stops[last]), bounds[:-1], bounds)
        first = last


def policy(
    new: Single,
    old: Single,
    edges: Counts,
    clipping: Clipping,
    classes: NDArray[np.int8],
    *,
    advantage: Single | None = None,
    weight: Single | None = None,
) -> PolicyRows:
    """One pass over logprob and old_logprob at the selected tokens.

    Args:
        new: logprob, float ``[n]``.
        old: old_logprob, float ``[n]``.
        edges: int64 ``[rows + 1]``, no row is empty.
        clipping: the loss's bounds.
        classes: int8 ``[rows]``: class of each row, from 0.
        advantage: float ``[n]``; without it, or without a range, no loss and no binding bounds.
        weight: float ``[n]``, what the loss is multiplied by.
    """
    rows = len(edges) - 1
    sums, counts = np.zeros((6, rows)), np.zeros((8, rows), np.int64)
    tops = np.empty(len(new), np.uint16)
    ends = Extremes()
    for block in blocks(edges):
        at = block.rows
        x = block.wide(new)
        x -= block.wide(old)
        if clipping.clamp is not None:
            np.clip(x, -clipping.clamp, clipping.clamp, out=x)
        ratio = np.exp(x)
        np.right_shift(x.astype(np.float32).view(np.uint32), 16, out=tops[block.tokens], casting="unsafe")
        sums[0, at], sums[1, at], sums[3, at] = block.sums(ratio), block.sums(x), block.sums(estimators.k3(x))
        counts[0, at] = block.number(x == 0.0)
        if not np.isfinite(sums[1, at]).all():
            counts[6, at] = block.number(np.isnan(x))
        ends += Extremes.of(ratio)
        if clipping.low is not None and clipping.high is not None:
            gain = None if advantage is None else block.wide(advantage)
            outside = _clip(block, ratio, clipping, gain, counts)
            if gain is not None:
                loss = _loss(x, ratio, gain, clipping, outside)
                if weight is not None:
                    loss *= block.wide(weight)
                sums[5, at] = block.sums(loss)
                if not np.isfinite(sums[5, at]).all():
                    counts[7, at] = block.number(np.isnan(gain))
        sums[4, at] = block.sums(np.abs(x))
        x *= x
        sums[2, at] = block.sums(x)
    return PolicyRows(sums, counts, _by_class(tops, edges, classes), ends)


def _clip(block: _Block, ratio: Floats, clipping: Clipping, advantage: Floats | None, counts: Counts) -> NDArray[np.intp]:
    """Count the tokens outside the range; returns where they and those beyond the dual clip stand."""
    low, high = 1.0 - (clipping.low or 0.0), 1.0 + (clipping.high or 0.0)
    top = high if clipping.dual is None else min(high, clipping.dual)
    flags = ratio > top
    flags |= ratio < low
    outside = np.flatnonzero(flags)
    if not outside.size:
        return outside
    found = ratio[outside]
    tallies: list[tuple[int, Bools]] = [(1, found < low), (2, found > high)]
    if advantage is not None:
        gain = advantage[outside]
        tallies += [(3, (found < low) & (gain < 0.0)), (4, (found > high) & (gain > 0.0))]
        if clipping.dual is not None:
            tallies.append((5, (found > clipping.dual) & (gain < 0.0)))
    for index, chosen in tallies:
        before = np.searchsorted(outside[chosen], block.bounds)
        counts[index, block.rows] = before[1:] - before[:-1]
    return outside


def _loss(x: Floats, ratio: Floats, advantage: Floats, clipping: Clipping, outside: NDArray[np.intp]) -> Floats:
    """The clipped surrogate: within the range it is the unclipped one, and the rest, ``outside``, are few tokens."""
    loss = np.negative(advantage)
    loss *= ratio
    if outside.size:
        at = x[outside], advantage[outside]
        loss[outside] = estimators.surrogate_loss(*at, clipping.low or 0.0, clipping.high or 0.0, clipping.dual)
    return loss


def _by_class(tops: NDArray[np.uint16], edges: Counts, classes: NDArray[np.int8]) -> Counts:
    """Number of tokens by class of their row and top 16 bits, int64 ``[classes, 2**16]``."""
    found = np.zeros((int(classes.max(initial=0)) + 1, 1 << 16), np.int64)
    for number in range(len(found)):
        at = np.flatnonzero(classes == number)
        if not at.size:
            continue
        start, stop = int(at[0]), int(at[-1]) + 1
        kept = tops[edges[start] : edges[stop]]
        if stop - start > at.size:  # rows of a class mostly follow each other
            kept = kept[np.repeat(classes[start:stop] == number, np.diff(edges[start : stop + 1]))]
        found[number] = np.bincount(kept, minlength=1 << 16)
    return found


def divergence(x_of: Single, to: Single, edges: Counts, clamps: tuple[float | None, float | None]) -> Floats:
    """Sums per row over x = ``to`` - ``x_of``: x, x^2, exp(x) - 1 - x and abs x, float64 ``[4, rows]``.

    Args:
        x_of: logprob, float ``[n]``.
        to: ref_logprob, float ``[n]``.
        edges: int64 ``[rows + 1]``, no row is empty.
        clamps: symmetric bounds of what goes into k3, and of what comes out of it.
    """
    sums = np.zeros((4, len(edges) - 1))
    for block in blocks(edges):
        at = block.rows
        x = block.wide(to)
        x -= block.wide(x_of)
        k3 = estimators.k3(x if clamps[0] is None else np.clip(x, -clamps[0], clamps[0]))
        if clamps[1] is not None:
            np.clip(k3, -clamps[1], clamps[1], out=k3)
        sums[0, at], sums[2, at], sums[3, at] = block.sums(x), block.sums(k3), block.sums(np.abs(x))
        x *= x
        sums[1, at] = block.sums(x)
    return sums


def pair(x: Single, y: Single, edges: Counts) -> PairRows:
    """Sums over d = y - x, both finite float ``[n]``; ``edges`` as above."""
    sums = np.zeros((3, len(edges) - 1))
    low, high, below, apart = np.inf, -np.inf, 0, 0
    for block in blocks(edges):
        at = block.rows
        d = block.wide(y)
        d -= block.wide(x)
        sums[1, at], sums[2, at] = block.sums(np.exp(d)), block.sums(estimators.k3(d))
        low, high = min(low, d.min()), max(high, d.max())
        below += int(np.count_nonzero(d < -NOISE))
        size = np.abs(d)
        sums[0, at] = block.sums(size)
        apart += int(np.count_nonzero(size > NOISE))
    ends = Extremes(float(low), float(high), len(x)) if len(x) else Extremes()
    return PairRows(sums, ends, below, apart)


def tail(x: Single, y: Single, edges: Counts) -> Floats:
    """Sums over d = y - x: exp(2 d), min(exp(d), LARGEST) and abs(exp(y) - exp(x)), float64 ``[3, rows]``."""
    sums = np.zeros((3, len(edges) - 1))
    for block in blocks(edges):
        at = block.rows
        d, chance = block.wide(y), block.wide(x)
        d -= chance
        np.expm1(d, out=d)
        np.exp(chance, out=chance)
        chance *= d
        np.abs(chance, out=chance)
        d += 1.0
        sums[2, at] = block.sums(chance)
        np.minimum(d, LARGEST, out=chance)
        sums[1, at] = block.sums(chance)
        d *= d
        sums[0, at] = block.sums(d)
    return sums


def moments(x: Single, y: Single, edges: Counts) -> Floats:
    """Sums of x, y, x^2, y^2 and x y, float64 ``[5, rows]``; ``x``, ``y``, ``edges`` as above."""
    sums = np.zeros((5, len(edges) - 1))
    for block in blocks(edges):
        at = block.rows
        left, right = block.wide(x), block.wide(y)
        sums[0, at], sums[1, at] = block.sums(left), block.sums(right)
        sums[4, at] = block.sums(left * right)
        left *= left
        right *= right
        sums[2, at], sums[3, at] = block.sums(left), block.sums(right)
    return sums


def distances(pairs: tuple[tuple[Single, Single], ...], edges: Counts) -> Floats:
    """Sum per row of the absolute difference of the two columns of each pair, float64 ``[pairs, rows]``."""
    sums = np.zeros((len(pairs), len(edges) - 1))
    for block in blocks(edges):
        wide: dict[int, Floats] = {}
        for index, (left, right) in enumerate(pairs):
            for column in (left, right):
                if id(column) not in wide:
                    wide[id(column)] = block.wide(column)
            d = wide[id(left)] - wide[id(right)]
            sums[index, block.rows] = block.sums(np.abs(d, out=d))
    return sums


def advantages(values: Single, edges: Counts) -> AdvantageRows:
    """One pass over the advantages at the selected tokens, float ``[n]``; ``edges`` as above."""
    rows = len(edges) - 1
    sums, zeros, ends = np.zeros((3, rows)), np.zeros(rows, np.int64), np.zeros((2, rows))
    for block in blocks(edges):
        at = block.rows
        wide = block.wide(values)
        zeros[at] = block.number(wide == 0.0)
        ends[0, at], ends[1, at] = np.minimum.reduceat(wide, block.starts), np.maximum.reduceat(wide, block.starts)
        sums[0, at] = block.sums(wide)
        sums[2, at] = block.sums(np.abs(wide))
        wide *= wide
        sums[1, at] = block.sums(wide)
    return AdvantageRows(sums, zeros, ends[0], ends[1])


def column(values: NDArray[Any], edges: Counts) -> Floats:
    """Sum of a column per row, float64 ``[rows]``; ``edges`` as above."""
    sums = np.zeros(len(edges) - 1)
    for block in blocks(edges):
        sums[block.rows] = block.sums(block.wide(values))
    return sums


def hashes(ids: NDArray[Any], edges: Counts) -> NDArray[np.int64]:
    """A 63-bit hash of each row of ids, int64 ``[rows]``: the sum over its tokens of a scattered (id, position in the row).

    Scattered by multiplying, folding the upper half onto the lower and multiplying again, as SplitMix64 does (Steele, Lea,
    Flood 2014).
    """
    found = np.empty(len(edges) - 1, np.int64)
    for block in blocks(edges):
        word = ids[block.tokens].astype(np.int64).view(np.uint64)
        word += _ONE
        word <<= _HALF
        place = np.arange(word.size, dtype=np.int64)
        place -= np.repeat(block.starts, np.diff(block.bounds))
        word += place.view(np.uint64)
        word *= _FIRST_FACTOR
        word ^= word >> _HALF
        word *= _SECOND_FACTOR
        word ^= word >> _HALF
        found[block.rows] = (np.add.reduceat(word, block.starts) >> _ONE).view(np.int64)
    return found
