"""verl's file logger: ``{"step": N, "data": {...}}`` per line, in which NaN and infinities became null."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_doctor.collectors.importers.json_objects import Objects, first
from rl_doctor.collectors.importers.numbers import whole
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble
from rl_doctor.schema import RunInfo

_PARTS = ("actor/", "critic/", "training/", "response_length/", "val-core/", "timing_s/")


def _recognises(sample: Sample) -> Fit:
    found = first(sample, '"data"')
    if found is None or set(found) != {"step", "data"} or not isinstance(found["data"], dict):
        return Fit.NO
    return Fit.SIGNATURE if any(name.startswith(_PARTS) for name in found["data"]) else Fit.SHAPE


@importer("verl-file", "the file logger's JSON lines of verl", _recognises)
def read(path: Path) -> Imported:
    """Read every line; null is a number that was not finite, and read as NaN."""
    objects = Objects(path)
    nulls: list[int] = []
    found = assemble(_rows(objects, nulls), path)
    note = (f"null is a number that was not finite, and read as NaN: {len(nulls):,} of them",) if nulls else ()
    return Imported(found.log, RunInfo(trainer="verl"), (*note, *objects.notes(), *found.notes))


def _rows(objects: Objects, nulls: list[int]) -> Iterator[Row]:
    for line, document in enumerate(objects):
        values: Any = document.get("data")
        if not isinstance(values, dict):
            continue
        if None in values.values():
            nulls.extend(line for value in values.values() if value is None)
            values = {name: math.nan if value is None else value for name, value in values.items()}
        yield Row(whole(document.get("step")), values)
