"""The scalars of TensorBoard's events, by tag.

The events of a tag differ in their time, their step and the bytes of the number: the first is read field by field, and all that
have its other bytes are read with it, as rows of a table of bytes.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.importers.columns import MOST_NAMES, Points, TooManyNamesError, in_order
from rl_doctor.collectors.importers.protobuf import FIXED32, member, placed, signed
from rl_doctor.collectors.importers.tfrecords import find_records, windows
from rl_doctor.collectors.importers.tracker_config import info_of
from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo
from rl_doctor.store.metric_log import split_of

_WALL_TIME, _STEP = 0x09, 0x10
_TIME_BYTES: Final = 9
_STEP_BYTES: Final = 5
"""Bytes of a step that are read in a table; one that is longer is read field by field."""
_SHORTEST: Final = 20
"""Bytes that an event with a scalar has at least."""
_PLAIN: Final = "<f4"
_TENSOR_TYPES: Final = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""Types of tensors that scalars have, and how their bytes are read."""
_TENSOR_FIELDS: Final = {5: "<f4", 6: "<f8"}
_ARGUMENTS: Final = "args/text_summary"
"""Tag under which Hugging Face's Trainer writes its arguments as JSON."""
_BATCH: Final = 1 << 22
"""Bytes of events that are read at a time."""
_FORMS: Final = 64
"""Forms of events of one length, beyond which further ones are read field by field."""

Indices = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@frozen
class _Scalar:
    """A scalar of an event: its name, the number, where its bytes start in the event, and how they are read."""

    name: str
    value: float
    start: int
    type: str


@frozen(eq=False)
class _Form:
    """What events have in common that differ in their scalars alone; places count from behind the step.

    Attributes:
        scalars: those of the first such event, in order.
        body: its bytes.
        free: bytes that are of a scalar.
    """

    scalars: tuple[_Scalar, ...]
    body: Bytes
    free: NDArray[np.bool_]

    @classmethod
    def of(cls, event: bytes, head: int, scalars: Sequence[_Scalar]) -> _Form:
        """The form of an event; ``head`` bytes stand before its summary."""
        body = np.frombuffer(event, np.uint8)[head:]
        free = np.zeros(len(body), np.bool_)
        moved = tuple(_Scalar(one.name, one.value, one.start - head, one.type) for one in scalars)
        for one in moved:
            free[one.start : one.start + np.dtype(one.type).itemsize] = True
        return cls(moved, body, free)

    def matches(self, bodies: Bytes) -> NDArray[np.bool_]:
        """Which of ``bodies`` ``[n, length]`` are of this form."""
        return np.asarray(((bodies == self.body) | self.free).all(axis=1))

    def values(self, bodies: Bytes) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """The numbers of bodies of this form, by scalar."""
        for one in self.scalars:
            raw = np.ascontiguousarray(bodies[:, one.start : one.start + np.dtype(one.type).itemsize])
            yield one.name, raw.view(one.type).reshape(-1).astype(np.float64)


