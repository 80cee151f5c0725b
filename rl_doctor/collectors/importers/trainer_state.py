"""``trainer_state.json`` of Hugging Face's Trainer, under whatever name: what TRL and others log is in ``log_history``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import assemble, row_of
from rl_doctor.errors import InputError

_MEMBER: Final = re.compile(r'"log_history"\s*:\s*\[')


def _recognises(sample: Sample) -> Fit:
    text = sample.text.lstrip()
    if not text.startswith("{"):
        return Fit.NO
    if _MEMBER.search(text):
        return Fit.SIGNATURE
    return Fit.SHAPE if '"is_world_process_zero"' in text or '"best_model_checkpoint"' in text else Fit.NO


@importer("trainer-state", "trainer_state.json of Hugging Face's Trainer", _recognises)
def read(path: Path) -> Imported:
    """Read ``log_history``: one row per log, with training and evaluation rows mixed."""
    document = _document(path)
    history = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(history, list):
        raise InputError(f"{path}: its member 'log_history' is not a list; export it again")
    rows = [record for record in history if isinstance(record, dict)]
    found = assemble((row_of(record, "step") for record in rows), path)
    return Imported(found.log, notes=found.notes)


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged or cut short ({error}); copy or export it again") from error
