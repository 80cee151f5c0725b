"""Numbers that are made of several recipes: their sum, a quotient, or a deviation from a mean and a mean square."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rl_doctor.analyzer.dialects.recipes import Joined
from rl_doctor.analyzer.recompute.folds import total
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, UNKNOWN, Entries, entry
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

Reader = Callable[[Any], Entries]


@frozen
class Several:
    """The states of several reductions of the same level."""

    states: tuple[Any, ...]

    @property
    def count(self) -> int:
        """Number of items behind the largest."""
        return max(int(state.count) for state in self.states)

    def __add__(self, other: Several, /) -> Several:
        return Several(tuple(one + more for one, more in zip(self.states, other.states, strict=True)))


def joined(parts: Sequence[tuple[Reduction, Reader]], how: Joined) -> tuple[Reduction, Reader]:
    """One reduction for several, and the number that theirs make."""
    reductions = [reduction for reduction, _ in parts]

    def partial(batch: Batch) -> Several:
        return Several(tuple(reduction.partial(batch) for reduction in reductions))

    def entries(state: Several) -> Entries:
        found = [read(one) for (_, read), one in zip(parts, state.states, strict=True)]
        if any(not item.number or math.isnan(item.total) for item in found):
            return UNKNOWN
        return _one([(item.total / item.number, item.tolerance / item.number) for item in found], how)

    zero = Several(tuple(reduction.zero for reduction in reductions))
    needs = dict.fromkeys(name for reduction in reductions for name in reduction.needs)
    optional = dict.fromkeys(name for reduction in reductions for name in reduction.optional)
    return Reduction(partial, zero, tuple(needs), tuple(optional), reductions[0].level), entries


def _one(pairs: Sequence[tuple[float, float]], how: Joined) -> Entries:
    values, slack = zip(*pairs, strict=True)
    if how == "sum":
        return entry(total(values), total(slack))
    if how == "explained":
        return _explained(values, slack)
    (first, wide), (second, more) = pairs
    if how == "quotient":
        if second == 0.0:
            return UNKNOWN
        return entry(first / second, (wide + abs(first / second) * more) / abs(second))
    value = math.sqrt(max(second - first * first, 0.0))
    lost = more + 2 * abs(first) * wide + EPSILON32 * second
    return entry(value, TOLERANCE * value + min(lost / value if value else math.inf, math.sqrt(lost)))


def _explained(values: Sequence[float], slack: Sequence[float]) -> Entries:
    """1 - Var(R - v) / Var(R) from the means of R, v, R^2 and (R - v)^2, the variance of R at least 1e-8."""
    returns, value, square, residual = values
    spread = max(square - returns * returns, 1e-8)
    left = residual - (returns - value) ** 2
    lost = slack[3] + 2 * abs(returns - value) * (slack[0] + slack[1])
    lost_spread = slack[2] + 2 * abs(returns) * slack[0] + EPSILON32 * square
    return entry(1.0 - left / spread, (lost + abs(left / spread) * lost_spread) / spread + TOLERANCE)
