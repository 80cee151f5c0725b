"""Keys that a trainer's table defines by a recipe, as reductions over a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, derived, per_sequence_sums, selected_splits, selection
from rl_doctor.analyzer.dialects.recipes import CELL, Recipe
from rl_doctor.analyzer.dialects.registry import Name, Trainer, bounds_of, matching, pattern, plain, spelled
from rl_doctor.analyzer.formulas.segments import segment_extremes
from rl_doctor.analyzer.needs import lacking
from rl_doctor.analyzer.recompute.configured import Made, holds, other_range, resolved, setting
from rl_doctor.analyzer.recompute.extremes import Range, Ranges
from rl_doctor.analyzer.recompute.folds import NO_PIECES, Pair, Pieces, folded, row_scale, shares_of, staged_values
from rl_doctor.analyzer.recompute.joined import joined
from rl_doctor.analyzer.recompute.quantities.registry import Values, evaluated, find_quantity
from rl_doctor.analyzer.recompute.registry import TOLERANCE, UNKNOWN, Entries, Hypothesis, Logged, entry
from rl_doctor.analyzer.recompute.stages import Share, Shares, keyed_rows, sums_by
from rl_doctor.analyzer.recompute.statistics import (
    NONE,
    Reading,
    Statistic,
    Statistics,
    deviation_of,
    ends_of,
    largest_of,
    mean_of,
    of_rows,
    of_tokens,
    smallest_of,
)
from rl_doctor.analyzer.recompute.variations.recipes import other_recipes
from rl_doctor.analyzer.recompute.variations.values import Valued
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

_MASKS: Final = ("is_padding", "response_mask")
_POOLED: Final = ("epoch",)
"""What tells parts apart where nothing has to: a column that most runs have one value of in a step."""
_NUMPY: Final[Mapping[str, Callable[[Floats], Any]]] = {
    "mean": np.mean, "sum": np.sum, "max": np.max, "min": np.min, "median": np.median,
}  # fmt: skip


def keys_of(
    trainer: Trainer, info: RunInfo, names: Collection[str], columns: Collection[str] | None = None
) -> tuple[Logged, ...]:
    """The keys that a run logged and that the table of its trainer has a recipe for, in the versions that the run may be of.

    Args:
        trainer: the table.
        info: the run's description.
        names: what the run logged.
        columns: those that the run has: of several recipes the first whose columns are there is taken. None: the first.
    """
    bounds = bounds_of(info.trainer_version)
    found: dict[str, Logged] = {}
    decided: set[str] = set()
    for item, native, words in _written(trainer, names):
        if native in found or native in decided or item.definition is None or not bounds.within(item):
            continue
        if item.algorithms and (info.algorithm or "").lower() not in item.algorithms:
            continue
        if item.family:  # the first that a name belongs to, whether it can be recomputed or not
            decided.add(native)
        known = list(_keys(item, native, words, info))
        with_columns = [] if columns is None else [key for key in known if not lacking(key.reduction.needs, columns, info.config)]
        if known:
            found[native] = (with_columns or known)[0]
    return tuple(found.values())


def _written(trainer: Trainer, names: Collection[str]) -> Iterator[tuple[Name, str, Mapping[str, str]]]:
    """Entries of the table with the logged names that they stand for, exact ones first, and the words of a family's places."""
    written = {plain(name): name for name in names}
    for item in trainer.names:
        if not item.family and (native := written.get(plain(item.native))) is not None:
            yield item, native, {}
    exact = {plain(item.native) for item in trainer.names if not item.family}
    rest = {name: native for name, native in written.items() if name not in exact}
    for item in trainer.names:
        if item.family and item.definition is not None:
            for name in matching(item.native, rest):
                yield item, rest[name], _words(item.native, rest[name])


def _words(family: str, native: str) -> Mapping[str, str]:
    """What stands in the places of a family's name, as the trainer wrote it."""
    written = native.replace(" / ", "/")
    made = spelled(written)
    match = pattern(family).fullmatch(made)
    start = len(written) - len(made)
    return (
        {}
        if match is None
        else {place: written[start + match.start(place) : start + match.end(place)] for place in match.groupdict()}
    )


