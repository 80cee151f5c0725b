"""What recipes name: quantities per token or per row. One is added by a function here or in another module of this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, known, selected
from rl_doctor.analyzer.dialects.recipes import Argument
from rl_doctor.analyzer.formulas.kl import k1, k2, k3
from rl_doctor.analyzer.formulas.policy_loss import surrogate_of_ratio
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE
from rl_doctor.analyzer.recompute.stages import Flags, k3_size
from rl_doctor.store.batch import Batch

Arguments = Mapping[str, Argument]


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """A quantity at the selected tokens, or at the rows of a generation batch.

    Attributes:
        values: float64 ``[n]``.
        sizes: float64 ``[n]``, size of the summands behind each value as the trainer evaluates it in float32.
        near: where float32 cannot tell a value from a threshold, bool ``[n]``, or None.
    """

    values: Floats
    sizes: Floats
    near: Flags | None = None

    @classmethod
    def plain(cls, values: Floats) -> Values:
        """Values that are summands themselves."""
        return cls(values, np.abs(values))


Function = Callable[[Batch, Arguments], Values]


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """One quantity.

    Attributes:
        name: as recipes call it.
        function: (batch, arguments) -> values.
        needs: arguments -> columns without which it is skipped.
        difference: (batch, arguments) -> the log-ratio of which it is a function, ``[n_selected]``, or None.
        additive: whether a token's value does not depend on which other tokens are selected.
    """

    name: str
    function: Function
    needs: Callable[[Arguments], tuple[str, ...]]
    difference: Callable[[Batch, Arguments], Floats] | None = None
    additive: bool = True


_QUANTITIES: Final[dict[str, Quantity]] = {}


def quantity(
    name: str,
    needs: Callable[[Arguments], tuple[str, ...]],
    *,
    difference: Callable[[Batch, Arguments], Floats] | None = None,
    additive: bool = True,
) -> Callable[[Function], Function]:
    """Register a function (batch, arguments) -> values under a name."""

    def register(function: Function) -> Function:
        if name in _QUANTITIES:
            raise ValueError(f"quantity {name} is registered twice")
        _QUANTITIES[name] = Quantity(name, function, needs, difference, additive)
        return function

    return register


def find_quantity(name: str) -> Quantity:
    """The quantity of that name.

    Raises:
        KeyError: there is none.
    """
    return _QUANTITIES[name]


def _word(arguments: Arguments, name: str, default: str) -> str:
    return str(arguments.get(name, default))


def _number(arguments: Arguments, name: str) -> float | None:
    value = arguments.get(name)
    return None if value is None else float(value)


def _pair(arguments: Arguments) -> tuple[str, str]:
    """The columns whose difference ``first - second`` the quantity is a function of: by default logprob - old_logprob."""
    return _word(arguments, "first", "logprob"), _word(arguments, "second", "old_logprob")


def difference(batch: Batch, arguments: Arguments) -> Floats:
    """``first - second`` at the selected tokens, within ``clamp`` if that is given, float64 ``[n_selected]``."""
    first, second = _pair(arguments)
    values = selected(batch, first) - selected(batch, second)
    bound = _number(arguments, "clamp")
    return values if bound is None else np.clip(values, -bound, bound)


def _rounding(x: Floats) -> Floats:
    """Relative error of exp(x) where x is rounded to float32, in units of the tolerance."""
    return 1.0 + EPSILON32 / TOLERANCE * np.abs(x)


_ESTIMATES: Final[Mapping[str, Callable[[Floats], Floats]]] = {"k1": k1, "k2": k2, "abs": np.abs}


@quantity("column", lambda a: (_word(a, "name", ""),))
def _column(batch: Batch, arguments: Arguments) -> Values:
    """A token column as it is."""
    return Values.plain(selected(batch, _word(arguments, "name", "")))


@quantity("log_ratio", _pair, difference=difference)
def _log_ratio(batch: Batch, arguments: Arguments) -> Values:
    """``first - second``."""
    return Values.plain(difference(batch, arguments))


@quantity("abs_log_ratio", _pair, difference=difference)
def _abs_log_ratio(batch: Batch, arguments: Arguments) -> Values:
    """|first - second|."""
    return Values.plain(np.abs(difference(batch, arguments)))


@quantity("ratio", _pair, difference=difference)
def _ratio(batch: Batch, arguments: Arguments) -> Values:
    """exp(first - second)."""
    x = difference(batch, arguments)
    with np.errstate(over="ignore"):
        value = np.exp(x)
    return Values(value, value * _rounding(x))


@quantity("estimate", _pair, difference=difference)
def _estimate(batch: Batch, arguments: Arguments) -> Values:
    """A KL estimate of x = first - second: k1 is -x, k2 x^2/2, k3 exp(x) - 1 - x, abs |x|; within ``most`` if that is given."""
    x = difference(batch, arguments)
    kind = _word(arguments, "kind", "k1")
    if kind == "k3":
        with np.errstate(over="ignore", invalid="ignore"):
            value = k3(x)
            size = k3_size(x, value)
    else:
        value = _ESTIMATES[kind](x)
        size = np.abs(value)
    bound = _number(arguments, "most")
    return Values(value, size) if bound is None else Values(np.clip(value, -bound, bound), np.minimum(size, bound + 1.0))


@quantity("surrogate", lambda a: (*_pair(a), "advantage"), difference=difference)
def _surrogate(batch: Batch, arguments: Arguments) -> Values:
    """PPO's loss per token, with ``low``, ``high`` and, if given, ``dual``: see ``surrogate_loss``."""
    x, advantage = difference(batch, arguments), selected(batch, "advantage")
    low, high = float(arguments["low"] or 0.0), float(arguments["high"] or 0.0)
    with np.errstate(over="ignore"):
        value = surrogate_of_ratio(np.exp(x), advantage, low, high, _number(arguments, "dual"))
    return Values(value, np.abs(value) * _rounding(x))


