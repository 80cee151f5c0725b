"""A log as JSON records one after the other: one per line, over several lines, or without anything between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from rl_doctor.collectors.importers.columns import CHUNK, Columns
from rl_doctor.collectors.importers.json_table import Template
from rl_doctor.collectors.importers.records import flat
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer, part_of
from rl_doctor.collectors.importers.rows import assemble_columns
from rl_doctor.collectors.importers.text_file import open_text, read_text
from rl_doctor.errors import InputError

_DECODER: Final = json.JSONDecoder()
_LOOKED_AT: Final = 50
"""Lines that recognition parses."""
_HELD: Final = 1 << 23
"""Characters of lines that are held at once."""


def _recognises(sample: Sample) -> Fit:
    text = sample.text
    if "{" not in text:
        return Fit.NO
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and not sample.whole:
        lines.pop()
    lines = lines[:_LOOKED_AT]
    records = sum(_record(line) is not None for line in lines)
    if records and 2 * records >= len(lines) and (len(lines) > 1 or not sample.whole):
        return Fit.CONTAINER
    if not text.lstrip().startswith("{"):
        return Fit.NO
    return Fit.CONTAINER if len(list(zip(range(2), _run_together(text), strict=False))) == 2 else Fit.NO


def _record(line: str) -> dict[str, Any] | None:
    """The record that a line is; None if it is none."""
    if not line.startswith("{"):
        line = line.replace("\0", "").lstrip()
        if not line.startswith("{"):
            return None
    try:
        record, end = _DECODER.raw_decode(line)
    except (ValueError, RecursionError):
        return None
    return record if end == len(line) - 1 or not line[end:].strip() else None


@importer("json-lines", "JSON records, one after the other", _recognises, parts=True)
def read(path: Path) -> Imported:
    """Read one record per line, else records that run on; what is no record is left out and counted."""
    file, _ = part_of(path)
    columns = Columns()
    damaged: list[int] = []
    lines = 0
    template: Template | None = None
    with open_text(file) as text:
        for block in _blocks(text):
            if template is None and (record := _record(block[0])) is not None and flat(record) is record:
                template = Template(block[0], record)
            if template is None or not _add_table(columns, template, block):
                _add(columns, block, lines, damaged)
            lines += len(block)
    if 2 * len(damaged) > lines:
        return _read_run_together(path)
    found = assemble_columns(columns, path)
    return Imported(found.log, notes=(*_told(damaged, lines), *found.notes))


def _blocks(text: TextIO) -> Iterator[list[str]]:
    while lines := text.readlines(_HELD):
        for start in range(0, len(lines), CHUNK):
            yield lines[start : start + CHUNK]


def _add_table(columns: Columns, template: Template, block: Sequence[str]) -> bool:
    """Add lines that all have the form of the template; whether they have."""
    table = template.table(block)
    if table is None:
        return False
    for name, values in zip(template.names, table.T, strict=True):
        columns.put(name, np.arange(len(block)), np.ascontiguousarray(values))
    columns.rows += len(block)
    return True


def _add(columns: Columns, block: Sequence[str], before: int, damaged: list[int]) -> None:
    """Add the records of lines, and note which lines have none."""
    for number_of, line in enumerate(block, before + 1):
        if (record := _record(line)) is not None:
            columns.add(flat(record))
        elif line.strip():
            damaged.append(number_of)


def _told(damaged: list[int], lines: int) -> Iterator[str]:
    if damaged and damaged[-1] == lines:
        damaged = damaged[:-1]
        yield "the last record is cut short: left out"
    if damaged:
        yield f"lines that are no JSON record, left out: {len(damaged):,} (the first is line {damaged[0]})"


def _read_run_together(path: Path) -> Imported:
    text = read_text(part_of(path)[0])
    columns = Columns()
    end = 0
    for record, after in _run_together(text):
        columns.add(flat(record))
        end = after
    rest = text[end:].strip()
    if len(rest) * 2 > len(text):
        line = text.count("\n", 0, end) + 1
        raise InputError(f"{path}: no JSON record in line {line} and after; copy or export it again")
    found = assemble_columns(columns, path)
    return Imported(found.log, notes=(*(["cut short after the last whole record"] if rest else []), *found.notes))


def _run_together(text: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Records in a text, and where each ends, up to what is none."""
    at = 0
    while (start := text.find("{", at)) >= 0 and not text[at:start].strip(" \t\r\n,;\x1e"):
        try:
            record, at = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        yield record, at
