"""wandb without its server: a ``.wandb`` file, the folder of a run, or a folder of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.numbers import whole
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import assemble_columns
from rl_doctor.collectors.importers.tracker_config import info_of
from rl_doctor.collectors.importers.unfolding import media_note
from rl_doctor.collectors.importers.wandb_records import MAGIC, Framing, Recorded, frames, last_values
from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.store.step_axis import step_names

_RUN_FOLDER: Final = when_used(r"(?:offline-)?run-(?P<time>\d{8}_\d{6})-(?P<id>.+)")
_LISTED: Final = 12
"""Runs of a folder that a message lists, the newest."""


def _recognises(sample: Sample) -> Fit:
    if sample.folder:
        found = any(_RUN_FOLDER.fullmatch(name) or name.endswith(".wandb") for name in sample.entries)
        return Fit.SIGNATURE if found else Fit.NO
    return Fit.SIGNATURE if sample.head.startswith(MAGIC) else Fit.NO


@importer("wandb", "an offline run of wandb", _recognises)
def read(path: Path) -> Imported:
    """Read a run's history, configuration and step axes. Folders of the same run id are one run that was resumed."""
    files, notes = _chosen(path, _files(path))
    recorded = Recorded()
    for file in files:
        notes += _read_into(recorded, file, named=len(files) > 1)
    found = assemble_columns(recorded.columns, path, recorded.axes)
    return Imported(found.log, info_of(recorded.config, recorded.run_id), (*_told(recorded), *notes, *found.notes))


def _files(path: Path) -> list[Path]:
    """The files of the runs under a path, in the order of their start."""
    if path.is_file():
        return [path]
    own = sorted(path.glob("*.wandb"))
    if own:
        return own
    runs = sorted(
        (match["time"], folder) for folder in path.iterdir() if (match := _RUN_FOLDER.fullmatch(folder.name)) is not None
    )
    files = [file for _, folder in runs for file in sorted(folder.glob("*.wandb"))]
    if not files:
        raise InputError(f"{path}: folders of wandb runs without a .wandb file in them; copy the folders whole")
    return files


def _chosen(path: Path, files: list[Path]) -> tuple[list[Path], list[str]]:
    """The files of the only run that logged something, and what to say of it."""
    runs: dict[str, list[Path]] = {}
    for file in files:
        runs.setdefault(_run_id(file), []).append(file)
    logged = (
        runs if len(runs) == 1 else {name: own for name, own in runs.items() if any(_last_step(file) is not None for file in own)}
    )
    if len(logged) > 1:
        raise InputError(f"{path}: holds {len(runs):,} runs; give one of them: {'; '.join(_described(path, logged))}")
    if not logged:
        raise NothingToJudgeError(f"{path}: holds {len(runs):,} runs, none of which logged a number with a step")
    ((name, own),) = logged.items()
    notes = [f"{name} is the only one of {len(runs):,} runs that logged something"] if len(runs) > 1 else []
    if len(own) > 1:
        notes.append(f"one run that was resumed: read from {len(own)} files, in the order of their start")
    return own, notes


def _run_id(file: Path) -> str:
    return file.stem.removeprefix("run-")


def _described(path: Path, runs: dict[str, list[Path]]) -> Iterable[str]:
    """Each run with its last step, the newest first."""
    link = path / "latest-run"
    latest = link.resolve() if link.exists() else None
    newest = sorted(runs.values(), key=lambda files: files[-1].parent.name.removeprefix("offline-"), reverse=True)
    for files in newest[:_LISTED]:
        shown = files[-1] if files[-1].parent == path else files[-1].parent
        yield f"{shown} (to step {_last_step(files[-1])}{', latest-run' if shown.resolve() == latest else ''})"
    if len(newest) > _LISTED:
        yield f"and {len(newest) - _LISTED:,} older ones"


def _last_step(file: Path) -> int | None:
    try:
        last = last_values(file)
    except OSError:
        return None
    return next((step for name in step_names(last) if (step := whole(last[name])) is not None), None)


def _read_into(recorded: Recorded, file: Path, *, named: bool) -> list[str]:
    """Add a file to what was recorded; what was wrong with it."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error
    if not data.startswith(MAGIC):
        raise InputError(f"{file}: not a log of wandb: it does not begin with {MAGIC.decode()}; copy it again")
    framing, before = Framing(), recorded.unreadable
    for record in frames(data, framing):
        recorded.add(record)
    where = f"{file.name}: " if named else ""
    notes = []
    if framing.damaged:
        places = "1 place" if len(framing.damaged) == 1 else f"{len(framing.damaged):,} places"
        notes.append(f"{where}damaged at {places} (the first at byte {framing.damaged[0]:,}): what was logged there is lost")
    if framing.torn:
        notes.append(f"{where}ends within a record, as when a run is killed: read up to there")
    if recorded.unreadable > before:
        notes.append(f"{where}{recorded.unreadable - before:,} records cannot be read and are left out")
    return notes


def _told(recorded: Recorded) -> Sequence[str]:
    notes = []
    if recorded.run_id:
        name = f" {recorded.name!r}" if recorded.name else ""
        project = f" of project {recorded.project}" if recorded.project else ""
        notes.append(f"run{name} ({recorded.run_id}){project}")
    if recorded.exit_code:
        notes.append(f"the run ended with exit code {recorded.exit_code}")
    elif recorded.exit_code is None:
        notes.append("the end of the run is not in it: it still runs, or was killed")
    return [*notes, *media_note(recorded.media)]
