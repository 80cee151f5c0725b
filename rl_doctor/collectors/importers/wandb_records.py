"""The transaction log of wandb, ``run-ID.wandb``: seven bytes, then protobuf records in LevelDB's log blocks of 32 KiB.

It is read here, not by ``wandb leet inspect``: that needs wandb and six times the CPU time, and a run is often copied to a
machine without it. Only the frames and the few fields that hold numbers, configuration and step axes are known here; everything
else in a record is passed over.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rl_doctor.collectors.importers.columns import Columns
from rl_doctor.collectors.importers.protobuf import fields, member, signed, zigzag
from rl_doctor.collectors.importers.unfolding import unfold_items

MAGIC: Final = b":W&B"
_HEADER: Final = 7
_BLOCK: Final = 1 << 15
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_FRAME: Final = struct.Struct("<IHB")
_HISTORY, _CONFIG, _METRIC, _RUN, _EXIT = 2, 5, 12, 17, 18
_OURS: Final = "rl_doctor/"
"""What rl-doctor writes into the run of a training begins with this; its axis is no step of the rows that it stands in."""
_KEY, _NESTED, _BOOLEAN, _INTEGER, _NUMBER, _TEXT, _JSON, _VALUE_JSON = 1, 2, 4, 5, 6, 7, 8, 16
_ITEM_KEY, _VALUE_KEY = 0x0A, b"\x82\x01"
_LONG: Final = 0x80
"""Lengths from here on take more than one byte."""
_DOUBLE: Final = 8
"""Bytes of a number."""
_TAIL: Final = 8
"""Blocks at the end of a log in which its last row is looked for."""


@dataclass(slots=True)
class Framing:
    """How the frames of a log were read.

    Attributes:
        damaged: where a block was given up, in bytes.
        torn: whether the log ends within a record.
    """

    damaged: list[int] = field(default_factory=list)
    torn: bool = False


def frames(data: bytes, framing: Framing, start: int = _HEADER) -> Iterator[bytes]:
    """The whole records of a log; after damage the rest of its block is left out.

    Args:
        data: the file.
        framing: told what was damaged.
        start: where to begin: after the file's header, or at a block.
    """
    at, end = start, len(data)
    parts: list[bytes] = []
    while at < end:
        left = _BLOCK - at % _BLOCK
        if left < _FRAME.size:
            at += left
            continue
        if at + _FRAME.size > end:
            framing.torn = True
            return
        checksum, length, kind = _FRAME.unpack_from(data, at)
        stop = at + _FRAME.size + length
        if length <= left - _FRAME.size and stop > end:
            framing.torn = True
            return
        if length > left - _FRAME.size or zlib.crc32(data[at + 6 : stop]) != checksum or not _FULL <= kind <= _LAST:
            framing.damaged.append(at)
            parts = []
            at += left
            continue
        if kind == _FULL:
            yield data[at + _FRAME.size : stop]
        elif kind == _FIRST:
            parts = [data[at + _FRAME.size : stop]]
        elif parts:
            parts.append(data[at + _FRAME.size : stop])
            if kind == _LAST:
                yield b"".join(parts)
                parts = []
        at = stop
    framing.torn = framing.torn or bool(parts)


class Heads(dict[bytes, tuple[tuple[str, ...], str | None, int]]):
    """What the bytes of an item before its value say: path of names, the name where it is one, bytes of the value."""

    def __missing__(self, head: bytes) -> tuple[tuple[str, ...], str | None, int]:
        size, inner = head[1], head[2:]
        keys = list(fields(inner))
        if head[0] != _ITEM_KEY or size >= _LONG or not keys or any(number not in (_KEY, _NESTED) for number, _, _ in keys):
            raise ValueError("not the head of a short item")
        path = tuple(_text(key) for _, _, key in keys if isinstance(key, bytes))
        self[head] = found = (path, path[0] if len(path) == 1 else None, size - len(inner) - len(_VALUE_KEY) - 1)
        return found


@dataclass(slots=True, eq=False)
class Recorded:
    """What the log of a run holds.

    Attributes:
        columns: its history, one row per ``wandb.log``.
        config: the run's configuration, as it was at the end.
        axes: names of the step axes that ``define_metric`` gave.
        media: names of histograms, tables, images and the like, which are left out.
        run_id: id of the run.
        name: display name of the run.
        project: project of the run.
        exit_code: None where the log does not tell the end of the run.
        unreadable: records that were whole and yet no records.
    """

    columns: Columns = field(default_factory=Columns)
    config: dict[str, Any] = field(default_factory=dict)
    axes: set[str] = field(default_factory=set)
    media: set[str] = field(default_factory=set)
    run_id: str | None = None
    name: str | None = None
    project: str | None = None
    exit_code: int | None = None
    unreadable: int = 0
    _heads: Heads = field(default_factory=Heads)
    _orders: dict[frozenset[str], tuple[str, ...]] = field(default_factory=dict)

    def add(self, record: bytes) -> None:
        """Take one record of the log."""
        try:
            for number, _, value in fields(record):
                if isinstance(value, bytes):
                    self._take(number, value)
        except (ValueError, IndexError, RecursionError):
            self.unreadable += 1

    def _take(self, number: int, body: bytes) -> None:
        if number == _HISTORY:
            values, media = history_row(body, self._heads)
            self.media |= media
            order = self._orders.setdefault(frozenset(values), tuple(values))  # wandb shuffles the names of a row
            self.columns.add({name: values[name] for name in order})
        elif number == _CONFIG:
            self._configure(body)
        elif number == _METRIC:
            axis = _text(member(body, 4))
            if axis and not axis.startswith(_OURS):
                self.axes.add(axis)
        elif number == _RUN:
            self.run_id = _text(member(body, 1)) or self.run_id
            self.project = _text(member(body, 3)) or self.project
            self.name = _text(member(body, 8)) or self.name
            self._configure(member(body, 4))
        elif number == _EXIT:
            self.exit_code = next((signed(value) for own, _, value in fields(body) if own == 1 and isinstance(value, int)), 0)

    def _configure(self, body: bytes) -> None:
        for number, _, item in fields(body):
            if not isinstance(item, bytes):
                continue
            path, value = _item(item)
            inner = self.config
            for key in path[:-1]:
                below = inner.get(key)
                inner = below if isinstance(below, dict) else inner.setdefault(key, {}) if below is None else {}
            if path and path[0] != "_wandb":
                if number == 1:
                    inner[path[-1]] = value
                else:
                    inner.pop(path[-1], None)


def history_row(body: bytes, heads: Heads) -> tuple[dict[str, Any], set[str]]:
    """Values of a history record by name, inner names after a dot, and the names of media.

    Args:
        body: the record.
        heads: what was seen before the values of other rows.

    Raises:
        ValueError: it is none.
    """
    try:
        values, others = _short_items(body, heads)
    except (ValueError, IndexError):
        values, others = {}, [_item(item) for number, _, item in fields(body) if number == 1 and isinstance(item, bytes)]
    if not others:
        return values, set()
    unfolded, media = unfold_items(others)
    return values | unfolded, media


def _short_items(body: bytes, heads: Heads) -> tuple[dict[str, Any], list[tuple[Sequence[str], Any]]]:
    """A record of items that are short and have their value as JSON, as nearly all are: split at the values' key.

    Raises:
        ValueError, IndexError: it is another, or the key's bytes are also elsewhere: lengths do not fit.
    """
    values: dict[str, Any] = {}
    others: list[tuple[Sequence[str], Any]] = []
    head, *chunks = body.split(_VALUE_KEY)
    for chunk in chunks:
        path, name, length = heads[head]
        text, head = chunk[1 : length + 1], chunk[length + 1 :]
        if chunk[0] != length or len(text) != length:
            raise ValueError("another length")
        if name is not None:
            try:
                values[name] = float(text)
                continue
            except ValueError:
                pass  # a text or an object
        others.append((path, json.loads(text)))
    if any(number == 1 for number, _, _ in fields(head)):
        raise ValueError("an item without a value in JSON")
    return values, others


def last_values(path: Path) -> dict[str, Any]:
    """The last value of each name in the last rows of a log, without reading all of it; empty where it has none."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        start = max(0, file.tell() // _BLOCK - _TAIL) * _BLOCK
        file.seek(start)
        data = file.read()
    last: dict[str, Any] = {}
    for record in frames(data, Framing(), 0 if start else _HEADER):
        try:
            if body := member(record, _HISTORY):
                last |= history_row(body, Heads())[0]
        except (ValueError, IndexError, RecursionError):
            continue
    return last


def _item(data: bytes) -> tuple[Sequence[str], Any]:
    """The path of names and the value of an item."""
    path: list[str] = []
    value: Any = None
    for number, _, content in fields(data):
        if number in (_KEY, _NESTED) and isinstance(content, bytes):
            path.append(_text(content))
        elif number in (_JSON, _VALUE_JSON) and isinstance(content, bytes):
            value = json.loads(content)
        elif number == _TEXT and isinstance(content, bytes):
            value = _text(content)
        elif number == _NUMBER and isinstance(content, bytes):
            if len(content) != _DOUBLE:
                raise ValueError(f"a number of {len(content)} bytes")
            (value,) = struct.unpack("<d", content)
        elif number == _INTEGER and isinstance(content, int):
            value = zigzag(content)
        elif number == _BOOLEAN:
            value = bool(content)
    return path, value


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
