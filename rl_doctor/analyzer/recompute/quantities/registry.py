"""What recipes name: quantities per token or per row. One is added by a function here or in another module of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np

from rl_doctor.analyzer.derive import Floats, known, selected
from rl_doctor.analyzer.dialects.recipes import Argument
from rl_doctor.analyzer.formulas.kl import k1, k2, k3
from rl_doctor.analyzer.formulas.policy_loss import surrogate_of_ratio
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Flags
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

Arguments = Mapping[str, "Argument | Given"]
T = TypeVar("T")
_NUMBERS: Final[dict[tuple[Any, ...], int]] = {}
"""A number for each quantity with its arguments: these are looked up for every batch, and hashing them costs more each time."""


@dataclass(frozen=True, eq=False)
class Given:
    """A quantity by its name, with what its arguments are in a run."""

    name: str
    arguments: Arguments

    @cached_property
    def key(self) -> int:
        """A number, the same for the same quantity with the same arguments."""
        parts = (
            (name, value.key if isinstance(value, Given) else (type(value), value)) for name, value in self.arguments.items()
        )
        return _NUMBERS.setdefault((self.name, *sorted(parts, key=lambda part: part[0])), len(_NUMBERS))


@frozen(eq=False)
class Values:
    """A quantity at the selected tokens, or at the rows of a generation batch.

    Attributes:
        values: float64 ``[n]``.
        sizes: float64 ``[n]``, size of the summands behind each value as the trainer evaluates it in float32.
        near: what of each value may flip where float32 cannot tell something from a threshold, ``[n]`` (a flag is 1), or None.
    """

    values: Floats
    sizes: Floats
    near: Flags | Floats | None = None

    @classmethod
    def plain(cls, values: Floats) -> Values:
        """Values that are summands themselves; where none is negative, ``sizes`` is the same array."""
        return cls(values, values if not values.size or values.min() >= 0 else np.abs(values))


Function = Callable[[Batch, Arguments], Values]


@frozen(eq=False)
class Quantity:
    """One quantity.

    Attributes:
        name: as recipes call it.
        function: (batch, arguments) -> values.
        needs: arguments -> columns without which it is skipped.
        difference: (batch, arguments) -> the log-ratio of which it is a function, ``[n_selected]``, or None.
        additive: whether a token's value does not depend on which other tokens are selected.
        rows: whether, of the tokens that are trained on, it has one value per sequence and not per token.
    """

    name: str
    function: Function
    needs: Callable[[Arguments], tuple[str, ...]]
    difference: Callable[[Batch, Arguments], Floats] | None = None
    additive: bool = True
    rows: bool = False


_MOST_KEPT: Final = 24
_MOST_NUMBERS: Final = 1 << 22
"""Quantities of a batch that are kept, and tokens of all of them."""
_QUANTITIES: Final[dict[str, Quantity]] = {}


def quantity(
    name: str,
    needs: Callable[[Arguments], tuple[str, ...]],
    *,
    difference: Callable[[Batch, Arguments], Floats] | None = None,
    additive: bool = True,
    rows: bool = False,
) -> Callable[[Function], Function]:
    """Register a function (batch, arguments) -> values under a name."""

    def register(function: Function) -> Function:
        if name in _QUANTITIES:
            raise ValueError(f"quantity {name} is registered twice")
        _QUANTITIES[name] = Quantity(name, function, needs, difference, additive, rows)
        return function

    return register


def find_quantity(name: str) -> Quantity:
    """The quantity of that name.

    Raises:
        KeyError: there is none.
    """
    return _QUANTITIES[name]


def evaluated(batch: Batch, given: Given) -> Values:
    """A quantity of a batch; the last few are kept, as keys that follow each other are made of the same ones."""
    return _kept(batch, given.key, lambda: find_quantity(given.name).function(batch, given.arguments))


def _kept(batch: Batch, key: object, make: Callable[[], T]) -> T:
    kept: dict[object, Any] = batch.scratch.setdefault(evaluated, {})
    found: T | None = kept.pop(key, None)
    if found is None:
        found = make()
        most = min(_MOST_KEPT, _MOST_NUMBERS // max(batch.n_tokens, 1))
        while kept and len(kept) >= max(most, 1):
            del kept[next(iter(kept))]
    kept[key] = found
    return found


def inner(arguments: Arguments, name: str) -> Given:
    """The argument of that name, which is a quantity."""
    given = arguments[name]
    assert isinstance(given, Given), name  # noqa: S101 - tables are held to it by their tests
    return given


def needs_of(given: Given) -> tuple[str, ...]:
    """Columns without which a quantity and those among its arguments are skipped; none of what is multiplied by 0."""
    if given.name == "scaled" and not number(given.arguments, "factor"):
        return ()
    own = find_quantity(given.name).needs(given.arguments)
    nested = (needs_of(value) for value in given.arguments.values() if isinstance(value, Given))
    return tuple(dict.fromkeys((*own, *(name for names in nested for name in names))))


def additive(given: Given) -> bool:
    """Whether a token's value does not depend on which other tokens are selected."""
    nested = (additive(value) for value in given.arguments.values() if isinstance(value, Given))
    return find_quantity(given.name).additive and all(nested)


