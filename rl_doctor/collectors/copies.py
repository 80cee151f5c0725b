"""What one call hands over, copied in the trainer's thread: as little as possible, and without waiting for anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.collectors.device import DeviceCopier, is_on_cuda
from rl_doctor.collectors.memory import Memory
from rl_doctor.collectors.snapshot import Bits, is_plain, is_tensor, local, member, size_of, snapshot, to_array, view_of
from rl_doctor.store.aliases import ATTENTION_MASK
from rl_doctor.store.alignment import Alignment
from rl_doctor.store.normalise import Padded, assemble, normalise
from rl_doctor.store.rows import Rows, is_token

_SHORT_ROW: Final = 128
_SPARSE: Final = 4
"""Rows that keep fewer tokens than that on average are copied with their padding, if that is not so many times as much."""


@dataclass(frozen=True, slots=True, eq=False)
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
        columns: dict[str, Any] = {"step": np.int64(step), **{name: to_array(value) for name, value in self.columns.items()}}
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
        held = {name: local(value) for name, value in columns.items()}
        self.left_out = tuple(name for name, value in held.items() if value is None)
        self._columns = {name: value for name, value in held.items() if value is not None}
        self._wide: dict[str, NDArray[Any] | Bits] = {}
        self._alignment = self._cut(full_width=full_width)

    @property
    def nbytes(self) -> int:
        """Bytes that the copies take."""
        different = {id(value): (name, value) for name, value in self._columns.items()}
        return sum(self._size(name, value) for name, value in different.values())

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

    def _size(self, name: str, value: Any) -> int:
        view = self._wide.get(name)
        if view is None or self._alignment is None:
            return size_of(value)
        return self._alignment.n_tokens * _numbers(view).itemsize

    def _cut(self, *, full_width: bool) -> Alignment | None:
        """Find out what is kept of the rows, from host memory alone; None to copy the columns as they are."""
        views = {name: view_of(value) for name, value in self._columns.items() if is_token(name) or name == ATTENTION_MASK}
        lengths: dict[str, Any] = {
            name: self._columns[name] for name in ("prompt_length", "response_length") if name in self._columns
        }
        if any(not _is_numeric(view) for view in views.values()) or any(
            is_tensor(v) and view_of(v) is None for v in lengths.values()
        ):
            return None
        numbers = {name: _numbers(view) for name, view in views.items() if view is not None}
        if any(isinstance(view, Bits) for view in views.values()) and _values_tell(numbers, lengths):
            return None
        padded = Padded.of({**numbers, **{name: to_array(snapshot(value)) for name, value in lengths.items()}}, "log_batch")
        if not padded.wide:
            return None
        alignment = padded.align(full_width=full_width)
        rows = len(alignment.first)
        if alignment.n_tokens < rows * _SHORT_ROW and rows * alignment.width <= _SPARSE * alignment.n_tokens:
            return None
        self._wide = {name: view for name, view in views.items() if name in padded.wide and view is not None}
        return alignment


def _values_tell(wide: Mapping[str, NDArray[Any]], lengths: Mapping[str, Any]) -> bool:
    """Whether it may take the values of the columns, not only masks, to tell where the prompt ends."""
    one_width = len({array.shape[-1:] for array in wide.values()}) == 1
    return one_width and ATTENTION_MASK in wide and "prompt_length" in lengths and "response_length" not in lengths


def copy_values(values: Mapping[str, Any], device: DeviceCopier) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Snapshots of values, and the events after which they may be read."""
    members = [item for value in values.values() for item in (value if _is_mixed(value) else (value,))]
    on_device = {id(value): value for value in members if is_on_cuda(value)}
    hosts, events = device.copy(list(on_device.values())) if on_device else ([], ())
    copied = dict(zip(on_device, hosts, strict=True))

    def taken(value: Any) -> Any:
        if id(value) in copied:
            return copied[id(value)]
        if copied and _is_mixed(value):
            return [copied[id(item)] if id(item) in copied else member(item) for item in value]
        return snapshot(value)

    return {name: taken(value) for name, value in values.items()}, events


def _is_mixed(value: Any) -> bool:
    """Whether it is a list that may hold tensors."""
    return isinstance(value, (list, tuple)) and not is_plain(value)


def _is_numeric(view: NDArray[Any] | Bits | None) -> bool:
    return isinstance(view, Bits) or (view is not None and view.dtype.kind in "biuf")


def _numbers(view: NDArray[Any] | Bits) -> NDArray[Any]:
    return view.values if isinstance(view, Bits) else view
