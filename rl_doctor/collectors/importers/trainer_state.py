"""``trainer_state.json`` of Hugging Face's Trainer, under whatever name: what TRL and others log is in ``log_history``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.importers import text_file
from rl_doctor.collectors.importers.console import read_bytes, seen
from rl_doctor.collectors.importers.numbers import whole
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import assemble, row_of
from rl_doctor.collectors.importers.text_file import check_size, decode
from rl_doctor.errors import InputError
from rl_doctor.schema import RunConfig, RunInfo

FILE: Final = "trainer_state.json"
_MEMBER: Final = when_used(r'"log_history"\s*:\s*\[')
_BRACE: Final = when_used(r'\{\s*"')
_FAILURES: Final = 1000
"""Places of damage after which no further row is looked for."""
_CHECKPOINT: Final = when_used(r"checkpoint-(\d+)")
_SETTINGS: Final = (
    "train_batch_size", "logging_steps", "eval_steps", "save_steps", "max_steps", "num_train_epochs", "global_step",
    "num_input_tokens_seen",
)  # fmt: skip
"""Members beside the history that say how it was trained."""


def _recognises(sample: Sample) -> Fit:
    if sample.folder:
        return Fit.SHAPE if _states(sample.path, sample.entries) else Fit.NO
    text = seen(sample).lstrip()
    if not text.startswith("{"):
        return Fit.NO
    if _MEMBER.search(text):
        return Fit.SIGNATURE
    return Fit.SHAPE if '"is_world_process_zero"' in text or '"best_model_checkpoint"' in text else Fit.NO


@importer("trainer-state", "trainer_state.json of Hugging Face's Trainer", _recognises)
def read(path: Path) -> Imported:
    """Read ``log_history``: one row per log, with training and evaluation rows mixed.

    Of an output folder the state with the most steps is read.
    """
    file, notes = _chosen(path) if path.is_dir() else (path, ())
    history, settings, torn = _document(file)
    rows = (row_of(record, "step" if "step" in record else None) for record in history if isinstance(record, dict))
    found = assemble(rows, file)
    config = RunConfig(native=settings) if settings else RunConfig()
    return Imported(found.log, RunInfo(config=config), (*notes, *torn, *found.notes))


def _states(folder: Path, entries: tuple[str, ...]) -> dict[str, int]:
    """States in an output folder, by the path inside it, and the step that a checkpoint's name tells (0 for none)."""
    found = {FILE: 0} if FILE in entries else {}
    for entry in entries:
        if (named := _CHECKPOINT.fullmatch(entry)) and (folder / entry / FILE).is_file():
            found[f"{entry}/{FILE}"] = int(named[1])
    return found


def _chosen(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The state with the most steps, and which it is."""
    try:
        states = _states(folder, tuple(entry.name for entry in folder.iterdir()))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror or error})") from error
    newest = max((name for name in states if name != FILE), key=lambda name: states[name], default=FILE)
    if FILE in states and newest != FILE:
        settings = _document(folder / FILE)[1]
        if (whole(settings.get("global_step")) or 0) >= states[newest]:
            newest = FILE
    beside = f" of {len(states)} in the folder" if len(states) > 1 else ""
    return folder / newest, (f"{newest} is read, the newest state{beside}" if beside else f"{newest} is read",)


def _document(path: Path) -> tuple[list[Any], Mapping[str, Any], tuple[str, ...]]:
    """The history, the settings beside it, and what there is to say where the file is cut short."""
    text = decode(read_bytes(path, text_file.LARGEST_DOCUMENT + 1))
    check_size(path, len(text))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        rows = _whole_rows(text)
        if not rows:
            raise InputError(f"{path}: damaged or cut short ({error}); copy or export it again") from error
        return rows, {}, (f"the file is damaged or cut short: of its rows {len(rows):,} are whole, the others are left out",)
    history = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(history, list):
        raise InputError(f"{path}: its member 'log_history' is not a list; export it again")
    return history, {name: document[name] for name in _SETTINGS if document.get(name) is not None}, ()


def _whole_rows(text: str) -> list[Any]:
    """The rows of a history that can be read although the document cannot."""
    found = _MEMBER.search(text)
    decoder, rows, failures = json.JSONDecoder(), [], 0
    start = _BRACE.search(text, found.end() if found else 1)
    while start and failures < _FAILURES:
        try:
            row, end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            failures, end = failures + 1, start.end()
        else:
            if "step" in row:
                rows.append(row)
        start = _BRACE.search(text, end)
    return rows
