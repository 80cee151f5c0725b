"""Opens the logs of trainers and trackers as runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from rl_doctor.collectors.importers.joining import common_info, join, of_two_runs
from rl_doctor.collectors.importers.pairs_console import is_lines, numbers_without_step
from rl_doctor.collectors.importers.parquet_history import is_history
from rl_doctor.collectors.importers.registry import ADDRESS, Imported, Sample, find, part_of, sample
from rl_doctor.errors import InputError, NothingToJudgeError, SeveralRunsError, UsageError
from rl_doctor.schema import RunInfo
from rl_doctor.store.aliases import ALIASES
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.members import IMPORTED_MEMBER
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.presence import floats
from rl_doctor.store.run import Run, is_stored, open_run
from rl_doctor.store.writer import RunWriter

_MOST: Final = 512
"""Entries of a folder that are looked at."""
_SHOWN: Final = 12
"""Runs of a folder that are named."""

Kinds = Callable[[RunInfo, MetricLog], tuple[str, ...]]
"""What a log is one of (its trainer, what it learns from), "" where that is unknown."""


def _no_kinds(info: RunInfo, log: MetricLog) -> tuple[str, ...]:
    del log
    return (info.trainer or "",)


def open_log(paths: Sequence[Path], kinds: Kinds = _no_kinds) -> Run:
    """Open the log of a trainer or tracker; several paths are files of one run and are joined by step.

    Args:
        paths: files or folders, each of a format that an importer recognises by content. Where two have the same name at the
            same step, the later path counts.
        kinds: tells what the log of a file is one of; files of different kinds are not joined.

    Returns:
        A run without rows: all that it holds is what was logged.

    Raises:
        InputError: a path is missing, empty, damaged, or of no known format; or the files are of several runs.
        NothingToJudgeError: there is no number in it.
    """
    read = [(path, *_read(path)) for path in paths]
    for one, two in combinations([(path, found) for path, _, found in read], 2):
        _refuse_two_runs(*one, *two, kinds)
    log, doubts = join([(str(path), found.log) for path, _, found in read])
    several = len(read) > 1
    notes = [f"{path}: read as {label}" if several else f"read as {label}" for path, label, _ in read]
    notes += [f"{path}: {note}" if several else note for path, _, found in read for note in found.notes]
    steps = log.steps()
    empty = sorted({name for _, _, found in read for name in _empty(found)})
    facts = StoreFacts(first_step=int(steps[0]), last_step=int(steps[-1]), notes=(*notes, *doubts), empty_columns=tuple(empty))
    info = common_info([found.info for _, _, found in read])
    return Run(paths[0], info, frozenset(), (), (), lambda: facts, lambda: log)


def _refuse_two_runs(first: Path, one: Imported, second: Path, two: Imported, kinds: Kinds) -> None:
    told = zip(kinds(one.info, one.log), kinds(two.info, two.log), strict=True)
    apart = next((f"one is of {a}, the other of {b}" for a, b in told if a and b and a != b), "") or of_two_runs(one.log, two.log)
    if apart:
        raise InputError(f"{first} and {second}: not of one run: {apart}; check them one by one")


def import_log(paths: Sequence[Path], folder: Path, told: RunInfo, kinds: Kinds = _no_kinds) -> Run:
    """Write a log as a run folder.

    Args:
        paths: as in ``open_log``.
        folder: the run folder to make; it must not be there, or be empty.
        told: what the user knows better than the log.
        kinds: as in ``open_log``.

    Returns:
        The log, opened.

    Raises:
        UsageError: the folder is not empty, or cannot be written.
        InputError, NothingToJudgeError: as in ``open_log``.
    """
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"{folder}: cannot write a run there: the folder that it would be in does not exist")
    run = open_log(paths, kinds)
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
    if seen.folder and (recorded := recordings_in(path, seen.entries)):
        raise SeveralRunsError(_recordings(path, recorded, log=chosen is not None))
    file, run = part_of(path)
    if run is not None and not (chosen and chosen.parts):
        raise InputError(f"{path}: no such file; {file.name} holds one run, give it without #{run}")
    if chosen is not None:
        return chosen.label, chosen.read(path)
    if is_stored(path):
        return "a run", _logged(open_run(path))
    if seen.folder:
        raise InputError(f"{path}: neither a run folder nor a folder of logs; give the file")
    if ADDRESS.match(str(path)):
        address = str(path).replace(":/", "://", 1)
        raise InputError(
            f"{address}: not recognised: of servers only wandb's runs are read; give wandb://ENTITY/PROJECT/RUN_ID or a file"
        )
    raise InputError(f"{path}: not recognised as a run or a log{_nearest(seen)} (rl-doctor import --list names the formats)")


def recordings_in(folder: Path, names: Iterable[str]) -> list[str]:
    """The recorded runs among the entries of a folder, by name: run folders, and Parquet files that open as runs."""
    shown = [name for name in names if not name.startswith(".")][:_MOST]
    return [name for name in shown if _is_recording(folder / name)]


def _is_recording(path: Path) -> bool:
    try:
        return is_stored(path) and (path.is_dir() or not is_history(path)) and bool(path.is_dir() or open_run(path).columns)
    except NothingToJudgeError:
        return False  # Parquet of something else
    except InputError:
        return True  # damaged: whoever asks for the folder has to hear of it
    except OSError:
        return False


def _recordings(folder: Path, names: Sequence[str], *, log: bool) -> str:
    """Why a folder with recorded runs is not judged as a log."""
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    runs = "1 recorded run" if len(names) == 1 else f"{len(names)} recorded runs"
    which = "it" if len(names) == 1 and not log else "one, or each of them"
    return f"{folder}: no run itself, but a folder with {runs}{' and logs' if log else ''}: {shown}; name {which}"


def _nearest(seen: Sample) -> str:
    """What a file that no importer takes comes nearest to."""
    text = seen.text.lstrip()
    if not text.strip():
        return ": neither text nor a known binary file" if seen.head.strip() else ": nothing but blanks"
    if text.startswith(("{", "[")) and not is_lines(text):
        return ": it begins as JSON, but holds no records of numbers"
    if numbers_without_step(text):
        return ": its lines have numbers by name, but no step; write step=N in each"
    return ": no 3 lines in it have a step and 2 or more numbers by name (step=1 loss=0.5 kl=0.01)"


def _logged(run: Run) -> Imported:
    if run.columns:
        raise InputError(f"{run.path}: has rows of sequences or tokens and is no log to import or to join; check it by itself")
    return Imported(run.metrics(), run.info, run.facts.notes)


def _empty(found: Imported) -> Iterable[str]:
    """Canonical float columns in which nothing stands, or nothing but NaN."""
    blank = (name for name, split in found.log.points if split == "train" and np.isnan(found.log.series(name)[1]).all())
    return floats(ALIASES.get(name, name) for name in (*found.empty, *blank))
