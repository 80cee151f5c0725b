"""ms-swift's ``logging.jsonl``, under whatever name: the step stands as ``"global_step/max_steps": "5/100"``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.json_objects import Objects, first
from rl_doctor.collectors.importers.numbers import whole
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble

COUNTED: Final = ("global_step/max_steps", "iteration")
"""Names under which the step stands and, after a slash, how many there will be."""
PROGRESS: Final = frozenset({*COUNTED, "percentage", "elapsed_time", "remaining_time"})
"""Names of what tells how far the training is."""
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
        told = next((document[name] for name in COUNTED if name in document), None)
        if told is None or _SUMMARY in document:
            continue
        values = {name: value for name, value in document.items() if name not in PROGRESS}
        yield Row(whole(str(told).partition("/")[0]), values)
