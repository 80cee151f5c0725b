"""Memory that is used again: memory that goes back to the system costs a page fault for every page when it is next written."""

from __future__ import annotations

from collections import deque
from io import BytesIO
from typing import Final

_KEPT_BYTES: Final = 64 << 20


class Memory:
    """Pieces of memory that one thread takes and another gives back."""

    def __init__(self) -> None:
        self._free: deque[BytesIO] = deque()

    def take(self) -> BytesIO:
        """A piece to write to from its beginning; new if none is free."""
        try:
            piece = self._free.pop()
            piece.seek(0)
            piece.write(b"")  # refused while an array still shows it
        except (IndexError, BufferError):
            return BytesIO()
        return piece

    def give(self, piece: BytesIO) -> None:
        """Give a piece back, once nothing uses what it holds; what is more than is worth keeping goes to the system."""
        if sum(map(_size, self._free)) + _size(piece) <= _KEPT_BYTES:
            self._free.append(piece)


def _size(piece: BytesIO) -> int:
    return piece.seek(0, 2)
