"""ms-swift's ``logging.jsonl``, under whatever name: the step stands as ``"global_step/max_steps": "5/100"``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.json_objects import Objects, first
from rl_doctor.collectors.importers.numbers import whole
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble

_COUNTED: Final = ("global_step/max_steps", "iteration")
_PROGRESS: Final = frozenset({*_COUNTED, "percentage", "elapsed_time", "remaining_time"})
_SUMMARY: Final = "train_runtime"


def _recognises(sample: Sample) -> Fit:
    if first(sample, '"global_step/max_steps"') is not None:
        return Fit.SIGNATURE
    found = first(sample, '"remaining_time"')
    return Fit.SIGNATURE if found is not None and "/" in str(found.get("iteration")) else Fit.NO


@importer("swift-log", "logging.jsonl of ms-swift", _recognises)
def read(path: Path) -> Imported:
    """Read every line of a step; the summaries at the end have none that counts."""
    objects = Objects(path)
    found = assemble(_rows(objects), path)
    return Imported(found.log, notes=(*objects.notes(), *found.notes))


def _rows(objects: Objects) -> Iterator[Row]:
    for document in objects:
        told = next((document[name] for name in _COUNTED if name in document), None)
        if told is None or _SUMMARY in document:
            continue
        values = {name: value for name, value in document.items() if name not in _PROGRESS}
        yield Row(whole(str(told).partition("/")[0]), values)
