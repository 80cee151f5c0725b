"""Keys that a trainer's table defines by a recipe, as reductions over a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, per_sequence_sums
from rl_doctor.analyzer.dialects.recipes import CELL, Argument, Recipe
from rl_doctor.analyzer.dialects.registry import Name, Trainer, bounds_of, plain
from rl_doctor.analyzer.recompute.folds import folded, shares_of
from rl_doctor.analyzer.recompute.quantities import Arguments, Quantity, Values, find_quantity
from rl_doctor.analyzer.recompute.registry import TOLERANCE, UNKNOWN, Entries, Logged, entry
from rl_doctor.analyzer.recompute.stages import sums_by
from rl_doctor.analyzer.recompute.statistics import (
    NONE,
    Reading,
    Statistics,
    deviation_of,
    largest_of,
    mean_of,
    of_tokens,
    smallest_of,
)
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch

_CONFIG: Final = "config."
_NATIVE: Final = "native."
_MAYBE: Final = "?"
_MASKS: Final = ("is_padding", "response_mask")
_TOLD: Final = ("minibatch", "microbatch")
"""Columns of ``CELL`` that a run has unless nothing is known of its parts; without the others there is one rank, one pass."""
_UNKNOWN: Final = object()
_NUMPY: Final[Mapping[str, Callable[[Floats], Any]]] = {
    "mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min, "median": np.median,
}  # fmt: skip


def keys_of(trainer: Trainer, info: RunInfo, names: Collection[str]) -> tuple[Logged, ...]:
    """The keys that a run logged and that the table of its trainer has a recipe for, in the versions that the run may be of."""
    bounds = bounds_of(info.trainer_version)
    written = {plain(name): name for name in names}
    found: dict[str, Logged] = {}
    for item in trainer.names:
        native = written.get(plain(item.native))
        if native is None or native in found or item.definition is None or not bounds.within(item):
            continue
        if item.algorithms and (info.algorithm or "").lower() not in item.algorithms:
            continue
        for made in _keys(item, native, info):
            found[native] = made
            break
    return tuple(found.values())


def _keys(item: Name, native: str, info: RunInfo) -> Iterator[Logged]:
    assert item.definition is not None  # noqa: S101 - the caller looked
    for recipe in item.definition.recipes:
        if not all(setting(name, info) in values for name, values in recipe.when.items()):
            continue
        arguments = resolved(recipe, info)
        if arguments is not None:
            yield logged(native, item.metric, recipe, arguments)


def setting(name: str, info: RunInfo) -> Any:
    """What ``config.<field>`` or ``native.<key>`` of a run is; a sentinel that equals nothing where that is not known."""
    maybe = name.endswith(_MAYBE)
    name = name.removesuffix(_MAYBE)
    value: Any = None
    if name.startswith(_CONFIG):
        value = getattr(info.config, name.removeprefix(_CONFIG))
    else:
        value = info.config.native
        for part in name.removeprefix(_NATIVE).split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return _UNKNOWN if value is None and not maybe else value


def resolved(recipe: Recipe, info: RunInfo) -> Arguments | None:
    """The arguments of a recipe's quantity with the run's settings in place of their names; None where one is not known."""
    found: dict[str, Argument] = {}
    for name, value in recipe.value.arguments:
        given = setting(value, info) if isinstance(value, str) and value.startswith((_CONFIG, _NATIVE)) else value
        if given is _UNKNOWN:
            return None
        found[name] = given
    return found


def logged(native: str, metric: str | None, recipe: Recipe, arguments: Arguments) -> Logged:
    """One key, recomputed by its recipe."""
    known = find_quantity(recipe.value.name)
    make = _rollout if recipe.level == "rollout" else _staged if recipe.statistic == "mean" else _at_once
    reduction, entries = make(known, recipe, arguments)
    return Logged(native, metric, recipe.unit, reduction, entries, "step")


def _of_mask(batch: Batch, recipe: Recipe) -> Batch:
    """The batch whose response mask is the recipe's."""
    if recipe.mask == "response_mask":
        return batch
    key = ("masked", recipe.mask)
    if key not in batch.scratch:
        columns = {name: values for name, values in batch.columns.items() if name != "response_mask"}
        if recipe.mask != "stored":
            columns["response_mask"] = batch.columns[recipe.mask]
        batch.scratch[key] = replace(batch, columns=columns, scratch={})
    masked: Batch = batch.scratch[key]
    return masked


def _needs(known: Quantity, recipe: Recipe, arguments: Arguments) -> tuple[str, ...]:
    mask = (recipe.mask,) if recipe.mask == "loss_mask" else ()
    divisor = (recipe.fold.divisor,) if recipe.fold.divisor else ()
    apart = (name for name in recipe.fold.apart if name in _TOLD)
    return (*known.needs(arguments), *mask, *divisor, *apart)


def _staged(known: Quantity, recipe: Recipe, arguments: Arguments) -> tuple[Reduction, Callable[[Any], Entries]]:
    @derived
    def share(batch: Batch) -> Any:
        masked = _of_mask(batch, recipe)
        return shares_of(masked, _row_sums(masked, known.function(masked, arguments), recipe.factor), recipe.fold)

    reduction = sums_by(CELL, share, needs=_needs(known, recipe, arguments), optional=_MASKS)
    return replace(reduction, needs=_needs(known, recipe, arguments)), folded(recipe.fold)(())


def _row_sums(batch: Batch, found: Values, factor: float) -> tuple[Floats, Floats, Floats | None]:
    slack = None if found.near is None else abs(factor) * per_sequence_sums(batch, found.near)
    return factor * per_sequence_sums(batch, found.values), abs(factor) * per_sequence_sums(batch, found.sizes), slack


def _at_once(known: Quantity, recipe: Recipe, arguments: Arguments) -> tuple[Reduction, Callable[[Any], Entries]]:
    """A statistic over all tokens of the step."""
    squared = recipe.statistic == "std"

    def partial(batch: Batch) -> Statistics:
        masked = _of_mask(batch, recipe)
        found = known.function(masked, arguments)
        sizes = per_sequence_sums(masked, found.sizes)
        return Statistics({"": of_tokens(masked, recipe.factor * found.values, abs(recipe.factor) * sizes, squared=squared)})

    reading: Mapping[str, Reading] = {
        "max": largest_of(""), "min": smallest_of(""), "mean": mean_of(""), "std": deviation_of("", ddof=recipe.ddof),
    }  # fmt: skip
    return Reduction(partial, NONE, _needs(known, recipe, arguments), _MASKS, "token"), reading[recipe.statistic]


def _rollout(known: Quantity, recipe: Recipe, arguments: Arguments) -> tuple[Reduction, Callable[[Any], Entries]]:
    """A statistic over the rows of a generation batch."""

    def partial(batch: Batch) -> Entries:
        found = known.function(batch, arguments)
        values = found.values
        if not values.size:
            return Entries()
        if recipe.statistic == "std":
            value = float(values.std(ddof=recipe.ddof)) if values.size > recipe.ddof else np.nan
        else:
            value = float(_NUMPY[recipe.statistic](values))
        size = float(np.sum(found.sizes) if recipe.statistic == "sum" else np.mean(found.sizes))
        return UNKNOWN if np.isnan(value) else entry(recipe.factor * value, TOLERANCE * abs(recipe.factor) * size)

    return Reduction(partial, Entries(), _needs(known, recipe, arguments), (), "rollout"), lambda state: state
