"""What one call hands over, copied in the trainer's thread: as little as possible, and without waiting for anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.device import DeviceCopier, is_on_cuda
from rl_doctor.collectors.memory import Memory
from rl_doctor.collectors.ragged import padded
from rl_doctor.collectors.snapshot import Bits, is_plain, local, member, size_of, snapshot, to_array, view_of
from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.store.aliases import ATTENTION_MASK
from rl_doctor.store.alignment import Alignment, align
from rl_doctor.store.normalise import PER_SEQUENCE, WIDE, assemble, normalise
from rl_doctor.store.rows import Rows

_LENGTHS: Final = ("prompt_length", "response_length")
_SHORT_ROW: Final = 128
_SPARSE: Final = 4
"""Rows that keep fewer tokens than that on average are copied with their padding, if that is not so many times as much."""


@frozen(eq=False)
class Copies:
    """Copies of the columns of one call.

    Attributes:
        columns: canonical name -> snapshot, padded where it has one value per token.
        tokens: canonical name -> snapshot of what is kept of a token column, where rows were cut already.
        alignment: by which they were cut.
        events: what has to be waited for before the snapshots are read.
        room: what the tokens lie in.
        memory: where that came from.
    """

    columns: Mapping[str, Any]
    tokens: dict[str, Any]
    alignment: Alignment | None
    events: tuple[Any, ...] = ()
    room: BytesIO | None = None
    memory: Memory | None = None

    def rows(self, step: int, *, full_width: bool) -> Rows:
        """The rows that the columns are, which share no memory with the copies; waits for the copies, which can be used once."""
        for event in self.events:
            event.synchronize()
        rows = self._rows(step, full_width=full_width)
        self.tokens.clear()
        columns = {name: array if array.flags.owndata else array.copy() for name, array in rows.columns.items()}
        if self.memory is not None and self.room is not None:
            self.memory.give(self.room)
        return Rows(columns, rows.splits)

    def _rows(self, step: int, *, full_width: bool) -> Rows:
        given = padded(self.columns, full_width=full_width) if self.alignment is None else self.columns
        columns: dict[str, Any] = {"step": np.int64(step), **{name: to_array(value) for name, value in given.items()}}
        if self.alignment is None:
            return normalise(columns, full_width=full_width)
        return assemble(self.alignment, {name: to_array(value) for name, value in self.tokens.items()}, columns)


class Plan:
    """What is to be copied of the columns of one call, and how much that is.

    Rows whose padding is known from masks in host memory are cut while they are copied. What lies on a device is copied whole:
    to cut it, its masks would have to be waited for.

    Args:
        columns: canonical name -> tensor, array, list or scalar.
        full_width: whether the token columns cover the prompt too.

    Raises:
        InputError: shapes do not fit together.
    """

    def __init__(self, columns: Mapping[str, Any], *, full_width: bool) -> None:
        for name, value in columns.items():
            if getattr(value, "is_nested", False):
                raise InputError(f"log_batch: {name} is a nested tensor; give it padded, as [B, T]")
        held = {name: local(value) for name, value in columns.items()}
        self.left_out = tuple(name for name, value in held.items() if value is None)
        self._columns = {name: value for name, value in held.items() if value is not None}
        self._wide: dict[str, NDArray[Any] | Bits] = {}
        self._alignment = self._cut(full_width=full_width)

    @property
    def nbytes(self) -> int:
        """Bytes that the copies take."""
        tokens = 0 if self._alignment is None else self._alignment.n_tokens
        cut = {id(self._columns[name]): _numbers(view).itemsize for name, view in self._wide.items()}
        others = {id(value): value for name, value in self._columns.items() if name not in self._wide}
        return tokens * sum(cut.values()) + sum(map(size_of, others.values()))

    def copy(self, device: DeviceCopier, memory: Memory) -> Copies:
        """Copy.

        Args:
            device: copies what lies on a device.
            memory: what to copy into.

        Raises:
            NoRoomError: there is no memory for copies of what lies on a device.
        """
        tokens: dict[str, Any] = {}
        room = None
        if self._alignment is not None:
            names = {name: id(self._columns[name]) for name in self._wide}
            views = {key: self._wide[name] for name, key in names.items()}
            room = memory.take()
            taken = self._alignment.take({key: _numbers(view) for key, view in views.items()}, room)
            for name, key in names.items():
                view = self._wide[name]
                tokens[name] = Bits(taken[key], view.dtype) if isinstance(view, Bits) else taken[key]
        others = {name: value for name, value in self._columns.items() if name not in self._wide}
        columns, events = copy_values(others, device)
        return Copies(columns, tokens, self._alignment, events, room, memory)

    def _cut(self, *, full_width: bool) -> Alignment | None:
        """Find out what is kept of the rows, from host memory alone.

        None to copy the columns as they are, also where they do not fit together: then the writer finds out, and says so.
        """
        views = {name: view_of(value) for name, value in self._columns.items() if name in WIDE}
        wide = {name: view for name, view in views.items() if not (name in PER_SEQUENCE and _is_single(view))}
        numbers = {name: _numbers(view) for name, view in wide.items() if view is not None}
        batch = next((len(array) for array in numbers.values()), 0)
        fit = all(array.dtype.kind in "biuf" and array.ndim == 2 and len(array) == batch for array in numbers.values())
        lengths = {name: _lengths(self._columns[name], batch) for name in _LENGTHS if name in self._columns}
        if not numbers or len(numbers) < len(wide) or not fit or any(array is None for array in lengths.values()):
            return None
        prompt, response = (lengths.get(name) for name in _LENGTHS)
        bits = any(isinstance(view, Bits) for view in wide.values())
        if bits and _values_tell(numbers, prompt, response):
            return None
        alignment = align(numbers, prompt, response, full_width=full_width, where="log_batch")
        if alignment.n_tokens < batch * _SHORT_ROW and batch * alignment.width <= _SPARSE * alignment.n_tokens:
            return None
        self._wide = {name: view for name, view in wide.items() if view is not None}
        return alignment


def _values_tell(wide: Mapping[str, NDArray[Any]], prompt: NDArray[Any] | None, response: NDArray[Any] | None) -> bool:
    """Whether it may take the values of the columns, not only masks, to tell where the prompt ends."""
    one_width = len({array.shape[1] for array in wide.values()}) == 1
    return one_width and ATTENTION_MASK in wide and prompt is not None and response is None


def copy_values(values: Mapping[str, Any], device: DeviceCopier) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Snapshots of values, and the events after which they may be read."""
    on_device = {id(value): value for value in _members(values) if is_on_cuda(value)}
    if not on_device:
        return {name: snapshot(value) for name, value in values.items()}, ()
    hosts, events = device.copy(list(on_device.values()))
    copied = dict(zip(on_device, hosts, strict=True))

    def taken(value: Any) -> Any:
        if id(value) in copied:
            return copied[id(value)]
        if isinstance(value, (list, tuple)):
            return [copied[id(item)] if id(item) in copied else member(item) for item in value]
        return snapshot(value)

    return {name: taken(value) for name, value in values.items()}, events


def _members(values: Mapping[str, Any]) -> Iterator[Any]:
    """The values, and those that lists hold."""
    for value in values.values():
        if not isinstance(value, (list, tuple)):
            yield value
        elif not is_plain(value):
            yield from value


def _is_single(view: NDArray[Any] | Bits | None) -> bool:
    """Whether it has one value per sequence."""
    shape = () if view is None else _numbers(view).shape
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def _lengths(value: Any, batch: int) -> NDArray[Any] | None:
    """Lengths as an array ``[batch]``; None where they are not as they should be."""
    view = np.asarray(value) if isinstance(value, (list, tuple)) and is_plain(value) else view_of(value)
    if not isinstance(view, np.ndarray) or view.dtype.kind not in "iu" or view.shape != (batch,) or view.min(initial=0) < 0:
        return None
    return view


def _numbers(view: NDArray[Any] | Bits) -> NDArray[Any]:
    return view.values if isinstance(view, Bits) else view
