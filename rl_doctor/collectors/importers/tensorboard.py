"""TensorBoard's event files and log folders.

They are read here, not by TensorBoard's ``EventAccumulator``: that takes several times as long, and is one more thing to install.
An event file is a sequence of TFRecords of protobuf Events; of an Event only its step and its scalars count. Scalars are written
as a plain float (torch, tensorboardX) or as a tensor (TensorFlow 2); they are float32 as they are logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from rl_doctor.collectors.importers.event_scalars import Events
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import assemble_points
from rl_doctor.collectors.importers.unfolding import media_note
from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.schema import RunInfo
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.metric_log import Points as Series

_EVENT_FILE: Final = when_used(r"events\.out\.tfevents\.(\d+)\..*")
_SPLITS: Final = {
    "train": "", "training": "", "eval": "eval/", "evaluation": "eval/", "val": "eval/", "valid": "eval/", "validation": "eval/",
    "test": "eval/",
}  # fmt: skip
"""Folders that hold a split of the run, and what the names in them begin with."""
_LISTED: Final = 12
_MOST: Final = 512
"""Entries of a folder that are looked at."""


def _recognises(sample: Sample) -> Fit:
    if not sample.folder:
        return Fit.SIGNATURE if b"brain.Event:" in sample.head[12:64] and sample.head[8:9] else Fit.NO
    try:
        return Fit.SHAPE if any(_folders(sample.path, sample.entries)) else Fit.NO
    except OSError:
        return Fit.NO


def _folders(path: Path, entries: Iterable[str]) -> Iterator[tuple[Path, list[Path]]]:
    """The folder and those in it, each with its event files in the order of their start."""
    names = [name for name in list(entries)[:_MOST] if not name.startswith(".")]
    if own := _event_files(path, names):
        yield path, own
    for name in names:
        folder = path / name
        if folder.is_dir() and (inner := _event_files(folder, [entry.name for entry in folder.iterdir()])):
            yield folder, inner


def _event_files(folder: Path, names: Iterable[str]) -> list[Path]:
    found = sorted((int(match[1]), name) for name in names if (match := _EVENT_FILE.fullmatch(name)) is not None)
    return [folder / name for _, name in found]


@importer("tensorboard", "event files of TensorBoard", _recognises)
def read(path: Path) -> Imported:
    """Read every scalar. The event files of a folder are one run, in the order of their start, as are folders named after splits.

    Scalars of another folder than that of the run are those of a split: "eval/" is put before the names in ``eval``, ``val``, ...
    """
    parts, left = ([(path, [path])], []) if path.is_file() else _parts(path)
    media, info, points, notes = set[str](), RunInfo(), dict[tuple[str, str], Series](), list[str]()
    for folder, files in parts:
        events = Events("" if folder == path else _SPLITS.get(folder.name.lower(), ""))
        if len(files) > 1:
            notes.append(f"{len(files)} event files of {folder.name} are one run, in the order of their start")
        for file in files:
            notes += events.add(file, named=len(parts) > 1 or len(files) > 1)
        media |= events.media
        info = events.info if events.info != RunInfo() else info
        if columns := events.points():
            made = assemble_points(columns, events.steps().astype(np.float64), frozenset(), folder)
            points.update(made.log.points)
            notes += made.notes
    if left:
        notes.append(f"folders beside it, not read: {', '.join(sorted(left))}")
    if not points:
        raise NothingToJudgeError(f"{path}: no scalar in it; log metrics by step with add_scalar")
    return Imported(MetricLog(points), info, (*notes, *media_note(media)))


def _parts(path: Path) -> tuple[list[tuple[Path, list[Path]]], list[str]]:
    """The folders that are of one run, and the names of those that are left out."""
    found = list(_folders(path, (entry.name for entry in path.iterdir())))
    chosen = [(folder, files) for folder, files in found if folder == path or folder.name.lower() in _SPLITS]
    if not chosen and len(found) == 1:
        chosen = found
    if not chosen:
        listed = "; ".join(f"{folder} ({_told(files)})" for folder, files in found[:_LISTED])
        more = f"; and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
        what = f"{path}: holds event files of {len(found):,} runs"
        raise InputError(f"{what}; give one of them, or with --join those that are of one run: {listed}{more}")
    return chosen, [folder.name for folder, _ in found if folder not in dict(chosen)]


def _told(files: Sequence[Path]) -> str:
    events = Events("")
    for file in files:
        events.add(file, named=False)
    steps = events.steps()
    return f"steps {steps.min()}-{steps.max()}" if len(steps) else "nothing logged"
