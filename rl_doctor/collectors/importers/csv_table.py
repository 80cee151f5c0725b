"""Metrics as a table in text: one row per step, or one per step and metric."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from rl_doctor.collectors.importers.columns import CHUNK, Columns
from rl_doctor.collectors.importers.csv_rows import Form, Rows, below_comments, form_of, with_point
from rl_doctor.collectors.importers.numbers import number
from rl_doctor.collectors.importers.records import NAME_KEYS, SPLIT_KEYS, VALUE_KEYS, evaluated, is_evaluation
from rl_doctor.collectors.importers.registry import HEAD_BYTES, Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import assemble_columns
from rl_doctor.collectors.importers.text_file import decode, open_text
from rl_doctor.errors import InputError
from rl_doctor.store.step_axis import plain_name, step_names

_RUN_KEYS: Final = frozenset({"run", "run_name", "run_id", "experiment", "experiment_name", "exp_name"})
"""Plain names of columns that tell runs apart."""
_TEXTUAL: Final = frozenset({*_RUN_KEYS, *NAME_KEYS, *SPLIT_KEYS})
"""Plain names of columns whose words count."""


@lru_cache(maxsize=2)
def form_of_sample(sample: Sample) -> Form | None:
    """The form of a table by its first lines; None for what is none."""
    return None if sample.folder else form_of(sample.text)


def _recognises(sample: Sample) -> Fit:
    return Fit.NO if form_of_sample(sample) is None else Fit.CONTAINER


@importer("csv", "a table of metrics (CSV)", _recognises)
def read(path: Path) -> Imported:
    """Read one row per step, or the long form: step, name and value. Empty cells are gaps."""
    return read_table(path, lambda names: {name: name for name in names})


def read_table(path: Path, named: Callable[[Sequence[str]], dict[str, str]]) -> Imported:
    """Read a table of text.

    Args:
        path: the file.
        named: names of the columns -> those to read, and what each is called.

    Raises:
        InputError: it cannot be read, most rows do not fit the header, or it holds several runs.
        NothingToJudgeError: there is no number in it.
    """
    with path.open("rb") as file:
        form = form_of(decode(file.read(HEAD_BYTES)))
    if form is None:
        raise InputError(f"{path}: no table with a header and numbers; export it again")
    if (numbers := _numbers(path, form, named)) is not None:
        found = assemble_columns(numbers, path)
        return Imported(found.log, notes=found.notes)
    notes: list[str] = []
    try:
        columns, rows = _gathered(path, form, named)
    except csv.Error as error:
        columns, rows = _gathered(path, form, named, single=True)
        notes.append(f"damaged ({error}): each line is read by itself")
    if rows.unfit:
        if 2 * rows.unfit_lines > rows.lines:
            raise InputError(
                f"{path}: most rows do not have the header's number of cells (the first ends in line {rows.first_unfit}); "
                "export it again"
            )
        where = f"the first ends in line {rows.first_unfit}"
        notes.append(f"rows that do not fit the header, left out: {rows.unfit:,} ({where})")
    found = assemble_columns(columns, path)
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
    path: Path, form: Form, named: Callable[[Sequence[str]], dict[str, str]], *, single: bool = False
) -> tuple[Columns, Rows]:
    columns = Columns()
    with open_text(path, newline=None if single else "") as lines:
        rows = Rows(lines, form, single=single)
        for names, block in rows.blocks(CHUNK):
            _gather(columns, names, block, form, named, path)
    return columns, rows


def _gather(
    columns: Columns,
    names: Sequence[str],
    rows: list[list[str]],
    form: Form,
    named: Callable[[Sequence[str]], dict[str, str]],
    path: Path,
) -> None:
    if form.delimiter != "," and any("," in cell for row in rows for cell in row):
        rows = [[with_point(cell) for cell in row] for row in rows]
    wanted = named(names)
    by_name = {wanted[name]: values for name, values in zip(names, zip(*rows, strict=True), strict=True) if name in wanted}
    _one_run(by_name, path)
    if (long := _long_keys(by_name)) is not None:
        _gather_long(columns, by_name, *long)
        return
    split = _split_of(by_name)
    if split is None:
        columns.add_rows(tuple(by_name), list(zip(*by_name.values(), strict=True)))
        return
    held_out = [is_evaluation(cell) for cell in by_name[split]]
    for told, rename in ((False, str), (True, _marked)):
        chosen = [cells for cells, own in zip(zip(*by_name.values(), strict=True), held_out, strict=True) if own is told]
        if chosen:
            columns.add_rows([rename(name) for name in by_name], chosen)


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


def _one_run(by_name: Mapping[str, Sequence[str]], path: Path) -> None:
    for name, values in by_name.items():
        if plain_name(name) in _RUN_KEYS and len(runs := sorted({value for value in values if value})) > 1:
            raise InputError(f"{path}: several runs ({listed(runs)}) in column {name!r}; export one of them")


def listed(runs: Sequence[str]) -> str:
    """Names of runs, the first of them where they are many."""
    return ", ".join(runs[:8]) + (f" and {len(runs) - 8} more" if len(runs) > 8 else "")
