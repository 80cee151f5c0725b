"""The form of a file of states: a JSON document and arrays, with a checksum over all of it."""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FORMAT: Final = 2
"""Version of the form and of what is kept; another one is not read."""
_MAGIC: Final = b"RLDSTATE"
_HEAD: Final = struct.Struct("<8sI16sQ")
_ALIGNED: Final = 8


class DamagedError(Exception):
    """The bytes are not what was written."""


class NewerError(Exception):
    """The file was written by another version, and is left as it is."""


@dataclass(slots=True)
class Sheet:
    """A document and arrays that it refers to by name.

    Attributes:
        document: what JSON can hold.
        arrays: name -> array of numbers, of one dimension.
    """

    document: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The bytes of a file."""
        table, blocks, at = {}, [], 0
        for name, array in self.arrays.items():
            block = np.ascontiguousarray(array).tobytes()
            table[name] = [array.dtype.str, at, len(array)]
            block += bytes(-len(block) % _ALIGNED)
            blocks.append(block)
            at += len(block)
        head = json.dumps({"document": self.document, "arrays": table}, separators=(",", ":")).encode()
        head += b" " * (-(len(head) + _HEAD.size) % _ALIGNED)
        body = b"".join([head, *blocks])
        return _HEAD.pack(_MAGIC, FORMAT, _checksum(FORMAT, len(head), body), len(head)) + body

    @classmethod
    def unpack(cls, data: bytes) -> Sheet:
        """Read what ``pack`` gave; the arrays are views of it.

        Raises:
            DamagedError: it is not whole, or a byte is another.
            NewerError: it is of a newer version.
        """
        if len(data) < _HEAD.size:
            raise DamagedError
        magic, version, checksum, size = _HEAD.unpack_from(data)
        body = memoryview(data)[_HEAD.size :]
        if magic != _MAGIC or _checksum(version, size, body) != checksum:  # which every version writes alike
            raise DamagedError
        if version != FORMAT:
            raise NewerError
        head: Mapping[str, Any] = json.loads(bytes(body[:size]))
        start = _HEAD.size + size
        arrays = {
            name: np.frombuffer(data, np.dtype(kind), count, start + at) for name, (kind, at, count) in head["arrays"].items()
        }
        return cls(head["document"], arrays)


def _checksum(version: int, size: int, body: bytes | memoryview) -> bytes:
    return blake2b(body, digest_size=16, salt=struct.pack("<QQ", size, version)).digest()


def read(path: Path) -> Sheet | None:
    """The sheet of a file; None where there is none, or it cannot be read.

    Raises:
        DamagedError: it is not whole, or a byte is another.
        NewerError: it is of a newer version.
    """
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return Sheet.unpack(data)


def write(path: Path, sheet: Sheet) -> None:
    """Write a file so that others see it whole or not at all; what a power cut leaves of it the checksum tells.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    try:
        temporary.write_bytes(sheet.pack())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