def _keys(item: Name, native: str, words: Mapping[str, str], info: RunInfo) -> Iterator[Logged]:
    assert item.definition is not None  # noqa: S101 - the caller looked
    metric = item.metric if item.metric is None or not words else item.metric.format(**words)
    for recipe in item.definition.recipes:
        if all(holds(setting(name, info, words), values) for name, values in recipe.when.items()):
            made = resolved(recipe, info, words)
            if made is not None:
                key, told = logged(native, metric, made), other_range(recipe, info)
                other = None if told is None else resolved(recipe, info, words, elsewhere=True)
                if told is None or other is None:
                    yield key
                else:
                    first = (Hypothesis(*told, *_joined(other)),)
                    yield replace(key, hypotheses=partial(_with_first, first, key.hypotheses))


def _with_first(first: tuple[Hypothesis, ...], others: Callable[[], tuple[Hypothesis, ...]]) -> tuple[Hypothesis, ...]:
    return (*first, *others())


def logged(native: str, metric: str | None, made: Made) -> Logged:
    """One key, recomputed by its recipe."""
    hypotheses = partial(other_recipes, made, _reduced, _share_of)
    return Logged(native, metric, made.recipe.unit, *_joined(made), "step", hypotheses)


def _joined(made: Made) -> tuple[Reduction, Callable[[Any], Entries]]:
    """A recipe with those that go into its number as well."""
    own = _reduced(made)
    return joined([own, *map(_reduced, made.beside)], made.recipe.joined) if made.beside else own


def _reduced(made: Made) -> tuple[Reduction, Callable[[Any], Entries]]:
    recipe = made.recipe
    if recipe.level == "rollout":
        return _rollout(made)
    if recipe.statistic == "mean":
        return _staged(made)
    return _of_parts(made) if recipe.fold.apart else _at_once(made)


def _of_mask(batch: Batch, made: Made) -> tuple[Batch, Floats | None]:
    """The batch whose response mask is the recipe's, and per sequence the number of tokens whose condition may flip, or None."""
    mask, where = made.recipe.mask, made.where
    masked = batch
    if mask != "response_mask" and (mask == "stored" or mask in batch.columns):
        key = ("masked", mask)
        if key not in batch.scratch:
            columns = {name: values for name, values in batch.columns.items() if name != "response_mask"}
            if mask != "stored":
                columns["response_mask"] = batch.columns[mask]
            other = replace(batch, columns=columns, scratch={})
            batch.scratch[key] = None if np.array_equal(selection(other), selection(batch)) else other
        masked = batch.scratch[key] or batch
    if where is None:
        return masked, None
    condition = ("where", where.key)
    if condition not in masked.scratch:
        found = evaluated(masked, where)
        chosen = np.zeros(masked.n_tokens, np.bool_)
        chosen[np.flatnonzero(selection(masked))[found.values > 0]] = True
        near = None if found.near is None or not found.near.any() else per_sequence_sums(masked, found.near)
        masked.scratch[condition] = replace(masked, columns={**masked.columns, "response_mask": chosen}, scratch={}), near
    restricted: tuple[Batch, Floats | None] = masked.scratch[condition]
    return restricted


def _row_sums(batch: Batch, made: Made, shaky: Floats | None = None) -> tuple[Floats, Floats, Floats | None]:
    """Per sequence the sum of the values, the size of its summands, and what may flip at a threshold, ``[n_sequences]``."""
    key = ("row sums", made.value.key, made.recipe.factor, shaky is None)  # what may flip is the batch's own
    if key not in batch.scratch:
        batch.scratch[key] = _new_row_sums(batch, made, shaky)
    sums: tuple[Floats, Floats, Floats | None] = batch.scratch[key]
    return sums


