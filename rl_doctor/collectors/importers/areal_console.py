"""AReaL's console: a line per step, and below it a grid of names and values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.importers.console import lines, seen
from rl_doctor.collectors.importers.numbers import as_count
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble
from rl_doctor.schema import RunInfo

_STEP: Final = when_used(r"\bTrain step (\d+)/\d+ done\b")
_VALUE: Final = when_used(r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf)")
_GRID: Final = when_used(r"│ [\w./@-]+\s*│\s+[-+]?(?:\d[\d.]*e[-+]\d+|nan|inf)\s*│")

_LONGEST: Final = 20_000
"""Characters that no row of a grid has."""


def _recognises(sample: Sample) -> Fit:
    text = seen(sample)
    return Fit.SIGNATURE if "│" in text and _GRID.search(text) and (_STEP.search(text) or "ppo_actor/" in text) else Fit.NO


@importer("areal-console", "console output of AReaL", _recognises, marks=("Train step ", "│ ppo_actor/"))
def read(path: Path) -> Imported:
    """Read the grids; steps are counted from 0, as AReaL's trackers count them."""
    found = assemble(_rows(path), path)
    note = "steps are counted from 0, as in the trackers: the console's train step 1 is step 0"
    return Imported(found.log, RunInfo(trainer="areal"), (note, *found.notes))


def _rows(path: Path) -> Iterator[Row]:
    step: int | None = None
    values: dict[str, Any] = {}
    for line in lines(path):
        if "Train step " in line and (found := _STEP.search(line)):
            if step is not None and values:
                yield Row(step, values)
            step, values = as_count(found[1]) - 1, {}
        elif step is not None and line.lstrip()[:1] == "│" and len(line) < _LONGEST:
            values.update(_cells(line))
    if step is not None and values:
        yield Row(step, values)


def _cells(line: str) -> Iterator[tuple[str, str]]:
    """Names, each with the value in the cell after it."""
    cells = [cell.strip() for cell in line.split("│")]
    for name, value in pairwise(cells):
        if name and _VALUE.fullmatch(value) and not _VALUE.fullmatch(name):
            yield name, value
