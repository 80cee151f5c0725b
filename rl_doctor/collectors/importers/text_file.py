"""Text as logs store it: the encoding is told by the first bytes, and what cannot be decoded becomes a replacement character."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from rl_doctor.errors import InputError

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks: a redirect in PowerShell writes UTF-16."""
LARGEST_DOCUMENT: Final = 128_000_000
"""Bytes of a text that is parsed whole: as objects it takes several times as much memory."""


def encoding_of(head: bytes) -> str:
    """The encoding of a text that begins with these bytes."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), "utf-8")


def decode(data: bytes) -> str:
    """Bytes as text, without a byte order mark; the end of a text may be cut within a character."""
    return data.decode(encoding_of(data), errors="replace")


@contextmanager
def open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a text for reading.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            encoding = encoding_of(file.read(4))
        with path.open(encoding=encoding, errors="replace", newline=newline) as text:
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
        return text.read()


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
