"""Averages in stages: sums per micro-batch over the ranks first, then one entry per micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, per_sequence_counts, per_sequence_sums
from rl_doctor.analyzer.exact import exact_totals, short_total
from rl_doctor.analyzer.recompute.registry import EPSILON32, TOLERANCE, UNKNOWN, Entries, entry
from rl_doctor.analyzer.registry import Reduction
from rl_doctor.analyzer.states import Keyed, Sum, Sums
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch

Flags = NDArray[np.bool_]

MICROBATCH: Final = ("rollout_step", "epoch", "minibatch", "microbatch")
"""Columns that tell the micro-batches of a step apart, the same on every rank."""
MICROBATCH_OF_RANK: Final = ("rank", *MICROBATCH)
"""Columns that tell the micro-batches of a step apart, each rank's for itself."""
MINIBATCH: Final = ("rollout_step", "epoch", "minibatch")
"""Columns that tell the mini-batches of a step apart."""
_FEW_ROWS: Final = 64
"""Up to so many are added one by one: that is cheaper than the fixed cost of array operations."""
_PADDING: Final = 4
"""How many times as much as there is may be added up, with groups filled up to the largest."""
_MOST_KEYS: Final = 1 << 62
_FEW_KEYS: Final = 1 << 16
"""Numbers below it are sorted in 16 bits."""


@frozen(eq=False)
class Shares:
    """What each sequence adds to a micro-batch's average.

    Attributes:
        numerators: float64 ``[n_sequences]``.
        magnitudes: float64 ``[n_sequences]``, the sum of absolute terms behind each numerator, for the tolerance.
        weights: int64 ``[n_sequences]``, what each adds to the denominator.
        slack: float64 ``[n_sequences]``, what may flip at a threshold, in units of the numerator.
    """

    numerators: Floats
    magnitudes: Floats
    weights: NDArray[np.int64]
    slack: Floats | None = None


Share = Callable[[Batch], Shares]
Terms = tuple[tuple[int, float], ...]
"""Which averages of a micro-batch are added up, each with its factor."""


def _complete(sums: Collection[Sums], rows: Collection[int], expected_rows: int | None) -> bool:
    """Whether the micro-batches of a step are all there, each with all its rows.

    Args:
        sums: of each micro-batch (and rank); the last part sums grad_accumulation, the number of micro-batches, over rows.
        rows: number of rows of each micro-batch over all ranks.
        expected_rows: what that number should be, if known.
    """
    if expected_rows is not None and any(number != expected_rows for number in rows):
        return False
    known = [item.parts[-1] for item in sums]
    accumulation = sum(known[1:], known[0]) if known else Sum()
    return accumulation.total == 0 or accumulation.mean == len(rows)


def keyed_rows(batch: Batch, columns: tuple[str, ...]) -> list[tuple[tuple[int, ...], NDArray[np.intp]]]:
    """Each combination of values of ``columns`` (0 where the run lacks one) with the rows that carry it; once per batch."""
    key = ("keyed_rows", columns)
    if key not in batch.scratch:
        batch.scratch[key] = list(_keyed_rows(batch, columns))
    found: list[tuple[tuple[int, ...], NDArray[np.intp]]] = batch.scratch[key]
    return found


