"""What the footers of a run folder's parts said, as a sheet: a run that is opened again reads only those of new parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.kept.cupboard import Cupboard
from rl_doctor.analyzer.kept.sheet import Sheet
from rl_doctor.schema import SCHEMA_VERSION
from rl_doctor.store.layout import PartName
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.part import Part
from rl_doctor.store.part_index import Entry, PartIndex, Seen
from rl_doctor.store.presence import Presence

_STAMP: Final = 16


class Footers:
    """The index of a folder's parts, kept in a cupboard.

    Args:
        cupboard: where it lies.
        name: of its sheet.
        folder: of the parts.
        version: that of rl-doctor: what footers say is told in terms of the columns that it knows.
    """

    def __init__(self, cupboard: Cupboard, name: str, folder: Path, version: str) -> None:
        self._writer = f"{version}/{SCHEMA_VERSION}"
        self._cupboard = cupboard
        self._name = name
        self._folder = folder
        self._index: PartIndex | None = None

    @property
    def index(self) -> PartIndex:
        """The index, as it was kept, or an empty one."""
        if self._index is None:
            self._index = (
                self._cupboard.load(self._name, lambda sheet: restored(sheet, self._folder, self._writer)) or PartIndex()
            )
        return self._index

    def save(self) -> None:
        """Write it, where there is anything new."""
        if self._index is not None and self._index.changed and (self._index.entries or self._index.metrics):
            self._index.changed = False
            self._cupboard.save(self._name, drawn(self._index, self._writer))


def drawn(index: PartIndex, writer: str) -> Sheet:
    """The sheet of an index, drawn by a version."""
    sheet = Sheet({"writer": writer})
    shapes: dict[Any, int] = {}
    entries = list(index.entries.values())
    parts = [entry.part for entry in entries]
    of_shape = []
    for entry in entries:
        part = entry.part
        key = (id(entry.presence), part.tables, part.unknown, tuple(part.columns.items()))
        of_shape.append(shapes.setdefault(key, len(shapes)))
    presences = {id(entry.presence): entry.presence for entry in entries}
    sheet.document["shapes"] = [
        {"tables": tables, "unknown": unknown, "columns": columns, "presence": [sorted(one) for one in presences[known].key()]}
        for known, tables, unknown, columns in shapes
    ]
    sheet.arrays["names"] = _integers((part.name.session, part.name.rank, part.name.number) for part in parts)
    sheet.arrays["about"] = _integers(
        (shape, part.attempt, part.tokens_version, len(part.rows), len(part.completes))
        for shape, part in zip(of_shape, parts, strict=True)
    )
    for name in ("rows", "tokens", "steps", "completes"):
        sheet.arrays[name] = _integers(getattr(part, name) for part in parts)
    _draw_seen(sheet, "seen", [entry.seen for entry in entries])
    metrics = list(index.metrics)
    sheet.arrays["metrics"] = _integers((name.session, name.rank, name.number) for name in metrics)
    _draw_seen(sheet, "metrics_seen", list(index.metrics.values()))
    at = {name: number for number, name in enumerate(metrics)}
    sheet.arrays["logged"] = np.array([at[name] for name in index.logged], np.int64)
    sheet.document["log"] = [list(key) for key in index.log.points]
    known: dict[bytes, str] = {}
    of_steps = []
    for number, (steps, values) in enumerate(index.log.points.values()):
        ref = known.setdefault(steps.tobytes(), f"log/{number}/steps")
        sheet.arrays[ref] = steps
        sheet.arrays[f"log/{number}"] = values
        of_steps.append(ref)
    sheet.document["log_steps"] = of_steps
    return sheet


def _integers(rows: Iterator[Sequence[int]] | Any) -> NDArray[np.int64]:
    return np.fromiter(chain.from_iterable(rows), np.int64)


def _draw_seen(sheet: Sheet, name: str, seen: Sequence[Seen]) -> None:
    sheet.arrays[f"{name}/signature"] = _integers(one.signature for one in seen)
    sheet.arrays[f"{name}/ends"] = np.cumsum(np.array([len(one.signature) for one in seen], np.int64))
    sheet.arrays[f"{name}/fresh"] = np.array([one.fresh for one in seen], np.bool_)
    sheet.arrays[f"{name}/stamped"] = np.array([one.stamp is not None for one in seen], np.bool_)
    sheet.arrays[f"{name}/stamps"] = np.frombuffer(b"".join(one.stamp or bytes(_STAMP) for one in seen), np.uint8)


def _restored_seen(sheet: Sheet, name: str) -> list[Seen]:
    flat, ends, fresh, stamped = (sheet.arrays[f"{name}/{what}"].tolist() for what in ("signature", "ends", "fresh", "stamped"))
    stamps = sheet.arrays[f"{name}/stamps"].tobytes()
    return [
        Seen(tuple(flat[start:end]), fresh[at], stamps[at * _STAMP : (at + 1) * _STAMP] if stamped[at] else None)
        for at, (start, end) in enumerate(pairwise([0, *ends]))
    ]


def restored(sheet: Sheet, folder: Path, writer: str) -> PartIndex | None:
    """The index of a sheet, for the same folder; None where another version drew it."""
    if sheet.document["writer"] != writer:
        return None
    index = PartIndex()
    shapes = []
    for told in sheet.document["shapes"]:
        presence = Presence()
        for of, names in zip((presence.named, presence.present, presence.numeric), told["presence"], strict=True):
            of.update(names)
        shapes.append((dict(told["columns"]), tuple(told["unknown"]), tuple(told["tables"]), index.shared(presence)))
    take = {name: _taker(sheet.arrays[name].tolist()) for name in ("names", "about", "rows", "tokens", "steps", "completes")}
    for seen in _restored_seen(sheet, "seen"):
        session, rank, number = take["names"](3)
        name = PartName(session, rank, number, "sequences")
        shape, attempt, version, groups, completed = take["about"](5)
        columns, unknown, tables, presence = shapes[shape]
        rows, tokens, steps = (take[what](groups) for what in ("rows", "tokens", "steps"))
        part = Part(folder, name, rows, tokens, steps, take["completes"](completed), attempt, columns, unknown, version, tables)
        index.entries[name] = Entry(part, presence, seen)
    take_name = _taker(sheet.arrays["metrics"].tolist())
    for seen in _restored_seen(sheet, "metrics_seen"):
        session, rank, number = take_name(3)
        index.metrics[PartName(session, rank, number, "metrics")] = seen
    metrics = list(index.metrics)
    index.logged = [metrics[at] for at in sheet.arrays["logged"].tolist()]
    index.log = MetricLog(
        {
            (key[0], key[1]): (sheet.arrays[ref], sheet.arrays[f"log/{at}"])
            for at, (key, ref) in enumerate(zip(sheet.document["log"], sheet.document["log_steps"], strict=True))
        }
    )
    return index


def _taker(flat: list[int]) -> Callable[[int], tuple[int, ...]]:
    """Takes the next numbers of a list."""
    at = 0

    def take(count: int) -> tuple[int, ...]:
        nonlocal at
        at += count
        return tuple(flat[at - count : at])

    return take
