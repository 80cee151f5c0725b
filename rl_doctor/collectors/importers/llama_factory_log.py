"""LLaMA-Factory's ``trainer_log.jsonl``, under whatever name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.json_objects import Objects, first
from rl_doctor.collectors.importers.numbers import whole
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble

_STEP: Final = "current_steps"
_PROGRESS: Final = frozenset({_STEP, "total_steps", "percentage", "elapsed_time", "remaining_time"})
_CALLED: Final = {"accuracy": "rewards/accuracies"}
"""Names that it shortens: it logs an accuracy only where a trainer of preferences logs this one."""


def _recognises(sample: Sample) -> Fit:
    found = first(sample, f'"{_STEP}"')
    return Fit.SIGNATURE if found is not None and {"total_steps", "percentage"} <= found.keys() else Fit.NO


@importer("llama-factory-log", "trainer_log.jsonl of LLaMA-Factory", _recognises)
def read(path: Path) -> Imported:
    """Read every line; what tells the progress is left out."""
    objects = Objects(path)
    rows = (
        Row(
            whole(document.get(_STEP)),
            {_CALLED.get(name, name): value for name, value in document.items() if name not in _PROGRESS},
        )
        for document in objects
    )
    found = assemble(rows, path)
    return Imported(found.log, notes=(*objects.notes(), *found.notes))