def word(arguments: Arguments, name: str, default: str = "") -> str:
    """An argument that is a word."""
    return str(arguments.get(name, default))


def number(arguments: Arguments, name: str) -> float | None:
    """An argument that is a number; None where it is not given."""
    value = arguments.get(name)
    return None if value is None or isinstance(value, Given) else float(value)


def pair(arguments: Arguments) -> tuple[str, ...]:
    """The columns whose difference ``first - second`` the quantity is a function of: by default logprob - old_logprob.

    None where the log-ratio is given as a quantity ``x``.
    """
    return () if "x" in arguments else (word(arguments, "first", "logprob"), word(arguments, "second", "old_logprob"))


def log_ratio(batch: Batch, arguments: Arguments) -> Values:
    """``first - second`` at the selected tokens, or the quantity ``x``; within ``clamp`` if that is given."""
    if "x" in arguments:
        found = evaluated(batch, inner(arguments, "x"))
    else:
        first, second = pair(arguments)
        found = _kept(batch, (first, second), lambda: Values.plain(selected(batch, first) - selected(batch, second)))
    bound = number(arguments, "clamp")
    return found if bound is None else Values(np.clip(found.values, -bound, bound), np.minimum(found.sizes, bound), found.near)


def exponential(batch: Batch, arguments: Arguments) -> Floats:
    """The exponential of the values of ``log_ratio``, float64 ``[n_selected]``."""
    of = inner(arguments, "x").key if "x" in arguments else pair(arguments)
    with np.errstate(over="ignore"):
        return _kept(batch, ("exp", of, number(arguments, "clamp")), lambda: np.exp(log_ratio(batch, arguments).values))


def difference(batch: Batch, arguments: Arguments) -> Floats:
    """The values of ``log_ratio``, float64 ``[n_selected]``."""
    return log_ratio(batch, arguments).values


def ratio_of(batch: Batch, arguments: Arguments) -> Values:
    """The exponential of ``log_ratio``, of which float32 loses more where that is large."""
    x, value = log_ratio(batch, arguments), exponential(batch, arguments)
    with np.errstate(over="ignore"):
        return Values(value, value * _rounding(x.sizes))


def _rounding(size: Floats) -> Floats:
    """Relative error of exp(x) where x has summands of that size in float32, in units of the tolerance."""
    return 1.0 + EPSILON32 / TOLERANCE * size


def advantage_column(arguments: Arguments) -> tuple[str, ...]:
    """The column of advantages, unless they are given as a quantity ``advantage``."""
    return () if "advantage" in arguments else ("advantage",)


def advantage_of(batch: Batch, arguments: Arguments) -> Floats:
    """The advantages at the selected tokens, or the quantity ``advantage``."""
    return evaluated(batch, inner(arguments, "advantage")).values if "advantage" in arguments else selected(batch, "advantage")


_ESTIMATES: Final[Mapping[str, Callable[[Floats], Floats]]] = {"k1": k1, "k2": k2, "abs": np.abs}


def estimated(x: Floats, kind: str) -> Values:
    """The KL estimate ``kind`` (k1, k2, k3, abs) of x ``[n]``."""
    if kind == "k3":
        with np.errstate(over="ignore", invalid="ignore"):
            value, power, size = k3(x), np.exp(x), np.abs(x)
            rounded = (1.0 + 0.5 * size) * power  # half of it of the difference that is exponentiated
            return Values(value, value + EPSILON32 / TOLERANCE * (rounded + size + 1.0))  # as in ``k3_size``
    return Values.plain(_ESTIMATES[kind](x))


@quantity("column", lambda a: (word(a, "name"),))
def _column(batch: Batch, arguments: Arguments) -> Values:
    """A token column as it is."""
    return Values.plain(selected(batch, word(arguments, "name")))


@quantity("log_ratio", pair, difference=difference)
def _log_ratio(batch: Batch, arguments: Arguments) -> Values:
    """``first - second``."""
    return log_ratio(batch, arguments)


@quantity("abs_log_ratio", pair, difference=difference)
def _abs_log_ratio(batch: Batch, arguments: Arguments) -> Values:
    """|first - second|."""
    x = log_ratio(batch, arguments)
    return Values(np.abs(x.values), x.sizes)