def _new_row_sums(batch: Batch, made: Made, shaky: Floats | None) -> tuple[Floats, Floats, Floats | None]:
    found = evaluated(batch, made.value)
    factor = made.recipe.factor
    if find_quantity(made.value.name).rows:
        flips = None if found.near is None else abs(factor) * found.near.astype(np.float64)
        return factor * found.values, abs(factor) * found.sizes, flips
    slack: Floats | None = None if found.near is None else abs(factor) * per_sequence_sums(batch, found.near)
    if shaky is not None:
        more = shaky * (abs(factor) * float(np.abs(found.values).max(initial=1.0)))
        slack = more if slack is None else slack + more
    summed = per_sequence_sums(batch, found.values)
    sizes = summed if found.sizes is found.values else per_sequence_sums(batch, found.sizes)
    return factor * summed, abs(factor) * sizes, slack


def _share_of(made: Made, value: Valued | None = None) -> Share:
    """What each sequence adds to the parts of a step, of its own quantity or of another ``value`` per token."""

    @derived
    def share(batch: Batch) -> Shares:
        masked, shaky = _of_mask(batch, made)
        if value is None:
            return shares_of(masked, _row_sums(masked, made, shaky), made.recipe.fold)
        scale = abs(made.recipe.factor)
        numbers, sizes = (scale * per_sequence_sums(masked, part) for part in value(masked))
        return shares_of(masked, (numbers, sizes, None), made.recipe.fold)

    return share


def _staged(made: Made) -> tuple[Reduction, Callable[[Any], Entries]]:
    if made.recipe.per:
        return _pieced(made)

    by = tuple(column for column in CELL if column in made.recipe.fold.apart) or _POOLED
    reduction = sums_by(by, _share_of(made), needs=made.needs, optional=_MASKS)
    return replace(reduction, needs=made.needs), folded(made.recipe.fold, by)(())


def _pieced(made: Made) -> tuple[Reduction, Callable[[Any], Entries]]:
    """The mean over what rows are parts of."""

    def partial(batch: Batch) -> Pieces:
        masked, shaky = _of_mask(batch, made)
        return Pieces.of(masked, _row_sums(masked, made, shaky), made.recipe.per)

    return Reduction(partial, NO_PIECES, (*made.needs, "sequence"), _MASKS, "token"), Pieces.mean


def _at_once(made: Made) -> tuple[Reduction, Callable[[Any], Entries]]:
    """A statistic over all tokens of the step, or over what its rows add."""
    recipe = made.recipe
    squared, by_row = recipe.statistic == "std", recipe.fold.row != "tokens"

    def partial(batch: Batch) -> Statistics:
        masked, _ = _of_mask(batch, made)
        if by_row:
            return Statistics({"": of_rows(*_row_values(masked, made))})
        if recipe.statistic in {"max", "min"}:
            return Statistics({"": _ends(masked, made)})
        found = evaluated(masked, made.value)
        sizes = per_sequence_sums(masked, found.sizes)
        return Statistics({"": of_tokens(masked, recipe.factor * found.values, abs(recipe.factor) * sizes, squared=squared)})

    reading: Mapping[str, Reading] = {
        "max": largest_of(""), "min": smallest_of(""), "mean": mean_of(""), "std": deviation_of("", ddof=recipe.ddof),
    }  # fmt: skip
    return Reduction(partial, NONE, made.needs, _MASKS, "token"), reading[recipe.statistic]


def _ends(batch: Batch, made: Made) -> Statistic:
    """The extremes of the values of a batch, and the size of their summands."""
    key = ("ends", made.value.key, made.recipe.factor)
    if key not in batch.scratch:
        values = evaluated(batch, made.value).values
        scaled = values if made.recipe.factor == 1.0 else made.recipe.factor * values
        _, sizes, _ = _row_sums(batch, made)
        batch.scratch[key] = ends_of(scaled, sizes)
    found: Statistic = batch.scratch[key]
    return found


