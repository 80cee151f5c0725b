"""Gathers the records of a log by name, as numbers, while they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.importers.numbers import number, with_points
from rl_doctor.collectors.importers.several_runs import may_tell

CHUNK: Final = 2048
"""Records of the same names that are held before they are turned into arrays."""
MOST_NAMES: Final = 10_000
"""Names from which numbers are no log of metrics: a vocabulary, weights, a table of samples."""
_NUMBERS: Final = frozenset({float, int, bool})
_GAPS: Final = ("", None)

Points = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Rows of the log, and the value in each."""


class TooManyNamesError(Exception):
    """What is read has more names than any log of metrics."""


class Columns:
    """The numbers of a log by name. A value that is missing is a gap; one that is no number is left out.

    Every method that adds something raises ``TooManyNamesError`` beyond ``MOST_NAMES`` names.

    Attributes:
        rows: how many records were added.
        texts: names under which something stood that is no number.
        labels: texts of the columns that may tell runs apart: name -> rows, and what stands in them.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.texts: set[str] = set()
        self.labels: dict[str, list[tuple[NDArray[np.int64], list[str]]]] = {}
        self._pending: dict[tuple[str, ...], tuple[list[int], list[Sequence[Any]]]] = {}
        self._parts: dict[str, list[Points]] = {}
        self._names: set[str] = set()

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        names = tuple(record)
        held = self._pending.get(names)
        if held is None:
            self._name(names)
            held = self._pending[names] = ([], [])
        held[0].append(self.rows)
        held[1].append(tuple(record.values()))
        self.rows += 1
        if len(held[0]) == CHUNK:
            self._store(names, *self._pending.pop(names))

    def add_rows(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add records that have all the same names; each row has one value per name."""
        self._name(names)
        self._store(names, range(self.rows, self.rows + len(rows)), rows)
        self.rows += len(rows)

    def add_long(self, shared: Mapping[str, Sequence[Any]], names: Sequence[str], values: Sequence[Any]) -> None:
        """Add records of one number each, under a name that each tells; ``shared`` are columns that all of them have."""
        rows = np.arange(self.rows, self.rows + len(names))
        self._name((*shared, *names))
        for name, own in shared.items():
            self._put(name, rows, own)
        held: dict[str, tuple[list[int], list[Any]]] = {}
        for row, name, value in zip(rows.tolist(), names, values, strict=True):
            mine = held.get(name)
            if mine is None:
                mine = held[name] = ([], [])
            mine[0].append(row)
            mine[1].append(value)
        for name, (at, own) in held.items():
            self._put(name, np.array(at, np.int64), own)
        self.rows += len(names)

    def put(self, name: str, at: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Add numbers of one column, at rows counted from those that were added before; the caller counts the rows."""
        self._name((name,))
        if len(at):
            self._parts.setdefault(name, []).append((at + self.rows, values))

    def put_values(self, name: str, values: Sequence[Any]) -> None:
        """Add values of one column, as ``put`` does."""
        self._name((name,))
        self._put(name, np.arange(self.rows, self.rows + len(values)), values)

    def add_values(self, name: str, values: Sequence[Any]) -> None:
        """Add one column, whose values stand in the rows from the first on."""
        self._name((name,))
        self._put(name, np.arange(len(values)), values)
        self.rows = max(self.rows, len(values))

    def take(self) -> dict[str, Points]:
        """Everything that was added, by name, in the order of the rows; names without a number are left out."""
        for names, held in self._pending.items():
            self._store(names, *held)
        self._pending.clear()
        return {name: in_order(parts) for name, parts in self._parts.items()}

    def _store(self, names: Sequence[str], rows: Sequence[int], records: Sequence[Sequence[Any]]) -> None:
        at = np.asarray(rows, np.int64)
        for name, values in zip(names, zip(*records, strict=True), strict=True):
            self._put(name, at, values)

    def _name(self, names: Iterable[str]) -> None:
        self._names.update(names)
        if len(self._names) > MOST_NAMES:
            raise TooManyNamesError(f"more than {MOST_NAMES:,} different names of numbers: no log of metrics; give the log")

    def _put(self, name: str, at: NDArray[np.int64], values: Sequence[Any]) -> None:
        kept, found = _floats(values)
        if kept is None:
            self._parts.setdefault(name, []).append((at, found))
            return
        if len(kept):
            self._parts.setdefault(name, []).append((at[kept], found))
        if len(kept) < len(values) and sum(value not in _GAPS for value in values) > len(kept):
            self.texts.add(name)
            if may_tell(name):
                there = [index for index, value in enumerate(values) if isinstance(value, str)]
                self.labels.setdefault(name, []).append((at[there], [values[index] for index in there]))


def _floats(values: Sequence[Any]) -> tuple[list[int] | None, NDArray[np.float64]]:
    """The numbers among logged values, and where they stand; None for "everywhere"."""
    kinds = set(map(type, values))
    if kinds <= _NUMBERS:
        try:
            return None, np.array(values, np.float64)
        except OverflowError:
            return None, np.array([number(value) for value in values], np.float64)
    if kinds <= {str, type(None)}:
        with suppress(TypeError, ValueError):  # there are gaps
            return None, _plain(values)
        kept = [index for index, value in enumerate(values) if value]
        with suppress(ValueError):  # one of them is no plain number: each is read by itself below
            return kept, _plain([values[index] for index in kept])
    read = [(index, found) for index, value in enumerate(with_points(values)) if (found := number(value)) is not None]
    return [index for index, _ in read], np.array([found for _, found in read], np.float64)


def _plain(words: Sequence[str]) -> NDArray[np.float64]:
    """Words as numbers, each of which must be one as Python reads it, without underscores."""
    if "_" in "".join(words):
        raise ValueError("an underscore")
    return np.fromiter(map(float, words), np.float64, len(words))


def in_order(parts: Sequence[Points]) -> Points:
    """Parts of one column as one, in the order of their rows."""
    at = np.concatenate([rows for rows, _ in parts])
    values = np.concatenate([part for _, part in parts])
    if bool((at[1:] >= at[:-1]).all()):
        return at, values
    order = np.argsort(at, kind="stable")
    return at[order], values[order]
