"""ROLL's stdout tracker: lines ``metrics_tag: {"step": N, "metrics": {...}}``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.console import lines, seen
from rl_doctor.collectors.importers.numbers import whole
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble
from rl_doctor.schema import RunInfo

_TAG: Final = 'metrics_tag: {"step": '
_BRACE: Final = len("metrics_tag: ")


def _recognises(sample: Sample) -> Fit:
    return Fit.SIGNATURE if _TAG in seen(sample) else Fit.NO


@importer("roll-console", "console output of ROLL", _recognises, marks=(_TAG,))
def read(path: Path) -> Imported:
    """Read every tagged line."""
    found = assemble(_rows(path), path)
    return Imported(found.log, RunInfo(trainer="roll"), found.notes)


def _rows(path: Path) -> Iterator[Row]:
    decoder = json.JSONDecoder()
    for line in lines(path):
        at = line.find(_TAG)
        if at < 0:
            continue
        try:
            document, _ = decoder.raw_decode(line, at + _BRACE)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict) and isinstance(values := document.get("metrics"), dict):
            yield Row(whole(document.get("step")), values)
