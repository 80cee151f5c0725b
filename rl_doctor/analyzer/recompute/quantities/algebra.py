"""Constants, and products of quantities."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.derive import per_sequence_counts
from rl_doctor.analyzer.recompute.quantities.registry import Arguments, Values, evaluated, inner, number, quantity, word
from rl_doctor.store.batch import Batch


@quantity("constant", lambda _: ())
def _constant(batch: Batch, arguments: Arguments) -> Values:
    """The number ``value``."""
    return Values.plain(np.full(int(per_sequence_counts(batch).sum()), number(arguments, "value") or 0.0))


@quantity("product", lambda _: ())
def _product(batch: Batch, arguments: Arguments) -> Values:
    """``left`` times ``right``."""
    left, right = (evaluated(batch, inner(arguments, side)) for side in ("left", "right"))
    with np.errstate(invalid="ignore", over="ignore"):
        value = left.values * right.values
        if right.sizes is right.values:  # none is negative
            size = value if left.sizes is left.values else left.sizes * right.values
        else:
            size = left.sizes * np.abs(right.values) + np.abs(left.values) * right.sizes - np.abs(value)
        near = [np.abs(other.values) * one.near for one, other in ((left, right), (right, left)) if one.near is not None]
    return Values(value, size, sum(near[1:], near[0]) if near else None)


@quantity("scaled", lambda _: ())
def _scaled(batch: Batch, arguments: Arguments) -> Values:
    """``value`` times ``factor`` times ``sign``; a factor of 0 leaves the columns of the value unread."""
    factor = (number(arguments, "factor") or 0.0) * (number(arguments, "sign") or 1.0)
    if not factor:
        return Values.plain(np.zeros(int(per_sequence_counts(batch).sum())))
    found = evaluated(batch, inner(arguments, "value"))
    near = None if found.near is None else abs(factor) * found.near.astype(np.float64)
    return Values(factor * found.values, abs(factor) * found.sizes, near)


@quantity("above", lambda a: (word(a, "name"),))
def _above(batch: Batch, arguments: Arguments) -> Values:
    """At each token whether a column of its sequence is above ``bound``."""
    flags = batch.columns[word(arguments, "name")] > (number(arguments, "bound") or 0.0)
    return Values.plain(np.repeat(flags.astype(np.float64), per_sequence_counts(batch)))
