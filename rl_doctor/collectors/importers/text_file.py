"""Text as logs store it: the encoding is told by the first bytes, and what cannot be decoded becomes a replacement character."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final, TextIO

from rl_doctor.errors import InputError

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks: a redirect in PowerShell writes UTF-16."""
GZIP: Final = b"\x1f\x8b"
"""What a compressed file begins with."""
LARGEST_DOCUMENT: Final = 128_000_000
"""Bytes of a text that is parsed whole: as objects it takes several times as much memory."""


def encoding_of(head: bytes) -> str:
    """The encoding of a text that begins with these bytes."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), "utf-8")


def decode(data: bytes) -> str:
    """Bytes as text, without a byte order mark; the end of a text may be cut within a character."""
    return data.decode(encoding_of(data), errors="replace")


@lru_cache(maxsize=2)
def unpacked(data: bytes, most: int) -> bytes:
    """The beginning of a file, decompressed where it is compressed; nothing where that fails.

    Args:
        data: as in the file.
        most: bytes that are made of compressed ones at most.
    """
    if not data.startswith(GZIP):
        return data
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, most)
    except zlib.error:
        return b""


class _Unpacked(gzip.GzipFile):
    """A compressed file that ends where it was cut."""

    def read1(self, size: int | None = -1) -> bytes:
        """The next bytes, b"" at the end."""
        try:
            return super().read1(-1 if size is None else size)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return b""


@contextmanager
def open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a text for reading, decompressed; a compressed one that was cut ends there.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(io.DEFAULT_BUFFER_SIZE)
        encoding = encoding_of(unpacked(head, len(head)))
        if not head.startswith(GZIP):
            with path.open(encoding=encoding, errors="replace", newline=newline) as text:
                yield text
            return
        with _Unpacked(path) as packed, io.TextIOWrapper(packed, encoding, "replace", newline) as text:
            yield text
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_text(path: Path) -> str:
    """All of a text.

    Raises:
        InputError: it cannot be read, or is too large to be held.
    """
    check_size(path, path.stat().st_size)
    with open_text(path) as text:
        parts = iter(lambda: text.read(1 << 20), "")
        found = io.StringIO()
        for part in parts:
            found.write(part)
            check_size(path, found.tell())
        return found.getvalue()


def check_size(path: Path, size: int) -> None:
    """Refuse a document that is too large to be held whole.

    Raises:
        InputError: it is.
    """
    if size > LARGEST_DOCUMENT:
        raise InputError(
            f"{path}: one JSON document of more than {LARGEST_DOCUMENT / 1e6:.0f} MB: write one record per line, which is read "
            "piece by piece"
        )
