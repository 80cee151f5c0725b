"""OpenRLHF's log lines: ``Global step N: {...}``, and ``global_step N, eval_metrics: {...}`` of its evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.console import lines, seen
from rl_doctor.collectors.importers.literal import closing, record
from rl_doctor.collectors.importers.numbers import as_count
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble
from rl_doctor.schema import RunInfo

_LINE: Final = when_used(r"\b(?:Global step (\d+): |global_step (\d+), eval_metrics: )\{(?=['\"])")


def _recognises(sample: Sample) -> Fit:
    return Fit.SIGNATURE if _LINE.search(seen(sample)) else Fit.NO


@importer("openrlhf-console", "console output of OpenRLHF", _recognises, marks=("Global step ", "eval_metrics: {"))
def read(path: Path) -> Imported:
    """Read every line of metrics."""
    found = assemble(_rows(path), path)
    return Imported(found.log, RunInfo(trainer="openrlhf"), found.notes)


def _rows(path: Path) -> Iterator[Row]:
    for line in lines(path):
        if "lobal" not in line or not (found := _LINE.search(line)):
            continue
        end = closing(line, found.end() - 1)
        if end >= 0:
            yield Row(as_count(found[1] or found[2]), record(line[found.end() - 1 : end + 1]))
