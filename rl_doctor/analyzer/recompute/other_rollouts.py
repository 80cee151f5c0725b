"""Statistics of a generation batch with one ingredient exchanged: the statistic, the rows, the groups, or the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import Floats, known
from rl_doctor.analyzer.recompute.registry import TOLERANCE, Entries, entry
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

Values = Callable[[Batch], Floats]
"""Batch -> one number per row, float64 ``[n_sequences]``, NaN for a row that does not count."""


@frozen(eq=False)
class Other:
    """Another way to a number per generation batch: name and sentence of a ``Hypothesis``, and columns that it needs beside."""

    name: str
    sentence: str
    function: Callable[[Batch], Entries]
    needs: tuple[str, ...] = ()


def column(name: str) -> Values:
    """A column as float64, NaN for null."""

    def values(batch: Batch) -> Floats:
        found = batch.columns[name]
        return np.where(known(found), found.astype(np.float64), np.nan)

    return values


def mean_of(values: Floats) -> Entries:
    """The mean, NaN left out."""
    kept = values[~np.isnan(values)]
    return entry(float(kept.mean()), TOLERANCE * float(np.abs(kept).mean())) if kept.size else Entries()


def deviation_of(values: Floats, ddof: int = 1) -> Entries:
    """The standard deviation, NaN left out."""
    kept = values[~np.isnan(values)]
    return entry(float(kept.std(ddof=ddof)), TOLERANCE * float(np.abs(kept).mean())) if kept.size > ddof else Entries()


def _end_of(pick: Callable[[Floats], float]) -> Callable[[Floats], Entries]:
    def entries(values: Floats) -> Entries:
        kept = values[~np.isnan(values)]
        return entry(float(pick(kept)), TOLERANCE * float(np.abs(kept).max())) if kept.size else Entries()

    return entries


def _variance(values: Floats) -> Entries:
    one = deviation_of(values)
    return replace(one, total=one.total**2, tolerance=2.0 * one.total * one.tolerance)


STATISTICS: Final[Mapping[str, tuple[str, Callable[[Floats], Entries]]]] = {
    "mean": ("is the mean", mean_of),
    "max": ("is the maximum", _end_of(np.max)),
    "min": ("is the minimum", _end_of(np.min)),
    "std": ("is the standard deviation", deviation_of),
}
"""Statistics of values per row: in words, and what gives them."""


def other_values(values: Values, statistic: str) -> Iterator[Other]:
    """Another statistic of the same values, or the same of a part of the rows."""
    _, own = STATISTICS[statistic]
    if statistic == "std":
        yield from other_deviations(values)
    for name, (sentence, function) in STATISTICS.items():
        if name != statistic:
            yield Other(name, sentence, of(values, function))
    for name, (sentence, chosen, needs) in _ROWS.items():
        yield Other(name, sentence, of(_among(values, chosen), own), needs)


def of(values: Values, statistic: Callable[[Floats], Entries]) -> Callable[[Batch], Entries]:
    """A statistic of values per row."""
    return lambda batch: statistic(values(batch))


def _among(values: Values, chosen: Callable[[Batch], Floats]) -> Values:
    return lambda batch: values(batch)[chosen(batch) > 0]


_ROWS: Final[Mapping[str, tuple[str, Callable[[Batch], Floats], tuple[str, ...]]]] = {
    "rank 0 only": ("is that of rank 0 alone", lambda batch: (batch.columns["rank"] == 0) * 1.0, ("rank",)),
    "terminated responses only": (
        "is that of the responses that ended by themselves alone",
        lambda batch: (batch.columns["finish_reason"] == "stop") * 1.0, ("finish_reason",),
    ),
    "truncated responses only": (
        "is that of the responses that were cut off at the limit alone",
        lambda batch: (batch.columns["finish_reason"] == "length") * 1.0, ("finish_reason",),
    ),
}  # fmt: skip


def exchanged(statistic: str, values: Mapping[str, tuple[str, Values, tuple[str, ...]]]) -> Iterator[Other]:
    """The same statistic of other values: name -> sentence, values, and the columns they need."""
    for name, (sentence, function, needs) in values.items():
        yield Other(name, sentence, of(function, STATISTICS[statistic][1]), needs)


def complement(function: Callable[[Batch], Entries]) -> Iterator[Other]:
    """One minus the number."""

    def entries(batch: Batch) -> Entries:
        one = function(batch)
        return replace(one, total=one.number - one.total)

    yield Other("1 minus the share", "is 1 minus it", entries)


def other_deviations(values: Values) -> Iterator[Other]:
    """Other standard deviations than that over all rows with ddof 1."""
    by_group = "is the mean of the groups' standard deviations"
    yield Other("ddof 0", "is a standard deviation that divides by n, not by n - 1", lambda batch: deviation_of(values(batch), 0))
    yield Other("variance", "is the variance, not the standard deviation", of(values, _variance))
    for name, sentence, ddof in (
        ("mean of the groups' deviations", f"{by_group} (ddof 1)", 1),
        ("mean of the groups' deviations, ddof 0", f"{by_group}, with ddof 0", 0),
    ):
        yield Other(name, sentence, _grouped(values, ddof), ("group",))


def _grouped(values: Values, ddof: int) -> Callable[[Batch], Entries]:
    return lambda batch: by_group(values, batch, ddof)


def by_group(values: Values, batch: Batch, ddof: int) -> Entries:
    """Plain mean over groups of the standard deviation within each."""
    numbers, group = values(batch), codes(batch.columns["group"])
    kept = ~np.isnan(numbers)
    numbers, group = numbers[kept], group[kept]
    if not numbers.size:
        return Entries()
    sizes = np.bincount(group)
    centre = np.bincount(group, numbers) / np.maximum(sizes, 1)
    squares = np.bincount(group, (numbers - centre[group]) ** 2)
    present = sizes > ddof
    found = float(np.sqrt(squares[present] / (sizes[present] - ddof)).mean()) if present.any() else np.nan
    return entry(found, TOLERANCE * float(np.abs(numbers).mean()))


def first_of_each(*families: Iterable[Other]) -> tuple[Other, ...]:
    """Others of several kinds, the first of each name."""
    found: dict[str, Other] = {}
    for family in families:
        for one in family:
            found.setdefault(one.name, one)
    return tuple(found.values())
