"""TensorBoard's event files and log folders.

They are read here, not by TensorBoard's ``EventAccumulator``: that takes several times as long, and is one more thing to install.
An event file is a sequence of TFRecords of protobuf Events; of an Event only its step and its scalars count. Scalars are written
as a plain float (torch, tensorboardX) or as a tensor (TensorFlow 2); they are float32 as they are logged.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from rl_doctor.collectors.importers.columns import MOST_NAMES, Points, TooManyNamesError
from rl_doctor.collectors.importers.protobuf import FIXED32, fields, member, signed, varint
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import assemble_points
from rl_doctor.collectors.importers.tfrecords import find_records
from rl_doctor.collectors.importers.tracker_config import info_of
from rl_doctor.collectors.importers.unfolding import media_note
from rl_doctor.errors import InputError, NothingToJudgeError
from rl_doctor.schema import RunInfo
from rl_doctor.store.metric_log import MetricLog, split_of
from rl_doctor.store.metric_log import Points as Series

_EVENT_FILE: Final = re.compile(r"events\.out\.tfevents\.(\d+)\..*")
_SPLITS: Final = {
    "train": "", "training": "", "eval": "eval/", "evaluation": "eval/", "val": "eval/", "valid": "eval/", "validation": "eval/",
    "test": "eval/",
}  # fmt: skip
"""Folders that hold a split of the run, and what the names in them begin with."""
_LISTED: Final = 12
_MOST: Final = 512
"""Entries of a folder that are looked at."""
_WALL_TIME, _STEP, _SIMPLE_VALUE = 0x09, 0x10, b"\x15"
_SHORTEST: Final = 20
"""Bytes that an event with a scalar has at least."""
_FLOAT: Final = struct.Struct("<f")
_TENSOR_TYPES: Final = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""Types of tensors that scalars have, and how their bytes are read."""
_TENSOR_FIELDS: Final = {5: "<f4", 6: "<f8"}
_ARGUMENTS: Final = "args/text_summary"
"""Tag under which Hugging Face's Trainer writes its arguments as JSON."""


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
        events = _Events("" if folder == path else _SPLITS.get(folder.name.lower(), ""))
        if len(files) > 1:
            notes.append(f"{len(files)} event files of {folder.name} are one run, in the order of their start")
        for file in files:
            notes += events.add(file, named=len(parts) > 1 or len(files) > 1)
        media |= events.media
        info = events.info if events.info != RunInfo() else info
        if events.columns:
            made = assemble_points(events.points(), np.array(events.steps, np.float64), frozenset(), folder)
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
    events = _Events("")
    for file in files:
        events.add(file, named=False)
    return f"steps {min(events.steps)}-{max(events.steps)}" if events.steps else "nothing logged"


