"""Opens the logs of trainers and trackers as runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rl_doctor.collectors.importers.registry import Imported, find, importers, sample
from rl_doctor.errors import InputError, UsageError
from rl_doctor.schema import RunInfo
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.members import IMPORTED_MEMBER
from rl_doctor.store.metric_log import MetricLog, Points, ordered
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
    log = _joined([found.log for _, _, found in read])
    several = len(read) > 1
    notes = [f"{path}: read as {label}" if several else f"read as {label}" for path, label, _ in read]
    notes += [f"{path}: {note}" if several else note for path, _, found in read for note in found.notes]
    steps = log.steps()
    facts = StoreFacts(first_step=int(steps[0]), last_step=int(steps[-1]), notes=tuple(notes))
    info = _common([found.info for _, _, found in read])
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
    info = replace(_common([told, run.info]), status="complete", extra={IMPORTED_MEMBER: list(run.facts.notes)})
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
    if is_stored(path):
        return "a history of scalars in Parquet", _scalars(open_run(path))
    chosen = find(seen)
    if chosen is None and seen.folder:
        raise InputError(f"{path}: neither a run folder nor a folder of logs; give the file")
    if chosen is None:
        known = ", ".join(sorted({one.label for one in importers().values()}))
        raise InputError(f"{path}: not recognised as a run or a log; known are run folders, Parquet, {known}")
    return chosen.label, chosen.read(path)


def _scalars(run: Run) -> Imported:
    if run.columns:
        raise InputError(f"{run.path}: has rows of sequences or tokens; only logs can be joined, check it by itself")
    return Imported(run.metrics(), run.info, run.facts.notes)


def _joined(logs: Sequence[MetricLog]) -> MetricLog:
    if len(logs) == 1:
        return logs[0]
    points: dict[tuple[str, str], Points] = {}
    for log in logs:
        for key, (steps, values) in log.points.items():
            if key not in points:
                points[key] = (steps, values)
                continue
            before = points[key]
            points[key] = ordered([*before[0].tolist(), *steps.tolist()], [*before[1].tolist(), *values.tolist()])
    return MetricLog(points)


def _common(infos: Sequence[RunInfo]) -> RunInfo:
    """What any of the files tells; the first that tells something counts."""
    merged = RunInfo()
    for info in reversed(infos):
        told = {name: value for name in ("run_id", "trainer", "trainer_version", "algorithm") if (value := getattr(info, name))}
        merged = replace(merged, **told)
        if info.config != RunInfo().config:
            merged = replace(merged, config=info.config)
    return merged