def _row_values(batch: Batch, made: Made) -> tuple[Floats, Floats]:
    """What each sequence adds to the fold, those that weigh nothing left out, and the size of its summands."""
    value, size, _ = _row_sums(batch, made)
    shares = shares_of(batch, (value, size, None), replace(made.recipe.fold, divisor=""))
    kept = shares.weights > 0
    return shares.numerators[kept], shares.magnitudes[kept]


def _of_parts(made: Made) -> tuple[Reduction, Callable[[Any], Entries]]:
    """The largest or the smallest value of each part, put through the stages."""
    fold, largest = made.recipe.fold, made.recipe.statistic == "max"

    def partial(batch: Batch) -> Ranges:
        masked, _ = _of_mask(batch, made)
        if fold.row == "tokens":
            found = evaluated(masked, made.value)
            splits = selected_splits(masked)
            value = segment_extremes(made.recipe.factor * found.values, splits)[int(largest)]
            slack = TOLERANCE * segment_extremes(found.sizes, splits)[1]
        else:
            value = np.full(batch.n_sequences, np.nan)
            summed, size, _ = _row_sums(masked, made)
            scale = row_scale(masked, fold)
            value, slack = summed * scale, TOLERANCE * size * scale
        return Ranges({key: Range.of(value[rows], slack[rows]) for key, rows in keyed_rows(batch, CELL)})

    def entries(state: Ranges) -> Entries:
        kept = [CELL.index(column) for column in fold.apart]
        parts: dict[tuple[int, ...], Range] = {}
        for key, item in state.groups.items():
            place = tuple(key[at] for at in kept)
            parts[place] = parts[place] + item if place in parts else item
        ends = {
            key: (item.high, item.highest - item.high) if largest else (item.low, item.low - item.lowest)
            for key, item in parts.items() if np.isfinite(item.high)
        }  # fmt: skip
        return staged_values(ends, fold)

    return Reduction(partial, Ranges({}), made.needs, (*CELL, *_MASKS), "token"), entries


def _rollout(made: Made) -> tuple[Reduction, Callable[[Any], Entries]]:
    """A statistic over the rows of a generation batch, or over those of each of its parts."""
    recipe = made.recipe

    def partial(batch: Batch) -> Entries:
        found = evaluated(batch, made.value)
        if made.where is not None:
            kept = evaluated(batch, made.where).values > 0
            found = Values(found.values[kept], found.sizes[kept])
        if not found.values.size:
            return Entries()
        if not recipe.fold.apart:
            number = len(set(batch.columns[recipe.per].tolist())) if recipe.per else None
            value, slack = _of_numbers(recipe, found, number)
            return UNKNOWN if np.isnan(value) else entry(value, slack)
        parts = {}
        for key, rows in _apart(batch, recipe.fold.apart):
            parts[key] = _of_numbers(recipe, Values(found.values[rows], found.sizes[rows]))
        return staged_values(parts, recipe.fold)

    return Reduction(partial, Entries(), made.needs, (), "rollout"), lambda state: state


def _of_numbers(recipe: Recipe, found: Values, number: int | None = None) -> Pair:
    """The statistic of some rows and what rounding can change in it; ``number`` divides a mean instead of that of the rows."""
    values = found.values
    if recipe.statistic == "std":
        value = float(values.std(ddof=recipe.ddof)) if values.size > recipe.ddof else np.nan
    elif number is not None:
        value = float(np.sum(values)) / number
    else:
        value = float(_NUMPY[recipe.statistic](values))
    size = float(np.sum(found.sizes) if recipe.statistic == "sum" else np.sum(found.sizes) / (number or values.size))
    return recipe.factor * value, TOLERANCE * abs(recipe.factor) * size


def _apart(batch: Batch, columns: tuple[str, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The rows of each combination of values of the columns, with a key for it."""
    numbered = np.stack([codes(batch.columns[name]) for name in columns], axis=1)
    unique, index = np.unique(numbered, axis=0, return_inverse=True)
    for at, key in enumerate(unique.tolist()):
        yield tuple(key), np.flatnonzero(index.reshape(-1) == at)
