"""A log as one JSON document: a list of records, an object of columns, an object keyed by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.importers import json_lines
from rl_doctor.collectors.importers.json_forms import gathered
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer, part_of
from rl_doctor.collectors.importers.rows import assemble_columns
from rl_doctor.collectors.importers.text_file import read_text
from rl_doctor.errors import InputError, NothingToJudgeError

_BEGINS: Final = when_used(r'\[\s*[\[{]|\{\s*"')
_BETWEEN: Final = when_used(r"[\s,]*")


def _recognises(sample: Sample) -> Fit:
    text = sample.text.lstrip()
    if not _BEGINS.match(text):
        return Fit.NO
    if text.startswith("{") and _ends_before(text):
        return Fit.NO
    return Fit.CONTAINER


def _ends_before(text: str) -> bool:
    """Whether an object ends in the text and more follows: that is no document."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return bool(text[end:].strip())


@importer("json", "a JSON document", _recognises, parts=True)
def read(path: Path) -> Imported:
    """Read a list of records (also under a member), columns, curves, or what is keyed by step; inner names follow after ``/``."""
    file, _ = part_of(path)
    text = read_text(file)
    try:
        document, notes = _document(file, text)
    except InputError:
        if text.lstrip().startswith("{") and _ends_before(text):  # the first of several records is longer than a sample
            return json_lines.read(path)
        raise
    found = gathered(document, file.stem)
    if found is None:
        raise NothingToJudgeError(
            f"{file}: JSON, but neither records nor columns of numbers; log metrics by step and export them"
        )
    columns, left = found
    made = assemble_columns(columns, path)
    return Imported(made.log, notes=(*notes, *left, *made.notes))


def _document(path: Path, text: str) -> tuple[Any, tuple[str, ...]]:
    try:
        return json.loads(text), ()
    except RecursionError as error:
        raise InputError(f"{path}: JSON that is nested too deep; no logger writes such") from error
    except ValueError as error:
        if (records := _whole_records(text)) and len(records) > 1:
            return records, (f"cut short or damaged after {len(records):,} whole records: they count",)
        raise InputError(f"{path}: damaged or cut short ({error}); copy or export it again") from error


def _whole_records(text: str) -> list[Any]:
    """The records of a list up to the first that is damaged."""
    text = text.lstrip()
    records: list[Any] = []
    decoder = json.JSONDecoder()
    at = 1
    while text.startswith("["):
        between = _BETWEEN.match(text, at)
        at = at if between is None else between.end()
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        records.append(record)
    return records
