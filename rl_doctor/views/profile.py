"""A quantity over all responses of a step: along the response, and by token id."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import positions, selection
from rl_doctor.store.batch import Batch
from rl_doctor.store.lookup import rows_of_step
from rl_doctor.store.run import Run
from rl_doctor.views.quantities import QUANTITIES, Quantity
from rl_doctor.views.rows import Tokenizer, id_texts
from rl_doctor.views.table import Table

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BINS: Final = 60
"""Bins that the longest response of a step is cut into at most."""
_VOCABULARY: Final = 1 << 20
"""Ids in a range that is not much wider are counted in it, which is cheaper than sorting them."""
_ById = tuple[NDArray[Any], Floats, NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Means along the response, by bins of positions.

    Attributes:
        positions: the middle of each bin, float64 ``[n]``.
        width: positions of a bin.
        own: mean of this response, ``[n]``, NaN where it has no trained token with a value.
        others: mean over all responses of the step, likewise.
        counts: trained tokens of the step in each bin, int64 ``[n]``.
        table: the numbers.
    """

    positions: Floats
    width: int
    own: Floats
    others: Floats
    counts: NDArray[np.int64]
    table: Table


@dataclass(frozen=True, slots=True, eq=False)
class OfStep:
    """Sums over the trained tokens of a step.

    Attributes:
        width: positions of a bin.
        sums: of the values by bin of positions, ``[bins]``.
        counts: tokens in each bin.
        ids: token ids, increasing, ``[k]``.
        weights: how far the tokens of each id are from neutral, summed, ``[k]``.
        numbers: how many tokens each id has, ``[k]``.
    """

    width: int
    sums: Floats
    counts: NDArray[np.int64]
    ids: NDArray[Any]
    weights: Floats
    numbers: NDArray[np.int64]


@lru_cache(maxsize=8)
def of_step(run: Run, step: int, name: str) -> OfStep:
    """Go over the tokens of a step. What comes out is kept, since each click on the page asks for it again.

    Args:
        run: the run.
        step: a step that has rows.
        name: of the quantity.

    Raises:
        InputError: the rows cannot be read.
    """
    quantity = QUANTITIES[name]
    rows = rows_of_step(run, step)
    stored = np.array([0]) if rows is None else np.diff(rows.splits)
    width = max(1, -(-int(stored.max(initial=1)) // BINS))
    size = -(-int(max(stored.max(initial=1), 1)) // width)
    sums, counts = np.zeros(size), np.zeros(size, np.int64)
    told: list[_ById] = []
    for batch in run.only([step]).batches({*quantity.columns(), "token_id"}):
        plain = quantity.values(batch)
        values = _drawn(quantity, plain)
        kept = selection(batch) & np.isfinite(values)
        if quantity.name == "masked":
            kept = np.isfinite(values)
        at = positions(batch)[kept] // width
        sums += np.bincount(at, values[kept], size)
        counts += np.bincount(at, minlength=size)
        ids = batch.get("token_id")
        if ids is not None:
            told.append(_by_id(ids[kept], quantity.distance(plain[kept])))
    return OfStep(width, sums, counts, *_merged(told))


def _by_id(ids: NDArray[Any], distance: Floats) -> _ById:
    """Ids, increasing, with the sum of ``distance`` ``[n]`` and the number of tokens of each."""
    lowest = int(ids.min(initial=0))
    if int(ids.max(initial=0)) - lowest > len(ids) + _VOCABULARY:
        found, ids = np.unique(ids, return_inverse=True)
        return found, np.bincount(ids, distance, len(found)).astype(np.float64), np.bincount(ids)
    numbers, weights = np.bincount(ids - lowest), np.bincount(ids - lowest, distance).astype(np.float64)
    found = np.flatnonzero(numbers)
    return found + lowest, weights[found], numbers[found]


def _merged(told: list[_ById]) -> _ById:
    """Ids, increasing, with their sums and numbers, of several batches that have each id once."""
    if not told:
        return np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64)
    if len(told) == 1:
        return told[0]
    ids, weights, times = (np.concatenate(column) for column in zip(*told, strict=True))
    found, where = np.unique(ids, return_inverse=True)
    sums, numbers = (np.bincount(where, column, len(found)) for column in (weights, times))
    return found, sums.astype(np.float64), numbers.astype(np.int64)


def _drawn(quantity: Quantity, values: Floats) -> Floats:
    """What a profile averages: the value, of flags how often they are not the neutral one."""
    return quantity.distance(values) if quantity.scale == "flags" else values


def profile(batch: Batch, quantity: Quantity, values: Floats, chosen: Bools, step: OfStep) -> Profile:
    """The means along a response and along all of its step.

    Args:
        batch: the response alone.
        quantity: what is drawn.
        values: of it, float64 ``[n_tokens]``.
        chosen: bool ``[n_tokens]``, tokens trained on.
        step: what ``of_step`` gave.
    """
    drawn = _drawn(quantity, values)
    kept = np.isfinite(drawn) & (chosen | (quantity.name == "masked"))
    at, size = positions(batch)[kept] // step.width, len(step.sums)
    sums, counts = np.bincount(at, drawn[kept], size), np.bincount(at, minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        own = np.where(counts > 0, sums / counts, np.nan)
        others = np.where(step.counts > 0, step.sums / step.counts, np.nan)
    middle = np.arange(size, dtype=np.float64) * step.width + (step.width - 1) / 2
    table = {"position": middle, "response": own, "step": others, "tokens": step.counts}
    return Profile(middle, step.width, own, others, step.counts, table)


def carriers(step: OfStep, tokenizer: Tokenizer | None, most: int) -> Table | None:
    """The token ids that carry most of the distance from neutral over the step."""
    total = float(step.weights.sum())
    if not len(step.ids) or not total > 0:
        return None
    order = np.argsort(-step.weights, kind="stable")[:most]
    order = order[step.weights[order] > 0]
    ids = step.ids[order]
    return {
        "token": id_texts(ids, tokenizer), "token_id": ids, "share": step.weights[order] / total,
        "mean": step.weights[order] / step.numbers[order], "tokens": step.numbers[order],
    }  # fmt: skip
