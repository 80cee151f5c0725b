"""Text tables as rows of cells: delimiter, header, rows that do not fit it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rl_doctor.collectors.importers.numbers import number
from rl_doctor.frozen import frozen
from rl_doctor.store.step_axis import step_names

DELIMITERS: Final = (",", ";", "\t", "|")
_LOOKED_AT: Final = 20
"""Rows that the form of a table is told from."""
_DIGITS: Final = frozenset("0123456789")
_LONGEST_CELL: Final = 1 << 24


@frozen
class Form:
    """How a table is written: what separates its cells, and the names of its columns."""

    delimiter: str
    names: tuple[str, ...]


def form_of(head: str) -> Form | None:
    """The form of a table by its first lines; None if it is no table of numbers under names."""
    if head.lstrip()[:1] in ("{", "[", "<"):
        return None
    forms = [form for delimiter in DELIMITERS if (form := _form_with(head, delimiter)) is not None]
    return max(forms, key=lambda form: len(form.names), default=None)


def _form_with(head: str, delimiter: str) -> Form | None:
    lines = below_comments(head.splitlines(keepends=True))
    try:
        rows = [row for row, _ in zip(csv.reader(lines, delimiter=delimiter), range(_LOOKED_AT), strict=False)]
    except csv.Error:
        return None
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if not rows or len(rows[0]) < 2:
        return None
    header = [cell.strip() for cell in rows[0]]
    named = [cell for cell in header if cell]
    if not named or 2 * sum(number(cell) is None for cell in named) <= len(named) or len(named) + 1 < len(header):
        return None
    body = rows[1:]
    fitting = [row for row in body if len(row) == len(header)]
    if not body:
        return Form(delimiter, tuple(header)) if step_names(named) else None
    if 2 * len(fitting) < len(body):
        return Form(delimiter, tuple(header)) if _is_ragged(header, body) else None
    return Form(delimiter, tuple(header)) if any(is_number(cell) for row in fitting for cell in row) else None


def _is_ragged(header: Sequence[str], body: Sequence[Sequence[str]]) -> bool:
    """Whether rows that mostly do not fit a header are still rows under it: they have numbers where it names the step."""
    steps = step_names(header)
    at = header.index(steps[0]) if steps else len(header)
    return 2 * sum(len(row) > max(at, 1) and is_number(row[at]) for row in body) > len(body)


def is_number(cell: str) -> bool:
    """Whether a cell holds a number, perhaps with a decimal comma."""
    return number(cell) is not None or number(with_point(cell)) is not None


def with_point(cell: str) -> str:
    """A number with a decimal comma as one with a point; any other text as it is."""
    return cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else cell


def below_comments(lines: Iterable[str]) -> Iterator[str]:
    """Lines from the header on: without comments before it, and without the line that tells a spreadsheet the delimiter.

    Zeros, which a crash leaves in a file, are dropped.
    """
    above = True
    for line in lines:
        if "\0" in line:
            line = line.replace("\0", "")  # noqa: PLW2901 - rarely needed
        if above and (not line.strip() or line.startswith(("#", "sep="))):
            continue
        above = False
        yield line


class Rows:
    """Rows of a table that fit its header.

    A header that comes again is left out; another header (columns were added while the run went on) counts from there.

    Args:
        lines: of the table.
        form: how it is written.
        single: whether a row is never longer than a line, so that a quote that does not close damages one row only.

    Attributes:
        unfit: rows that do not fit: with more or fewer cells, or cut short at the end.
        unfit_lines: lines that they take up.
        lines: lines of the table.
        first_unfit: the line at which the first of them ends, from 1.
    """

    def __init__(self, lines: Iterable[str], form: Form, *, single: bool = False) -> None:
        self._lines = below_comments(lines)
        self._delimiter = form.delimiter
        self._single = single
        self.unfit = self.unfit_lines = self.lines = self.first_unfit = 0

    def _rows(self) -> Iterator[tuple[list[str], int]]:
        """Rows, and the line at which each ends."""
        if not self._single:
            reader = csv.reader(self._lines, delimiter=self._delimiter, strict=True)
            return ((row, reader.line_num) for row in reader)
        return ((_cells(line, self._delimiter), at) for at, line in enumerate(self._lines, 1))

    def blocks(self, size: int) -> Iterator[tuple[tuple[str, ...], list[list[str]]]]:
        """Header and rows under it, at most ``size`` at once.

        Raises:
            csv.Error: a quote does not close, or a cell is longer than any log has.
        """
        csv.field_size_limit(_LONGEST_CELL)
        names: tuple[str, ...] = ()
        steps: list[int] = []
        held: list[list[str]] = []
        for row, line in self._rows():
            taken, self.lines = line - self.lines, line
            if not names:
                names, steps = _header(row)
            elif len(row) == len(names) and not _is_header(row, steps):
                held.append(row)
                if len(held) == size:
                    yield names, held
                    held = []
            elif _is_header(row, _header(row)[1]):
                if held:
                    yield names, held
                    held = []
                names, steps = _header(row)
            elif any(row):
                self.unfit += 1
                self.unfit_lines += taken
                self.first_unfit = self.first_unfit or line
        if held:
            yield names, held


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _header(row: Sequence[str]) -> tuple[tuple[str, ...], list[int]]:
    names = tuple(cell.strip() for cell in row)
    steps = set(step_names(names))
    return names, [index for index, name in enumerate(names) if name in steps]


def _is_header(row: Sequence[str], steps: Sequence[int]) -> bool:
    """Whether a row holds names: no number, and the name of a step where one may be."""
    told = any(row[index][:1] not in _DIGITS and step_names([row[index].strip()]) for index in steps)
    return told and not any(is_number(cell) for cell in row if cell)
