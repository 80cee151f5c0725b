"""What the footers of a run folder's parts said, so that only those of parts that are new or changed are read."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rl_doctor.errors import InputError
from rl_doctor.store.layout import PartName
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.part import Part, open_metrics, open_part, read_metrics
from rl_doctor.store.presence import Presence
from rl_doctor.store.stamps import stamp

FRESH_SECONDS: Final = 2.0
"""A file that was written so shortly before it was read may be written again without its time telling: some systems count in
steps of so many seconds."""
_ATTEMPTS: Final = 3
_Signature = tuple[int, ...]


@dataclass(slots=True)
class Seen:
    """Files as they were when they were read.

    Attributes:
        signature: size, time of the last write and of the last change of each, in nanoseconds.
        fresh: whether they had been written just before.
        stamp: see ``stamps.stamp``; None where it was not asked for.
    """

    signature: _Signature
    fresh: bool
    stamp: bytes | None = None

    @classmethod
    def of(cls, folder: Path, names: Sequence[str]) -> Seen:
        """Files as they are; to be called before they are read."""
        signature = signature_of(folder, names)
        return cls(signature, _is_fresh(signature))

    def holds(self, folder: Path, names: Sequence[str]) -> bool:
        """Whether they are still what they were."""
        if signature_of(folder, names) != self.signature:
            return False
        if self.fresh:
            if self.stamp != stamp(folder / name for name in names):
                return False
            self.fresh = _is_fresh(self.signature)
        return True


@dataclass(slots=True)
class Entry:
    """A part, which of its columns hold anything, and its files as they were."""

    part: Part
    presence: Presence
    seen: Seen


@dataclass(slots=True)
class PartIndex:
    """The parts of a run folder that were whole.

    Attributes:
        entries: name of a sequences part -> what was read of it and of the parts that belong to it.
        metrics: name of a metrics part -> the file as it was.
        logged: the metrics parts that ``log`` is made of, in its order.
        log: what the trainer logged in them.
        parts_read: how many parts' footers were read.
        changed: whether there is anything new since it was written or read.
    """

    entries: dict[PartName, Entry] = field(default_factory=dict)
    metrics: dict[PartName, Seen] = field(default_factory=dict)
    logged: list[PartName] = field(default_factory=list)
    log: MetricLog = field(default_factory=MetricLog)
    parts_read: int = 0
    changed: bool = False
    _presences: dict[object, Presence] = field(default_factory=dict)
    _last: Presence | None = None
    _tables: tuple[str, ...] = ("sequences", "tokens")

    def opened(self, path: Path, name: PartName, presence: Presence) -> Part:
        """The part of that name, from a folder; what it has is added to ``presence``.

        Raises:
            InputError: one of its tables is missing or torn.
        """
        entry = self.entries.get(name)
        if entry is None or not entry.seen.holds(path, entry.part.files):
            entry = self._read(path, name)
        presence.join(entry.presence)
        return entry.part

    def _read(self, path: Path, name: PartName) -> Entry:
        self.entries.pop(name, None)
        self.changed = True
        try:
            entry = self._opened(path, name)
        except InputError:  # a recorder that saves space may have replaced it in between
            entry = self._opened(path, name)
        self.parts_read += 1
        self.entries[name] = entry
        return entry

    def _opened(self, path: Path, name: PartName) -> Entry:
        for _ in range(_ATTEMPTS):
            # Looked at before they are read: what is written in between has another signature the next time.
            seen = Seen.of(path, files := [str(name.of(table)) for table in self._tables])
            presence = Presence(self._last)
            part = open_part(path, name, presence)
            if part.files == files:
                break
            if part.tokens_version:
                seen = Seen.of(path, part.files)
                if open_part(path, name, Presence(presence)).files == part.files:
                    break
            self._tables = part.tables
        if seen.fresh:
            seen.stamp = stamp(part.paths)
        return Entry(part, self.shared(presence), seen)

    def shared(self, presence: Presence) -> Presence:
        """The same presence, as one object for all parts that have it."""
        self._last = self._presences.setdefault(presence.key(), presence)
        return self._last

    def stamp(self, part: Part) -> bytes:
        """A digest that tells the part's files from what stood in their place before."""
        entry = self.entries.get(part.name)
        if entry is None or entry.part is not part:
            return stamp(part.paths)
        if entry.seen.stamp is None:
            entry.seen.stamp = stamp(part.paths)
            self.changed = True
        return entry.seen.stamp

    def holds(self, path: Path) -> bool:
        """Whether all parts are what they were."""
        return all(entry.seen.holds(path, entry.part.files) for entry in self.entries.values())

    def check_metrics(self, path: Path, name: PartName) -> None:
        """See that a metrics part is whole, unless it is known to be.

        Raises:
            InputError: it is not.
        """
        seen = self.metrics.get(name)
        if seen is not None and seen.holds(path, [str(name)]):
            return
        if self.metrics.pop(name, None) is not None:
            self.logged, self.log = [], MetricLog()
        self.changed = True
        seen = Seen.of(path, [str(name)])
        open_metrics(path / str(name))
        if seen.fresh:
            seen.stamp = stamp([path / str(name)])
        self.metrics[name] = seen

    def read_log(self, path: Path, names: Sequence[PartName]) -> MetricLog:
        """What was logged in metrics parts that were checked, in the order in which a later one counts."""
        if list(names[: len(self.logged)]) != self.logged:
            self.logged, self.log = [], MetricLog()
        fresh = list(names[len(self.logged) :])
        if fresh:
            later = MetricLog.of(record for name in fresh for record in read_metrics(open_metrics(path / str(name))))
            self.logged, self.log, self.changed = list(names), self.log.joined(later), True
        return self.log

    def keep_only(self, names: Collection[PartName]) -> None:
        """Drop what is known of parts that are gone."""
        there = set(names)
        before = len(self.entries) + len(self.metrics)
        if not self.metrics.keys() <= there:
            self.logged, self.log = [], MetricLog()
        self.entries = {name: entry for name, entry in self.entries.items() if name in there}
        self.metrics = {name: seen for name, seen in self.metrics.items() if name in there}
        self.changed |= before != len(self.entries) + len(self.metrics)


def signature_of(folder: Path, names: Sequence[str]) -> _Signature:
    """Size, time of the last write and of the last change of files; -1 for those that are not there."""
    found: list[int] = []
    base = os.fspath(folder)
    for name in names:
        try:
            told = os.stat(f"{base}/{name}")  # noqa: PTH116 - thousands of them
        except OSError:
            found += (-1, -1, -1)
        else:
            found += (told.st_size, told.st_mtime_ns, told.st_ctime_ns)
    return tuple(found)


def _is_fresh(signature: _Signature) -> bool:
    return time.time_ns() - max(signature, default=0) < FRESH_SECONDS * 1e9
