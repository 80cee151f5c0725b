"""Opens the logs of trainers and trackers as runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rl_doctor.collectors.importers.joining import common_info, join
from rl_doctor.collectors.importers.registry import Imported, find, importers, part_of, sample
from rl_doctor.errors import InputError, UsageError
from rl_doctor.schema import RunInfo
from rl_doctor.store.aliases import ALIASES
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.members import IMPORTED_MEMBER
from rl_doctor.store.presence import floats
from rl_doctor.store.run import Run, is_stored, open_run
from rl_doctor.store.writer import RunWriter


def open_log(paths: Sequence[Path]) -> Run:
    """Open the log of a trainer or tracker; several paths are files of one run and are joined by step.

    Args:
        paths: files or folders, each of a format that an importer recognises by content. Where two have the same name at the
            same step, the later path counts.

    Returns:
        A run without rows: all that it holds is what was logged.

    Raises:
        InputError: a path is missing, empty, damaged, or of no known format.
        NothingToJudgeError: there is no number in it.
    """
    read = [(path, *_read(path)) for path in paths]
    log, doubts = join([(str(path), found.log) for path, _, found in read])
    several = len(read) > 1
    notes = [f"{path}: read as {label}" if several else f"read as {label}" for path, label, _ in read]
    notes += [f"{path}: {note}" if several else note for path, _, found in read for note in found.notes]
    steps = log.steps()
    empty = sorted({name for _, _, found in read for name in _empty(found)})
    facts = StoreFacts(first_step=int(steps[0]), last_step=int(steps[-1]), notes=(*notes, *doubts), empty_columns=tuple(empty))
    info = common_info([found.info for _, _, found in read])
    return Run(paths[0], info, frozenset(), (), (), lambda: facts, lambda: log)


def import_log(paths: Sequence[Path], folder: Path, told: RunInfo) -> Run:
    """Write a log as a run folder.

    Args:
        paths: as in ``open_log``.
        folder: the run folder to make; it must not be there, or be empty.
        told: what the user knows better than the log.

    Returns:
        The log, opened.

    Raises:
        UsageError: the folder is not empty, or cannot be written.
        InputError, NothingToJudgeError: as in ``open_log``.
    """
    run = open_log(paths)
    info = replace(common_info([told, run.info]), status="complete", extra={IMPORTED_MEMBER: list(run.facts.notes)})
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder}: exists and is not empty; name a new folder")
        writer = RunWriter(folder, info)
        writer.write_metrics(
            [{"step": step, "name": name, "value": value, "split": split} for step, name, value, split in run.metrics().records()]
        )
    except OSError as error:
        raise UsageError(f"{folder}: cannot write: {error.strerror or error}") from error
    return run


def _read(path: Path) -> tuple[str, Imported]:
    seen = sample(path)
    chosen = find(seen)
    file, run = part_of(path)
    if run is not None and not (chosen and chosen.parts):
        raise InputError(f"{path}: no such file; {file.name} holds one run, give it without #{run}")
    if chosen is not None:
        return chosen.label, chosen.read(path)
    if is_stored(path):
        return "a run", _logged(open_run(path))
    if seen.folder:
        raise InputError(f"{path}: neither a run folder nor a folder of logs; give the file")
    known = ", ".join(sorted({one.label for one in importers().values()}))
    raise InputError(f"{path}: not recognised as a run or a log; known are run folders, Parquet, {known}")


def _logged(run: Run) -> Imported:
    if run.columns:
        raise InputError(f"{run.path}: has rows of sequences or tokens; only logs can be joined, check it by itself")
    return Imported(run.metrics(), run.info, run.facts.notes)


def _empty(found: Imported) -> Iterable[str]:
    """Canonical float columns in which nothing stands, or nothing but NaN."""
    blank = (name for name, split in found.log.points if split == "train" and np.isnan(found.log.series(name)[1]).all())
    return floats(ALIASES.get(name, name) for name in (*found.empty, *blank))