def _keyed_rows(batch: Batch, columns: Iterable[str]) -> Iterator[tuple[tuple[int, ...], NDArray[np.intp]]]:
    if not batch.n_sequences:
        return
    zeros = np.zeros(batch.n_sequences, np.int64)
    values = [batch.columns[name].astype(np.int64) if name in batch.columns else zeros for name in columns]
    number = _numbered(values)
    order = np.argsort(number, kind="stable")
    ordered = number[order]
    starts = np.concatenate([np.zeros(1, np.intp), np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
    keys = np.stack([column[order[starts]] for column in values], axis=1).tolist()
    for key, rows in zip(keys, np.split(order, starts[1:]), strict=True):
        yield tuple(key), rows


def _numbered(columns: Sequence[NDArray[np.int64]]) -> NDArray[Any]:
    """A number from 0 per row that tells the combinations of values apart and sorts as they do; small ones as uint16.

    Counting them off as digits is far cheaper than sorting rows of several columns, and numpy sorts 16 bits by their digits.
    """
    lows = [int(column.min()) for column in columns]
    widths = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
    size = math.prod(widths)
    if size > _MOST_KEYS:  # such as where a value is missing
        return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    number = np.zeros(len(columns[0]), np.int64)
    for column, low, width in zip(columns, lows, widths, strict=True):
        number = number * width + (column - low)
    return number.astype(np.uint16) if size <= _FEW_KEYS else number


def _accumulations(batch: Batch, columns: tuple[str, ...], *, read: bool) -> list[Sum]:
    """The sum of grad_accumulation over the rows of each of ``keyed_rows``, 0 unless it is read; once per batch."""
    values = batch.get("grad_accumulation") if read else None
    key = ("accumulations", columns, values is None)
    if key not in batch.scratch:
        keyed = keyed_rows(batch, columns)
        floats = None if values is None else np.maximum(values, 0).astype(np.float64)
        batch.scratch[key] = [Sum(0, len(rows)) if floats is None else Sum.of(floats[rows], len(rows)) for _, rows in keyed]
    found: list[Sum] = batch.scratch[key]
    return found


def rounded_sum(values: NDArray[Any], count: int) -> Sum:
    """A sum that is rounded within each batch, for what only has to be told from something else: cheaper than ``Sum.of``."""
    return _sum_of(float(values.sum(dtype=np.float64)), count)


def _sum_of(value: float, count: int) -> Sum:
    return Sum(short_total([value]), count) if math.isfinite(value) else Sum.of(np.array([value]), count)


@frozen(eq=False)
class _Groups:
    """Rows of a batch by their key.

    Attributes:
        keys: of each group.
        order: int64 ``[n_sequences]``, rows group by group.
        starts: int64 ``[n_groups]``, where each group starts.
        group: int64 ``[n_sequences]``, the group of each row in that order.
    """

    keys: list[tuple[int, ...]]
    order: NDArray[np.intp]
    starts: NDArray[np.intp]
    group: NDArray[np.intp]

    @classmethod
    def of(cls, batch: Batch, columns: tuple[str, ...]) -> _Groups:
        """The groups of ``keyed_rows``, once per batch."""
        key = ("groups", columns)
        if key not in batch.scratch:
            keyed = keyed_rows(batch, columns)
            lengths = np.array([len(rows) for _, rows in keyed], np.intp)
            order = np.concatenate([np.zeros(0, np.intp), *(rows for _, rows in keyed)])
            group = np.repeat(np.arange(len(keyed)), lengths)
            batch.scratch[key] = cls([name for name, _ in keyed], order, np.cumsum(lengths) - lengths, group)
        found: _Groups = batch.scratch[key]
        return found

    def rounded(self, values: NDArray[Any]) -> list[Any]:
        """Sums of values ``[n_sequences]`` per group."""
        summed: list[Any] = np.add.reduceat(values[self.order], self.starts).tolist()
        return summed

    def exact(self, values: Floats, counts: Sequence[int]) -> list[Sum]:
        """Exact sums of values ``[n_sequences]`` per group, with these counts."""
        number, ordered = len(self.keys), values[self.order]
        width = int(np.diff(np.append(self.starts, len(ordered))).max())
        if number == 1 or len(ordered) <= _FEW_ROWS or number * width > _PADDING * len(ordered) or not np.isfinite(ordered).all():
            return [Sum.of(some, count) for some, count in zip(np.split(ordered, self.starts[1:]), counts, strict=True)]
        padded = np.zeros((number, width))
        padded[self.group, np.arange(len(ordered)) - self.starts[self.group]] = ordered
        return [Sum(total, count) for total, count in zip(exact_totals(padded), counts, strict=True)]


def sums_by(
    columns: tuple[str, ...], *shares: Share, needs: tuple[str, ...], optional: tuple[str, ...] = ("grad_accumulation",),
    exact: bool = True,
) -> Reduction:  # fmt: skip
    """A token reduction: for each combination of ``columns`` the sums of each of ``shares``, whose averages are added up.

    The ``Sums`` hold numerators, magnitudes and slack of each, and last grad_accumulation, where it is read, over the rows. Those
    two, which only bound an error, are rounded within each batch.

    Args:
        columns: what tells the sums apart.
        shares: what each sequence adds.
        needs: columns that the shares need.
        optional: columns that they read where the run has them; with grad_accumulation the averages check that none is missing.
        exact: whether numerators are summed exactly.
    """

    def partial(batch: Batch) -> Keyed:
        groups = _Groups.of(batch, columns)
        if not groups.keys:
            return Keyed({})
        sums: list[list[Sum]] = []
        for share in shares:
            part = share(batch)
            counts = groups.rounded(part.weights)
            sums.append(groups.exact(part.numerators, counts) if exact else _sums_of(groups.rounded(part.numerators), counts))
            sums.append(_sums_of(groups.rounded(part.magnitudes), counts))
            sums.append([Sum()] * len(counts) if part.slack is None else _sums_of(groups.rounded(part.slack), counts))
        sums.append(_accumulations(batch, columns, read="grad_accumulation" in optional))
        return Keyed({key: Sums(parts) for key, parts in zip(groups.keys, zip(*sums, strict=True), strict=True)})

    return Summed(partial, Keyed({}), (columns[-1], *needs), (*columns, *optional), "token", columns, shares)


def _sums_of(values: Sequence[float], counts: Sequence[int]) -> list[Sum]:
    return [_sum_of(value, count) for value, count in zip(values, counts, strict=True)]


@frozen(eq=False)
class Summed(Reduction):
    """A reduction that ``sums_by`` made.

    Attributes:
        columns: what tells the sums apart.
        shares: what each sequence adds.
    """

    columns: tuple[str, ...]
    shares: tuple[Share, ...]


def average(sums: Sums, terms: Terms = ()) -> tuple[float, float]:
    """The averages of a micro-batch added up, by default all once, and what rounding can change; each weight is at least 1."""
    value = tolerance = 0.0
    for index, factor in terms or [(index, 1.0) for index in range(len(sums.parts) // 3)]:
        numerator, magnitude, slack = sums.parts[3 * index : 3 * index + 3]
        weight = max(numerator.count, 1)
        value += factor * numerator.value / weight
        tolerance += abs(factor) * (TOLERANCE * magnitude.value + slack.value) / weight
    return value, tolerance


def means(expected_rows: int | None, terms: Terms = ()) -> Callable[[Keyed], Entries]:
    """One entry per micro-batch, its average over all ranks."""

    def entries(state: Keyed) -> Entries:
        if not _complete(state.groups.values(), [sums.parts[-1].count for sums in state.groups.values()], expected_rows):
            return UNKNOWN
        return sum((entry(*average(sums, terms)) for sums in state.groups.values()), Entries())

    return entries


def means_of_ranks(expected_rows: int | None, terms: Terms = (), *, empty: bool | None = True) -> Callable[[Keyed], Entries]:
    """One entry per micro-batch, the plain mean over ranks of each rank's average; keys are those of ``MICROBATCH_OF_RANK``.

    Args:
        expected_rows: rows of a micro-batch over all ranks, if known.
        terms: which averages are added up.
        empty: whether the average of a rank without tokens is 0, or is left out; None where that is not known.
    """
    return _over_ranks(expected_rows, terms, lambda values: math.fsum(values) / len(values), empty=empty)


def extremes_of_ranks(
    expected_rows: int | None, pick: Callable[[Sequence[float]], float], *, empty: bool | None = True
) -> Callable[[Keyed], Entries]:
    """One entry per micro-batch, the largest or smallest average of a rank; as ``means_of_ranks``."""
    return _over_ranks(expected_rows, (), pick, empty=empty)


def _over_ranks(
    expected_rows: int | None, terms: Terms, pick: Callable[[Sequence[float]], float], *, empty: bool | None
) -> Callable[[Keyed], Entries]:
    def entries(state: Keyed) -> Entries:
        found = _by_microbatch(state, expected_rows)
        if found is None:
            return UNKNOWN
        total = Entries()
        for ranks in found.values():
            kept = ranks if empty else [sums for sums in ranks if sums.parts[0].count]
            if empty is None and len(kept) < len(ranks):
                return UNKNOWN
            if kept:
                values, tolerances = zip(*(average(sums, terms) for sums in kept), strict=True)
                total += entry(pick(values), max(tolerances))
        return total

    return entries


def _by_microbatch(state: Keyed, expected_rows: int | None) -> dict[tuple[int, ...], list[Sums]] | None:
    """The sums of each rank, by micro-batch; None where some of a micro-batch are missing."""
    found: dict[tuple[int, ...], list[Sums]] = {}
    for key, sums in state.groups.items():
        found.setdefault(key[1:], []).append(sums)
    rows = [sum(sums.parts[-1].count for sums in ranks) for ranks in found.values()]
    return found if _complete(state.groups.values(), rows, expected_rows) else None


def pooled(expected_rows: int | None) -> Callable[[Keyed], Entries]:
    """One entry per step: the average over all its micro-batches and ranks at once."""

    def entries(state: Keyed) -> Entries:
        if not _complete(state.groups.values(), [sums.parts[-1].count for sums in state.groups.values()], expected_rows):
            return UNKNOWN
        return entry(*average(sum(state.groups.values(), Sums())))

    return entries


def means_of_means(state: Keyed, terms: Terms = ()) -> Entries:
    """One entry per mini-batch: the plain mean over ranks and micro-batches; keys are those of ``MICROBATCH_OF_RANK``."""
    averages: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for key, sums in state.groups.items():
        averages.setdefault(key[1:-1], []).append(average(sums, terms))
    found = Entries()
    for pairs in averages.values():
        values, tolerances = zip(*pairs, strict=True)
        found += certain(math.fsum(values) / len(pairs), math.fsum(tolerances) / len(pairs))
    return found


def certain(value: float, tolerance: float) -> Entries:
    """One entry, for trainers that leave none out; unknown where it is NaN."""
    return UNKNOWN if math.isnan(value) else entry(value, tolerance)


def sums_over_ranks(expected_rows: int | None, ranks: int, terms: Terms = ()) -> Callable[[Keyed], Entries]:
    """One entry per step: the sum over micro-batches of each rank's average, averaged over ranks; keys start with the rank."""

    def entries(state: Keyed) -> Entries:
        rows: dict[tuple[int, ...], int] = {}
        value = tolerance = 0.0
        for key, sums in state.groups.items():
            rows[key[1:]] = rows.get(key[1:], 0) + sums.parts[-1].count
            mean, rounding = average(sums, terms)
            value, tolerance = value + mean, tolerance + rounding
        if not _complete(state.groups.values(), rows.values(), expected_rows):
            return UNKNOWN
        return certain(value / ranks, tolerance / ranks)

    return entries


def token_shares(
    batch: Batch, values: NDArray[Any], magnitudes: Floats | None = None, slack: NDArray[np.bool_] | None = None
) -> Shares:
    """A mean over the selected tokens of ``values`` ``[n_selected]``."""
    return Shares(
        per_sequence_sums(batch, values),
        per_sequence_sums(batch, np.abs(values) if magnitudes is None else magnitudes),
        per_sequence_counts(batch),
        None if slack is None else per_sequence_sums(batch, slack),
    )


def clip_flags(ratio: Floats, advantage: Floats, low: float, high: float) -> tuple[Flags, Flags, Flags]:
    """Whether the clip range binds: below ``low`` with a negative advantage, above ``high`` with a positive one.

    Returns:
        Flags of (low, high, too close to the bound for float32 to tell), each ``[n]``.
    """
    near = np.abs(ratio - low) < 4 * EPSILON32 * max(low, 1.0)
    near |= np.abs(ratio - high) < 4 * EPSILON32 * high
    return (ratio < low) & (advantage < 0), (ratio > high) & (advantage > 0), near & (advantage != 0)


def k3_size(x: Floats, value: Floats) -> Floats:
    """Size of the summands of k3 ``value`` at ``x``: trainers evaluate exp(x) - x - 1 term by term in float32."""
    return value + EPSILON32 / TOLERANCE * (np.exp(x) + np.abs(x) + 1.0)
