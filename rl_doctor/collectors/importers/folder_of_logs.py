"""A folder that is no run folder, with the log of one run in it, in one file or in several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rl_doctor.collectors.importers.joining import common_info, is_counted, join, same_run
from rl_doctor.collectors.importers.registry import Fit, Imported, Importer, Sample, find, importer, sample
from rl_doctor.collectors.importers.row_numbers import COUNTED
from rl_doctor.errors import DoctorError, InputError, NothingToJudgeError, SeveralRunsError
from rl_doctor.frozen import frozen

_NAME: Final = "folder-of-logs"
_MOST: Final = 512
"""Entries of a folder that are looked at."""
_SHOWN: Final = 8


@frozen(eq=False)
class _Found:
    """A file that was read."""

    name: str
    label: str
    log: Imported


def _recognises(seen: Sample) -> Fit:
    return Fit.CONTAINER if seen.folder and any(_logs_in(seen)) else Fit.NO


def _logs_in(seen: Sample) -> Iterator[tuple[Path, Importer]]:
    """Logs in a folder; only where it has none itself, those one folder further down."""
    found = False
    for path in _entries(seen.path, seen.entries):
        if (known := _known(path)) is not None:
            found = True
            yield path, known
    if found:
        return
    for folder in _entries(seen.path, seen.entries):
        try:
            inner = sample(folder) if folder.is_dir() and not folder.is_symlink() else None
        except (DoctorError, OSError):
            continue
        for path in _entries(folder, inner.entries if inner else ()):
            if not path.is_dir() and (known := _known(path)) is not None:
                yield path, known


def _entries(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    return (folder / name for name in names[:_MOST] if not name.startswith("."))


def _known(path: Path) -> Importer | None:
    """The importer of a file, or of a folder that is a tracker's."""
    try:
        seen = sample(path)
        return find(seen, without=_NAME) if seen.head or seen.folder else None
    except (DoctorError, OSError):
        return None


@importer(_NAME, "a folder of logs", _recognises)
def read(path: Path) -> Imported:
    """Read the logs in a folder and join them by step where they are of one run."""
    seen = sample(path)
    read_, failed = _read(path, _logs_in(seen))
    if not read_:
        raise failed or NothingToJudgeError(f"{path}: holds no log with numbers by step; give the file")
    if any(COUNTED not in found.log.notes for found in read_):
        read_ = [found for found in read_ if not _is_beside(found, read_)]
    runs = _runs(read_)
    if len(runs) > 1:
        shown = [f"{' + '.join(found.name for found in run)} (steps {_range(run)})" for run in runs[:_SHOWN]]
        more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
        raise SeveralRunsError(f"{path}: logs of {len(runs)} runs: {', '.join(shown)}{more}; check them one by one")
    log, notes = join([(found.name, found.log.log) for found in read_])
    ignored = len([name for name in seen.entries if not name.startswith(".")]) - len(
        {found.name.split("/")[0] for found in read_}
    )
    told = [f"{found.name}: {note}" for found in read_ for note in (f"read as {found.label}", *found.log.notes)]
    rest = [f"{ignored:,} other {'entry' if ignored == 1 else 'entries'} in the folder left out"] if ignored > 0 else []
    return Imported(log, common_info([found.log.info for found in read_]), (*told, *notes, *rest))


def _read(folder: Path, logs: Iterable[tuple[Path, Importer]]) -> tuple[list[_Found], InputError | None]:
    """The logs that hold numbers, and the first reason why one could not be read."""
    found: list[_Found] = []
    failed: InputError | None = None
    for path, known in logs:
        try:
            found.append(_Found(str(path.relative_to(folder)), known.label, known.read(path)))
        except NothingToJudgeError:
            continue
        except InputError as error:
            failed = failed or error
    return found, failed


def _is_beside(found: _Found, others: Sequence[_Found]) -> bool:
    """Whether a file without steps is no log of the run that another file has: no metric in it is one of the run's."""
    if COUNTED not in found.log.notes or not is_counted(found.log.log):
        return False
    own = found.log.log.points.keys()
    return all(own.isdisjoint(other.log.log.points.keys()) for other in others if other is not found)


def _runs(found: Sequence[_Found]) -> list[list[_Found]]:
    """The logs by the run that they are of."""
    runs: list[list[_Found]] = []
    for one in sorted(found, key=lambda own: int(own.log.log.steps()[0])):
        mine = next((run for run in runs if all(same_run(other.log.log, one.log.log) for other in run)), None)
        if mine is None:
            runs.append([one])
        else:
            mine.append(one)
    return runs


def _range(run: Sequence[_Found]) -> str:
    steps = [found.log.log.steps() for found in run]
    return f"{min(int(own[0]) for own in steps)}-{max(int(own[-1]) for own in steps)}"