@dataclass(slots=True, eq=False)
class Events:
    """Scalars of the events of a run, in the order of logging.

    Attributes:
        prefix: what is put before names that do not tell the split.
        media: names of what is no scalar.
        info: what the trainer wrote of itself.
    """

    prefix: str
    media: set[str] = field(default_factory=set)
    info: RunInfo = field(default_factory=RunInfo)
    _rows: int = 0
    _steps: list[Indices] = field(default_factory=list)
    _parts: dict[str, list[Points]] = field(default_factory=dict)
    _plugins: dict[str, bytes] = field(default_factory=dict)
    _forms: defaultdict[int, list[_Form]] = field(default_factory=lambda: defaultdict(list))

    def steps(self) -> Indices:
        """The step of each scalar."""
        return np.concatenate([np.empty(0, np.int64), *self._steps])

    def points(self) -> dict[str, Points]:
        """For each name the places in ``steps`` of its scalars, and the scalars."""
        return {name: in_order(parts) for name, parts in self._parts.items()}

    def add(self, file: Path, *, named: bool) -> list[str]:
        """Take the events of a file; what was wrong with it."""
        where = f"{file.name}: " if named else ""
        try:
            if not file.stat().st_size:
                return [f"{where}empty"]
            with file.open("rb") as opened:
                data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            found = find_records(data)
            unreadable = sum(
                self._batch(data, found.starts[first:last], found.stops[first:last])
                for first, last in _batches(found.starts, found.stops)
            )
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

    def _batch(self, data: mmap.mmap, starts: Indices, stops: Indices) -> int:
        """Take events, and return how many cannot be read."""
        view = np.frombuffer(data, np.uint8)
        steps, at = _heads(view, starts, stops)
        lengths = np.where(at > 0, stops - at, 0)
        alike = {length: _Alike(view, at, np.flatnonzero(lengths == length)) for length in np.unique(lengths[at > 0]).tolist()}
        taken = _Taken(len(starts))
        for length, group in alike.items():
            for form in self._forms.get(length, ()):
                taken.take(form, *group.split(form))
        unreadable = index = 0
        while (index := index + int(np.argmin(taken.done[index:]))) < len(starts):
            event = data[starts[index] : stops[index]]
            try:
                steps[index], scalars, plain = self._event(event)
            except (ValueError, IndexError, struct.error):
                unreadable, scalars, plain = unreadable + 1, [], False
            taken.one(index, scalars)
            length = int(lengths[index])
            if plain and length and len(self._forms[length]) < _FORMS:
                form = _Form.of(event, int(at[index] - starts[index]), scalars)
                self._forms[length].append(form)
                alike[length].drop(index)
                taken.take(form, *alike[length].split(form))
        self._store(taken, steps)
        return unreadable

    def _store(self, taken: _Taken, steps: Indices) -> None:
        first = self._rows + np.cumsum(taken.counts) - taken.counts
        for name, index, place, values in taken.points():
            self._parts[name].append((first[index] + place, values))
        self._steps.append(np.repeat(steps, taken.counts))
        self._rows += int(taken.counts.sum())

    def _event(self, event: bytes) -> tuple[int, list[_Scalar], bool]:
        """The step of an event, its scalars, and whether it has but these behind its step."""
        step, values, plain = 0, list[tuple[bytes, int]](), True
        for number, _, body, start in placed(event):
            if number == 2 and isinstance(body, int):
                step, plain = body, plain and start == _TIME_BYTES + 1
            elif number == 5 and isinstance(body, bytes):
                values += [(value, start + at) for own, _, value, at in placed(body) if own == 1 and isinstance(value, bytes)]
            elif number != 1:
                plain = False
        found = [self._value(value, at) for value, at in values]
        scalars = [scalar for scalar in found if scalar is not None]
        return signed(step), scalars, plain and bool(scalars) and len(scalars) == len(found)

    def _value(self, body: bytes, at: int) -> _Scalar | None:
        """The scalar that a value of a summary is, which starts at a byte of its event."""
        tag, scalar, tensor = "", None, None
        for number, kind, value, start in placed(body):
            if number == 1 and isinstance(value, bytes):
                tag = value.decode("utf-8", errors="replace")
            elif number == 2 and kind == FIXED32 and isinstance(value, bytes):
                scalar = (value, at + start, _PLAIN)
            elif number == 8 and isinstance(value, bytes):
                tensor = (value, at + start)
            elif number == 9 and isinstance(value, bytes):
                self._plugins[tag] = member(member(value, 1), 1)
        if tensor is not None and self._plugins.get(tag, b"scalars") in (b"scalars", b""):
            scalar = _of_tensor(*tensor)
        if scalar is None:
            self._other(tag, None if tensor is None else tensor[0])
            return None
        name = tag if not self.prefix or split_of(tag) == "eval" else f"{self.prefix}{tag}"
        self._parts.setdefault(name, [])
        if len(self._parts) > MOST_NAMES:
            raise TooManyNamesError(f"more than {MOST_NAMES:,} different tags: no log of metrics; log fewer")
        raw, start, form = scalar
        return _Scalar(name, float(np.frombuffer(raw, form)[0]), start, form)

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


