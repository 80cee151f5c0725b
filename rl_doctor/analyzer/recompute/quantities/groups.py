"""Quantities per row of a generation batch that depend on the other rows of its group, or on a bound."""

from __future__ import annotations

import numpy as np

from rl_doctor.analyzer.derive import Floats, known
from rl_doctor.analyzer.formulas.advantage import group_deviation, grpo
from rl_doctor.analyzer.formulas.groups import group
from rl_doctor.analyzer.recompute.quantities.registry import Arguments, Values, evaluated, inner, number, quantity, word
from rl_doctor.store.batch import Batch


def _named(arguments: Arguments) -> str:
    return word(arguments, "name", "reward")


def _column(batch: Batch, arguments: Arguments) -> Floats:
    column = batch.columns[_named(arguments)]
    return np.where(known(column), column.astype(np.float64), np.nan)


def _ddof(arguments: Arguments) -> int:
    return int(number(arguments, "ddof") or 0)


@quantity("rows_deviation", lambda a: (_named(a), "group"))
def _rows_deviation(batch: Batch, arguments: Arguments) -> Values:
    """The deviation of a sequence column in the row's group, with ``ddof``."""
    values = _column(batch, arguments)
    found = group(values, batch.columns["group"])
    deviation = group_deviation(found.squares, found.sizes, _ddof(arguments))
    return Values(deviation, deviation + np.abs(values))


@quantity("rows_normalised", lambda a: (_named(a), "group"))
def _rows_normalised(batch: Batch, arguments: Arguments) -> Values:
    """(value - mean of the group) / (deviation of the group with ``ddof`` + ``eps``)."""
    values = _column(batch, arguments)
    found = group(values, batch.columns["group"])
    eps = number(arguments, "eps") or 0.0
    made = grpo(values, batch.columns["group"], ddof=_ddof(arguments), eps=eps)
    scale = group_deviation(found.squares, found.sizes, _ddof(arguments)) + eps
    return Values(made, np.abs(made) + (np.abs(values) + np.abs(found.mean)) / scale)


@quantity("rows_any_above", lambda a: (_named(a), "group"))
def _rows_any_above(batch: Batch, arguments: Arguments) -> Values:
    """Whether any of the row's group is above ``bound``, over the size of the group: what adds up to 1 or 0 for each group."""
    flags = (_column(batch, arguments) > (number(arguments, "bound") or 0.0)).astype(np.float64)
    found = group(flags, batch.columns["group"])
    return Values.plain((found.mean > 0.0) / found.sizes)


@quantity("rows_all_equal", lambda a: (_named(a), "group"))
def _rows_all_equal(batch: Batch, arguments: Arguments) -> Values:
    """Whether all of the row's group are ``value``, over the size of the group: what adds up to 1 or 0 for each group."""
    flags = (_column(batch, arguments) == (number(arguments, "value") or 0.0)).astype(np.float64)
    found = group(flags, batch.columns["group"])
    return Values.plain((found.mean == 1.0) / found.sizes)


@quantity("rows_at_least", lambda _: ())
def _rows_at_least(batch: Batch, arguments: Arguments) -> Values:
    """The quantity ``of``, but at least ``bound``."""
    found = evaluated(batch, inner(arguments, "of"))
    return Values.plain(np.maximum(found.values, number(arguments, "bound") or 0.0))