@quantity("ratio", pair, difference=difference)
def _ratio(batch: Batch, arguments: Arguments) -> Values:
    """exp(first - second)."""
    return ratio_of(batch, arguments)


@quantity("estimate", pair, difference=difference)
def _estimate(batch: Batch, arguments: Arguments) -> Values:
    """A KL estimate of x = first - second: k1 is -x, k2 x^2/2, k3 exp(x) - 1 - x, abs |x|; within ``most`` if that is given."""
    found = estimated(difference(batch, arguments), word(arguments, "kind", "k1"))
    bound = number(arguments, "most")
    if bound is None:
        return found
    return bounded(found, bound)


def bounded(found: Values, most: float) -> Values:
    """Values kept within [-most, most]; of those that are, nothing is rounded away."""
    return Values(np.clip(found.values, -most, most), np.where(np.abs(found.values) < most, found.sizes, most), found.near)


@quantity("surrogate", lambda a: (*pair(a), *advantage_column(a)), difference=difference)
def _surrogate(batch: Batch, arguments: Arguments) -> Values:
    """PPO's loss per token, with ``low``, ``high`` and, if given, ``dual``: see ``surrogate_loss``."""
    x, advantage = log_ratio(batch, arguments), advantage_of(batch, arguments)
    low, high = number(arguments, "low") or 0.0, number(arguments, "high") or 0.0
    with np.errstate(over="ignore"):
        value = surrogate_of_ratio(exponential(batch, arguments), advantage, low, high, number(arguments, "dual"))
        return Values(value, np.abs(value) * _rounding(x.sizes))


@quantity("binds", lambda a: (*pair(a), *advantage_column(a)), difference=difference)
def _binds(batch: Batch, arguments: Arguments) -> Values:
    """Whether the clip range binds: the ratio is above it and the advantage positive, or below it and negative.

    With ``side`` ("low", "high") on that side alone.
    """
    x, advantage = log_ratio(batch, arguments), advantage_of(batch, arguments)
    low, high = 1.0 - (number(arguments, "low") or 0.0), 1.0 + (number(arguments, "high") or 0.0)
    ratio = exponential(batch, arguments)
    below, above = (ratio < low) & (advantage < 0), (ratio > high) & (advantage > 0)
    flags = {"low": below, "high": above}.get(word(arguments, "side"), below | above)
    return flagged(flags, close(ratio, low, high, spread=_spread(x, arguments)) & (advantage != 0))


@quantity("outside", pair, difference=difference)
def _outside(batch: Batch, arguments: Arguments) -> Values:
    """Whether the ratio is outside [1 - low, 1 + high], whatever the advantage; a bound that is None does not count."""
    x = log_ratio(batch, arguments)
    ratio = exponential(batch, arguments)
    below, above = number(arguments, "low"), number(arguments, "high")
    low, high = 0.0 if below is None else 1.0 - below, np.inf if above is None else 1.0 + above
    return flagged((ratio < low) | (ratio > high), close(ratio, low, high, spread=_spread(x, arguments)))


def _spread(x: Values, arguments: Arguments) -> Floats | float:
    """How much less surely float32 gives the ratio where its logarithm is itself a sum."""
    return 1.0 + x.sizes if "x" in arguments else 1.0


def close(values: Floats, *bounds: float, spread: Floats | float = 1.0) -> Flags:
    """Where float32 cannot tell values ``[n]`` from a bound; ``spread`` times as far for what is summed up."""
    near = np.zeros(values.size, np.bool_)
    widest = np.fmax.reduce(spread, initial=0.0)
    for bound in bounds:
        if 0.0 < bound < np.inf:
            apart, limit = np.abs(values - bound), 4 * EPSILON32 * max(bound, 1.0)
            if (apart < limit * widest).any():
                near |= apart < limit * spread
    return near


def flagged(flags: Flags, near: Flags) -> Values:
    """Flags as 0 and 1, with those that may flip."""
    values = flags.astype(np.float64)
    return Values(values, values, near if near.any() else None)


@quantity("row", lambda a: (word(a, "name", ""),))
def _row(batch: Batch, arguments: Arguments) -> Values:
    """A sequence column, NaN for null."""
    column = batch.columns[word(arguments, "name", "")]
    return Values.plain(np.where(known(column), column.astype(np.float64), np.nan))


@quantity("row_is", lambda a: (word(a, "name", ""),))
def _row_is(batch: Batch, arguments: Arguments) -> Values:
    """Whether a sequence column has the value ``value``, 0 or 1; NaN for null."""
    column = batch.columns[word(arguments, "name", "")]
    return Values.plain(np.where(known(column), column == arguments["value"], np.nan))