@quantity("binds", lambda a: (*_pair(a), "advantage"), difference=difference)
def _binds(batch: Batch, arguments: Arguments) -> Values:
    """Whether the clip range binds: the ratio is above it and the advantage positive, or below it and negative."""
    ratio, advantage = _ratio(batch, arguments).values, selected(batch, "advantage")
    low, high = 1.0 - float(arguments["low"] or 0.0), 1.0 + float(arguments["high"] or 0.0)
    flags = ((ratio < low) & (advantage < 0)) | ((ratio > high) & (advantage > 0))
    return _flags(flags, _near(ratio, low, high) & (advantage != 0))


@quantity("outside", _pair, difference=difference)
def _outside(batch: Batch, arguments: Arguments) -> Values:
    """Whether the ratio is outside [1 - low, 1 + high], whatever the advantage; a bound that is None does not count."""
    ratio = _ratio(batch, arguments).values
    below, above = _number(arguments, "low"), _number(arguments, "high")
    low, high = 0.0 if below is None else 1.0 - below, np.inf if above is None else 1.0 + above
    return _flags((ratio < low) | (ratio > high), _near(ratio, low, high))


def _near(ratio: Floats, *bounds: float) -> Flags:
    """Where float32 cannot tell the ratio from a bound."""
    near = np.zeros(ratio.size, np.bool_)
    for bound in bounds:
        if 0.0 < bound < np.inf:
            near |= np.abs(ratio - bound) < 4 * EPSILON32 * max(bound, 1.0)
    return near


def _flags(flags: Flags, near: Flags) -> Values:
    values = flags.astype(np.float64)
    return Values(values, values, near)


@quantity("row", lambda a: (_word(a, "name", ""),))
def _row(batch: Batch, arguments: Arguments) -> Values:
    """A sequence column, NaN for null."""
    column = batch.columns[_word(arguments, "name", "")]
    return Values.plain(np.where(known(column), column.astype(np.float64), np.nan))


@quantity("row_is", lambda a: (_word(a, "name", ""),))
def _row_is(batch: Batch, arguments: Arguments) -> Values:
    """Whether a sequence column has the value ``value``, 0 or 1; NaN for null."""
    column = batch.columns[_word(arguments, "name", "")]
    return Values.plain(np.where(known(column), column == arguments["value"], np.nan))
