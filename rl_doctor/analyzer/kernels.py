"""The passes over tokens: flat columns in, sums per row out, block by block so that what is between stays in the cache.

Every row is summed by itself, so that its sums do not depend on what stands before it or on where a block ends.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.formulas import kl, policy_loss
from rl_doctor.analyzer.states import Extremes
from rl_doctor.analyzer.stretches import Block, Bools, Counts, Floats, Single, Stretches
from rl_doctor.frozen import frozen

NOISE: Final = 0.02
"""Differences of logprobs below this (nat) carry no sign: rounding of the engine and of bfloat16."""
LARGEST: Final = 10.0
"""What an importance weight is cut at, so that single tokens cannot dominate a mean."""

WORTH_COMPILING: Final = 10_000_000
"""Tokens of a run from which on the compiled passes are taken: loading what was compiled before is worth its .1 s of CPU from
some 4 million on, as a token takes 25 to 40 ns less (benchmarks/README.md), but the first time compiling takes seconds."""
_ROUNDING: Final = 2.0**-9
"""The sum of exp(x) - 1 - x over that of abs x from which on rounding, by four units in the last place of x at most, is below
5e-13 of it."""
_LEFT: Final = 2.0**-7
"""The sum of exp(x) over those of its parts from which on adding those up is as exact."""
_NEAR: Final = 1e-9
"""What is this close to a bound is compared as a ratio, not as a log-ratio."""
_NOWHERE: Final = np.empty(0, np.intp)
_ONE: Final = np.uint64(1)
_HALF: Final = np.uint64(32)
_FIRST_FACTOR: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR: Final = np.uint64(0x94D049BB133111EB)


@frozen
class Clipping:
    """What the policy loss cuts: ``low`` and ``high`` bound the ratio, ``dual`` the loss, ``clamp`` the log-ratio."""

    low: float | None = None
    high: float | None = None
    dual: float | None = None
    clamp: float | None = None


@frozen(eq=False)
class PolicyRows:
    """Sums per row over x = logprob - old_logprob.

    Attributes:
        sums: float64 ``[6, rows]``: exp(x), x, x^2, exp(x) - 1 - x, abs x, loss (0 without advantages or a clip range).
        counts: int64 ``[8, rows]``: tokens with x = 0; with a ratio below and above the range; at which the lower and the upper
            bound bind; at which dual clip binds; at which x is NaN; at which the advantage is NaN.
        tops: int64 or int32 ``[classes, 2**16]``, number of tokens by the top 16 bits of x as a float32, by the class of the row.
        ends: extremes of exp(x).
    """

    sums: Floats
    counts: Counts
    tops: NDArray[np.integer[Any]]
    ends: Extremes


@frozen(eq=False)
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


@frozen(eq=False)
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
    """One pass over logprob and old_logprob at the selected tokens.

    Args:
        new: logprob, float ``[m]``.
        old: old_logprob, float ``[m]``.
        tokens: which of them are selected, and their rows.
        clipping: the loss's bounds.
        classes: int8 ``[rows]``: class of each row, from 0.
        advantage: float ``[m]``; without it, or without a range, no loss and no binding bounds.
        weight: float ``[m]``, what the loss is multiplied by.
    """
    rows = len(tokens.edges) - 1
    sums, counts = np.zeros((6, rows)), np.zeros((8, rows), np.int64)
    tops = np.empty(int(tokens.edges[-1]), np.uint16)
    ends = Extremes()
    for block in tokens.blocks:
        at = block.rows
        x = block.wide(new)
        x -= block.wide(old)
        if clipping.clamp is not None:
            np.clip(x, -clipping.clamp, clipping.clamp, out=x)
        np.right_shift(x.astype(np.float32).view(np.uint32), 16, out=tops[block.tokens], casting="unsafe")
        sums[:5, at], ratio = _exponentials(block, x)
        counts[0, at] = block.number(x == 0.0)
        if not np.isfinite(sums[1, at]).all():
            counts[6, at] = block.number(np.isnan(x))
        of_block = Extremes.of(x)
        ends += of_block
        if clipping.low is not None and clipping.high is not None:
            gain = None if advantage is None else block.wide(advantage)
            outside = _clip(block, x, of_block, clipping, gain, counts)
            if gain is not None:
                ratio += 1.0
                _gain(ratio, x, gain, clipping, outside)
                if weight is not None:
                    ratio *= block.wide(weight)
                np.negative(block.sums(ratio), out=sums[5, at])
                if not np.isfinite(sums[5, at]).all():
                    counts[7, at] = block.number(np.isnan(gain))
    low, high = np.exp([ends.low, ends.high]).tolist()
    return PolicyRows(sums, counts, _by_class(tops, tokens.edges, classes), replace(ends, low=low, high=high))


def _exponentials(block: Block, x: Floats) -> tuple[Floats, Floats]:
    """Sums per row of exp(x), x, x^2, exp(x) - 1 - x and abs x, float64 ``[5, rows]``, and exp(x) - 1, ``[n]``.

    exp(x) - 1 - x is taken as it stands, which is wrong by a few roundings of x, so it is small beside x^2 / 2 unless most x of
    a row are below about .001. The sum of exp(x) is that of the sums of 1, x and exp(x) - 1 - x, unless little is left of it.
    Rows of which that is not true are summed again.
    """
    growth = np.expm1(x)
    spare = np.abs(x)
    first, size = block.sums(x), block.sums(spare)
    np.subtract(growth, x, out=spare)
    k3 = _again(block, x, block.sums(spare), size * _ROUNDING, kl.k3)
    np.multiply(x, x, out=spare)
    ratio = _again(block, x, block.lengths + first + k3, (block.lengths + size + k3) * _LEFT, np.exp)
    return np.array([ratio, first, block.sums(spare), k3, size]), growth


def _again(block: Block, x: Floats, sums: Floats, least: Floats, function: Callable[[Floats], Floats]) -> Floats:
    """The sums per row, where they are not ``least`` at least, or NaN, anew from the function of x."""
    lost = ~(sums >= least)
    if lost.any():
        values, starts = block.of_rows(x, lost)
        sums[lost] = np.add.reduceat(function(values), starts)
    return sums


def _clip(
    block: Block, x: Floats, ends: Extremes, clipping: Clipping, advantage: Floats | None, counts: Counts
) -> NDArray[np.intp]:
    """Count the tokens outside the range; returns where they, those beyond the dual clip and some at the bounds stand."""
    low, high = 1.0 - (clipping.low or 0.0), 1.0 + (clipping.high or 0.0)
    top = high if clipping.dual is None else min(high, clipping.dual)
    near = math.log(low) + _NEAR if low > 0.0 else -math.inf, math.log(top) - _NEAR
    if ends.low >= near[0] and ends.high <= near[1]:
        return _NOWHERE
    flags = x > near[1]
    flags |= x < near[0]
    outside = np.flatnonzero(flags)
    if not outside.size:
        return outside
    found = np.exp(x[outside])
    tallies: list[tuple[int, Bools]] = [(1, found < low), (2, found > high)]
    if advantage is not None:
        gain = advantage[outside]
        tallies += [(3, (found < low) & (gain < 0.0)), (4, (found > high) & (gain > 0.0))]
        if clipping.dual is not None:
            tallies.append((5, (found > clipping.dual) & (gain < 0.0)))
    for index, chosen in tallies:
        counts[index, block.rows] = block.number_at(outside[chosen])
    return outside


def _gain(ratio: Floats, x: Floats, advantage: Floats, clipping: Clipping, outside: NDArray[np.intp]) -> None:
    """Turn the ratios into minus the clipped surrogate loss: within the range that is the gain, and the rest are few tokens."""
    ratio *= advantage
    if outside.size:
        at = x[outside], advantage[outside]
        ratio[outside] = -policy_loss.surrogate_loss(*at, clipping.low or 0.0, clipping.high or 0.0, clipping.dual)


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


def divergence(x_of: Single, to: Single, tokens: Stretches, clamps: tuple[float | None, float | None]) -> Floats:
    """Sums per row over x = ``to`` - ``x_of``: x, x^2, exp(x) - 1 - x and abs x, float64 ``[4, rows]``.

    Args:
        x_of: logprob, float ``[m]``.
        to: ref_logprob, float ``[m]``.
        tokens: which of them are selected, and their rows.
        clamps: symmetric bounds of what goes into k3, and of what comes out of it.
    """
    sums = np.zeros((4, len(tokens.edges) - 1))
    for block in tokens.blocks:
        x = block.wide(to)
        x -= block.wide(x_of)
        found, _ = _exponentials(block, x)
        if clamps != (None, None):
            k3 = kl.k3(x if clamps[0] is None else np.clip(x, -clamps[0], clamps[0]))
            found[3] = block.sums(k3 if clamps[1] is None else np.clip(k3, -clamps[1], clamps[1]))
        sums[:, block.rows] = found[1:]
    return sums


def pair(x: Single, y: Single, tokens: Stretches) -> PairRows:
    """Sums over d = y - x at ``tokens`` of the columns, finite there."""
    sums = np.zeros((3, len(tokens.edges) - 1))
    low, high, below, apart = np.inf, -np.inf, 0, 0
    for block in tokens.blocks:
        d = block.wide(y)
        d -= block.wide(x)
        found, _ = _exponentials(block, d)
        sums[:, block.rows] = found[[4, 0, 3]]
        low, high = min(low, d.min()), max(high, d.max())
        less = int(np.count_nonzero(d < -NOISE))
        below += less
        apart += less + int(np.count_nonzero(d > NOISE))
    ends = Extremes(float(low), float(high), int(tokens.edges[-1])) if tokens.blocks else Extremes()
    return PairRows(sums, ends, below, apart)


def tail(x: Single, y: Single, tokens: Stretches) -> Floats:
    """Sums over d = y - x: exp(2 d), min(exp(d), LARGEST) and abs(exp(y) - exp(x)), float64 ``[3, rows]``."""
    sums = np.zeros((3, len(tokens.edges) - 1))
    for block in tokens.blocks:
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


def moments(x: Single, y: Single, tokens: Stretches) -> Floats:
    """Sums of x, y, x^2, y^2 and x y, float64 ``[5, rows]``, at ``tokens`` of the columns."""
    sums = np.zeros((5, len(tokens.edges) - 1))
    for block in tokens.blocks:
        at = block.rows
        left, right = block.wide(x), block.wide(y)
        sums[0, at], sums[1, at] = block.sums(left), block.sums(right)
        sums[4, at] = block.sums(left * right)
        left *= left
        right *= right
        sums[2, at], sums[3, at] = block.sums(left), block.sums(right)
    return sums


def distances(pairs: tuple[tuple[Single, Single], ...], tokens: Stretches) -> Floats:
    """Sum per row of the absolute difference of the two columns of each pair, float64 ``[pairs, rows]``."""
    sums = np.zeros((len(pairs), len(tokens.edges) - 1))
    for block in tokens.blocks:
        wide: dict[int, Floats] = {}
        for index, (left, right) in enumerate(pairs):
            for column in (left, right):
                if id(column) not in wide:
                    wide[id(column)] = block.wide(column)
            d = wide[id(left)] - wide[id(right)]
            sums[index, block.rows] = block.sums(np.abs(d, out=d))
    return sums


def advantages(values: Single, tokens: Stretches, passes: ModuleType) -> AdvantageRows:
    """Sums of advantages: from the ends of a row where they are equal, as most trainers have them, else by ``passes.powers``."""
    low, high = (end.astype(np.float64) for end in passes.ends(values, tokens))
    count = np.diff(tokens.edges)
    sums, zeros = np.stack([low, low * low, np.abs(low)]) * count, count * (low == 0.0)
    rows = low != high
    if rows.any():
        sums[:, rows], zeros[rows] = passes.powers(values, tokens.of(rows))
    return AdvantageRows(sums, zeros, low, high)


def ends(values: Single, tokens: Stretches) -> tuple[Single, Single]:
    """Smallest and largest value of each row, both ``[rows]``; NaN where one is NaN."""
    return tokens.ends(values)


def span(values: Single, tokens: Stretches) -> tuple[float, float]:
    """Smallest and largest value at ``tokens``, NaN where one is NaN or there is none."""
    return row_span(*tokens.ends(values))


def row_span(low: Single, high: Single) -> tuple[float, float]:
    """Smallest and largest of the ends of rows, each ``[rows]``."""
    return (float(low.min()), float(high.max())) if low.size else (math.nan, math.nan)


def powers(values: Single, tokens: Stretches) -> tuple[Floats, Counts]:
    """Sums of A, A^2 and abs A, float64 ``[3, rows]``, and number of zeros of the values A at ``tokens``, int64 ``[rows]``."""
    rows = len(tokens.edges) - 1
    sums, zeros = np.zeros((3, rows)), np.zeros(rows, np.int64)
    for block in tokens.blocks:
        at = block.rows
        wide = block.wide(values)
        zeros[at] = block.number(wide == 0.0)
        sums[0, at] = block.sums(wide)
        sums[2, at] = block.sums(np.abs(wide))
        wide *= wide
        sums[1, at] = block.sums(wide)
    return sums, zeros


def column(values: Single, tokens: Stretches) -> Floats:
    """Sum per row of a column at ``tokens``, float64 ``[rows]``."""
    sums = np.zeros(len(tokens.edges) - 1)
    for block in tokens.blocks:
        sums[block.rows] = block.sums(block.wide(values))
    return sums


def hashes(ids: NDArray[Any], edges: Counts) -> NDArray[np.int64]:
    """A 63-bit hash of each row of ids, int64 ``[rows]``: the sum over its tokens of a scattered (id, position in the row).

    Scattered by multiplying, folding the upper half onto the lower and multiplying again, as SplitMix64 does (Steele, Lea,
    Flood 2014).
    """
    found = np.empty(len(edges) - 1, np.int64)
    for block in Stretches.whole(edges).blocks:
        word = block.wide(ids, np.int64).view(np.uint64)
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
