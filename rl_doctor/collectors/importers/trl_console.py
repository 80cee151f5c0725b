"""What trainers on Hugging Face's Trainer (TRL, Unsloth, ms-swift, LLaMA-Factory) print: a Python dictionary per log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.console import seen
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.printed_rows import printed_rows
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import assemble

_EPOCH: Final = "'epoch': "
_MARKS: Final = (_EPOCH, "'learning_rate': ", "'grad_norm': ")
_ROW: Final = when_used(rf"\{{(?:'[^'\n]{{1,200}}': [^{{}}]{{0,20000}}?)??({'|'.join(_MARKS)})[^{{}}]{{0,20000}}\}}?")
_STEP: Final = when_used(r"'(?:global_)?step': ")


def _recognises(sample: Sample) -> Fit:
    """The trainer writes the epoch and no step; a row with a step and no epoch is of somebody's own loop."""
    rows = _ROW.finditer(seen(sample))
    return Fit.SHAPE if any(_EPOCH in row[0] or not _STEP.search(row[0]) for row in rows) else Fit.NO


@importer("trl-console", "console output of a trainer on Hugging Face's Trainer (TRL)", _recognises, marks=_MARKS)
def read(path: Path) -> Imported:
    """Read the dictionaries."""
    rows, notes = printed_rows(path)
    found = assemble(rows, path)
    return Imported(found.log, notes=(*notes, *found.notes))