class _Alike:
    """Events whose summaries have the same length: of those that are left, their indices, and their bytes as a table."""

    def __init__(self, view: Bytes, at: Indices, index: Indices) -> None:
        self._view = view
        self._at = at
        self._index = index
        self._bodies: Bytes | None = None

    def drop(self, index: int) -> None:
        """Leave out one event, and what stands before it."""
        first = int(np.searchsorted(self._index, index, side="right"))
        self._index = self._index[first:]
        self._bodies = None if self._bodies is None else self._bodies[first:]

    def split(self, form: _Form) -> tuple[Indices, Bytes]:
        """Take out those that have a form."""
        if self._bodies is None:
            length = len(form.body)
            self._bodies = windows(self._view, length, self._at[self._index]).view(np.uint8).reshape(-1, length)
        own = form.matches(self._bodies)
        index, bodies = self._index[own], self._bodies[own]
        self._index, self._bodies = self._index[~own], self._bodies[~own]
        return index, bodies


class _Taken:
    """What was taken of a batch of events.

    Attributes:
        done: events that were looked at, ``[n]``; behind them stands one that never is.
        counts: scalars in each, ``[n]``.
    """

    def __init__(self, events: int) -> None:
        self.done = np.zeros(events + 1, np.bool_)
        self.counts = np.zeros(events, np.int64)
        self._tables: list[tuple[str, Indices, int, NDArray[np.float64]]] = []
        self._single: dict[tuple[str, int], tuple[list[int], list[float]]] = {}

    def take(self, form: _Form, index: Indices, bodies: Bytes) -> None:
        """Take events of a form."""
        self.done[index] = True
        self.counts[index] = len(form.scalars)
        self._tables += [(name, index, place, values) for place, (name, values) in enumerate(form.values(bodies))]

    def one(self, index: int, scalars: Sequence[_Scalar]) -> None:
        """Take one event."""
        self.done[index] = True
        self.counts[index] = len(scalars)
        for place, one in enumerate(scalars):
            held = self._single.setdefault((one.name, place), ([], []))
            held[0].append(index)
            held[1].append(one.value)

    def points(self) -> Iterator[tuple[str, Indices, int, NDArray[np.float64]]]:
        """Names, the events of their scalars, the place among the scalars of an event, and the scalars."""
        for (name, place), (index, values) in self._single.items():
            yield name, np.array(index, np.int64), place, np.array(values, np.float64)
        yield from self._tables


def _batches(starts: Indices, stops: Indices) -> Iterator[tuple[int, int]]:
    """First and last event of batches, which hold one event at least."""
    first = 0
    while first < len(starts):
        last = max(int(np.searchsorted(stops, starts[first] + _BATCH, side="right")), first + 1)
        yield first, last
        first = last


def _heads(view: Bytes, starts: Indices, stops: Indices) -> tuple[Indices, Indices]:
    """The step of each event, and the byte behind it: 0 where the event begins otherwise than with its time and its step."""
    steps, at = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    index = np.flatnonzero((stops - starts > _SHORTEST) & (view[starts] == _WALL_TIME))
    own = starts[index] + _TIME_BYTES
    told = view[own] == _STEP
    at[index[~told]] = own[~told]
    index, own = index[told], own[told] + 1
    for shift in range(0, 7 * _STEP_BYTES, 7):
        byte = view[own].astype(np.int64)
        steps[index] |= (byte & 0x7F) << shift
        last = byte < 0x80
        at[index[last]] = own[last] + 1
        index, own = index[~last], own[~last] + 1
    return steps, at


def _of_tensor(tensor: bytes, at: int) -> tuple[bytes, int, str] | None:
    """The bytes of a tensor with one element, where they start, and how they are read; None where it has more."""
    kind, raw, form, found = 0, b"", "", 0
    for number, _, value, start in placed(tensor):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 4 and isinstance(value, bytes):
            raw, form, found = value, _TENSOR_TYPES.get(kind, ""), start
        elif number in _TENSOR_FIELDS and isinstance(value, bytes):
            raw, form, found = value, _TENSOR_FIELDS[number], start
    if not form or len(raw) != np.dtype(form).itemsize:
        return None
    return raw, at + found, form
