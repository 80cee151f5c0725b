"""Metrics as a table in text: one row per step, or one per step and metric."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from rl_doctor.collectors.importers.columns import CHUNK, Columns
from rl_doctor.collectors.importers.console import read_bytes
from rl_doctor.collectors.importers.csv_rows import Form, Rows, below_comments, form_of, with_point
from rl_doctor.collectors.importers.numbers import number
from rl_doctor.collectors.importers.records import NAME_KEYS, SPLIT_KEYS, VALUE_KEYS, evaluated, is_evaluation
from rl_doctor.collectors.importers.registry import HEAD_BYTES, Fit, Imported, Sample, importer, part_of
from rl_doctor.collectors.importers.rows import assemble_columns
from rl_doctor.collectors.importers.several_runs import RUN_KEYS, one_run
from rl_doctor.collectors.importers.text_file import decode, open_text
from rl_doctor.errors import InputError
from rl_doctor.store.step_axis import plain_name, step_names

_TEXTUAL: Final = frozenset({*RUN_KEYS, *NAME_KEYS, *SPLIT_KEYS})
"""Plain names of columns whose words count."""


@lru_cache(maxsize=2)
def form_of_sample(sample: Sample) -> Form | None:
    """The form of a table by its first lines; None for what is none."""
    return None if sample.folder else form_of(sample.text)


def _recognises(sample: Sample) -> Fit:
    return Fit.NO if form_of_sample(sample) is None else Fit.CONTAINER


@importer("csv", "a table of metrics (CSV)", _recognises, parts=True)
def read(path: Path) -> Imported:
    """Read one row per step, or the long form: step, name and value. Empty cells are gaps."""
    return read_table(path, lambda names: {name: name for name in names})


def read_table(path: Path, named: Callable[[Sequence[str]], dict[str, str]]) -> Imported:
    """Read a table of text.

    Args:
        path: the file, or ``FILE#RUN`` where a column tells several runs apart.
        named: names of the columns -> those to read, and what each is called.

    Raises:
        InputError: it cannot be read, most rows do not fit the header, or it holds several runs.
        NothingToJudgeError: there is no number in it.
    """
    asked = path
    path, wanted = part_of(path)
    form = form_of(decode(read_bytes(path, HEAD_BYTES)))
    if form is None:
        raise InputError(f"{path}: no table with a header and numbers; export it again")
    if wanted is None and (numbers := _numbers(path, form, named)) is not None:
        found = assemble_columns(numbers, path)
        return Imported(found.log, notes=found.notes)
    twice = sorted(name for name, count in Counter(form.names).items() if count > 1)
    notes = [f"columns of the same name, of which the last counts: {', '.join(twice[:6])}"] if twice else []
    try:
        columns, rows = _gathered(path, form, named, wanted)
    except csv.Error as error:
        columns, rows = _gathered(path, form, named, wanted, single=True)
        notes.append(f"damaged ({error}): each line is read by itself")
    if rows.unfit:
        if 2 * rows.unfit_lines > rows.lines:
            raise InputError(
                f"{path}: most rows do not have the header's number of cells (the first ends in line {rows.first_unfit}); "
                "export it again"
            )
        where = f"the first ends in line {rows.first_unfit}"
        notes.append(f"rows that do not fit the header, left out: {rows.unfit:,} ({where})")
    found = assemble_columns(columns, asked)
    return Imported(found.log, notes=(*notes, *found.notes))


def _numbers(path: Path, form: Form, named: Callable[[Sequence[str]], dict[str, str]]) -> Columns | None:
    """A table that holds nothing but numbers, read in a third of the time; None for any other."""
    wanted = named(form.names)
    plain = set(map(plain_name, wanted.values()))
    if len(wanted) < len(form.names) or plain & _TEXTUAL or len(set(wanted.values())) < len(wanted):
        return None
    with open_text(path) as lines:
        below = below_comments(lines)
        try:
            if tuple(cell.strip() for cell in next(csv.reader(below, delimiter=form.delimiter))) != form.names:
                return None
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # it warns of a table without rows
                table = np.loadtxt(below, delimiter=form.delimiter, comments=None, quotechar='"', ndmin=2)
        except (ValueError, StopIteration, csv.Error, UserWarning):
            return None
    columns = Columns()
    rows = np.arange(len(table))
    for name, values in zip(wanted.values(), table.T, strict=True):
        columns.put(name, rows, np.ascontiguousarray(values))
    columns.rows = len(table)
    return columns


def _gathered(
    path: Path, form: Form, named: Callable[[Sequence[str]], dict[str, str]], wanted: str | None, *, single: bool = False
) -> tuple[Columns, Rows]:
    columns = Columns()
    chosen = _Chosen(path, wanted)
    with open_text(path, newline=None if single else "") as lines:
        rows = Rows(lines, form, single=single)
        for names, block in rows.blocks(CHUNK):
            if form.delimiter != "," and any("," in cell for row in block for cell in row):
                block = [[with_point(cell) for cell in row] for row in block]  # noqa: PLW2901 - as it should have been written
            _gather(columns, chosen.rows(names, block), named(names))
    chosen.check()
    return columns, rows


def _gather(columns: Columns, by_column: Mapping[str, Sequence[str]], wanted: Mapping[str, str]) -> None:
    by_name = {wanted[name]: values for name, values in by_column.items() if name in wanted}
    if not by_name:
        return
    if (long := _long_keys(by_name)) is not None:
        _gather_long(columns, by_name, *long)
        return
    split = _split_of(by_name)
    if split is None:
        columns.add_rows(tuple(by_name), list(zip(*by_name.values(), strict=True)))
        return
    names, marked = tuple(by_name), [_marked(name) for name in by_name]
    for told, cells in zip(by_name[split], zip(*by_name.values(), strict=True), strict=True):
        columns.add(dict(zip(marked if is_evaluation(told) else names, cells, strict=True)))


def _split_of(by_name: Mapping[str, Sequence[str]]) -> str | None:
    """The column that tells rows of an evaluation, if there is one."""
    return next((name for name in by_name if plain_name(name) in SPLIT_KEYS and any(map(is_evaluation, by_name[name]))), None)


def _marked(name: str) -> str:
    return name if step_names([name]) else evaluated(name)


def _long_keys(by_name: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """The columns of a metric's name and of its value, where the table has one row per step and metric."""
    plain = {plain_name(name): name for name in by_name}
    key = next((plain[key] for key in NAME_KEYS if key in plain), None)
    value = next((plain[key] for key in VALUE_KEYS if key in plain), None)
    if key is None or value is None or not step_names(by_name):
        return None
    return None if any(number(cell) is not None for cell in by_name[key][:8]) else (key, value)


def _gather_long(columns: Columns, by_name: Mapping[str, Sequence[str]], key: str, value: str) -> None:
    names: Sequence[str] = by_name[key]
    if (split := _split_of(by_name)) is not None:
        names = [evaluated(name) if is_evaluation(told) else name for name, told in zip(names, by_name[split], strict=True)]
    columns.add_long({name: by_name[name] for name in step_names(by_name)}, names, by_name[value])


class _Chosen:
    """Picks the rows of one run where a column tells several apart."""

    def __init__(self, path: Path, wanted: str | None) -> None:
        self._path = path
        self._wanted = wanted
        self._seen: set[str] = set()

    def rows(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Mapping[str, Sequence[str]]:
        """The columns, with the rows of the run only."""
        at = next((index for index, name in enumerate(names) if plain_name(name) in RUN_KEYS), None)
        if at is not None:
            self._seen.update(row[at] for row in rows if row[at])
            if self._wanted is None:
                one_run(self._path, self._seen, None)
            else:
                rows = [row for row in rows if row[at] == self._wanted]
        return dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}

    def check(self) -> None:
        """Refuse a table that does not have the run that is wanted, if a column is sure to tell."""
        one_run(self._path, self._seen, self._wanted)