@dataclass(slots=True, eq=False)
class _Events:
    """Scalars of the events of a run, in the order of logging.

    Attributes:
        prefix: what is put before names that do not tell the split.
        steps: the step of each scalar.
        columns: for each name the places in ``steps`` of its scalars, and the scalars.
        media: names of what is no scalar.
        info: what the trainer wrote of itself.
    """

    prefix: str
    steps: list[int] = field(default_factory=list)
    columns: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    media: set[str] = field(default_factory=set)
    info: RunInfo = field(default_factory=RunInfo)
    _plugins: dict[str, bytes] = field(default_factory=dict)

    def points(self) -> dict[str, Points]:
        """The columns as arrays."""
        return {name: (np.array(at, np.int64), np.array(values, np.float64)) for name, (at, values) in self.columns.items()}

    def add(self, file: Path, *, named: bool) -> list[str]:
        """Take the events of a file; what was wrong with it."""
        where = f"{file.name}: " if named else ""
        try:
            if not file.stat().st_size:
                return [f"{where}empty"]
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found, unreadable = find_records(data), 0
                known: dict[bytes, tuple[list[int], list[float]]] = {}
                for start, stop in zip(found.starts.tolist(), found.stops.tolist(), strict=True):
                    try:
                        self._event(data[start:stop], known)
                    except (ValueError, IndexError, struct.error):
                        unreadable += 1
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be read ({error})") from error
        notes = []
        if found.lost is not None:
            notes.append(f"{where}damaged at byte {found.lost:,}: what follows is lost")
        if wrong := found.damaged + unreadable:
            notes.append(f"{where}{wrong:,} damaged {'event' if wrong == 1 else 'events'} left out")
        if found.torn:
            notes.append(f"{where}ends within an event, as when a run is killed: read up to there")
        return notes

    def _event(self, event: bytes, known: dict[bytes, tuple[list[int], list[float]]]) -> None:
        """Take one event. Of two events with the same bytes between step and value only the first is read field by field."""
        step, at = 0, 9
        if event[0] == _WALL_TIME and len(event) > _SHORTEST:
            if event[9] == _STEP:
                step, at = (event[10], 11) if event[10] < 0x80 else varint(event, 10)
            column = known.get(event[at:-4])
            if column is not None:
                column[0].append(len(self.steps))
                column[1].append(_FLOAT.unpack_from(event, len(event) - 4)[0])
                self.steps.append(signed(step))
                return
        values = []
        for number, _, body in fields(event):
            if number == 2 and isinstance(body, int):
                step = body
            elif number == 5 and isinstance(body, bytes):
                values += [value for own, _, value in fields(body) if own == 1 and isinstance(value, bytes)]
        for value in values:
            column = self._value(value, signed(step))
            plain = len(values) == 1 and event[0] == _WALL_TIME and event[-5:-4] == _SIMPLE_VALUE and event.endswith(value)
            if plain and column is not None and value[:1] == b"\n" and value[-5:-4] == _SIMPLE_VALUE:
                known[event[at:-4]] = column

    def _value(self, body: bytes, step: int) -> tuple[list[int], list[float]] | None:
        """Take one value of a summary; its column where it is a scalar."""
        tag, scalar, tensor = "", None, None
        for number, kind, value in fields(body):
            if number == 1 and isinstance(value, bytes):
                tag = value.decode("utf-8", errors="replace")
            elif number == 2 and kind == FIXED32 and isinstance(value, bytes):
                scalar = float(_FLOAT.unpack(value)[0])
            elif number == 8 and isinstance(value, bytes):
                tensor = value
            elif number == 9 and isinstance(value, bytes):
                self._plugins[tag] = member(member(value, 1), 1)
        if tensor is not None and self._plugins.get(tag, b"scalars") in (b"scalars", b""):
            scalar = _scalar(tensor)
        if scalar is None:
            self._other(tag, tensor)
            return None
        name = tag if not self.prefix or split_of(tag) == "eval" else f"{self.prefix}{tag}"
        column = self.columns.setdefault(name, ([], []))
        if len(self.columns) > MOST_NAMES:
            raise TooManyNamesError(f"more than {MOST_NAMES:,} different tags: no log of metrics; log fewer")
        column[0].append(len(self.steps))
        column[1].append(scalar)
        self.steps.append(step)
        return column

    def _other(self, tag: str, tensor: bytes | None) -> None:
        if tag == _ARGUMENTS and tensor is not None:
            try:
                arguments = json.loads(member(tensor, 8))
            except (ValueError, RecursionError):
                return
            if isinstance(arguments, dict):
                self.info = info_of(arguments)
        elif tag and not tag.startswith("_hparams_"):
            self.media.add(tag)


def _scalar(tensor: bytes) -> float | None:
    """The value of a tensor with one element; None where it has more, or is of another type."""
    kind, raw, form = 0, b"", ""
    for number, _, value in fields(tensor):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 4 and isinstance(value, bytes):
            raw, form = value, _TENSOR_TYPES.get(kind, "")
        elif number in _TENSOR_FIELDS and isinstance(value, bytes):
            raw, form = value, _TENSOR_FIELDS[number]
    if not form or len(raw) != np.dtype(form).itemsize:
        return None
    return float(np.frombuffer(raw, form)[0])
