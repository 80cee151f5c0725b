"""Text as a console shows it: lines without colours, a line for each redraw of a progress bar, whatever the encoding.

A file is streamed: memory is bounded by a block and the longest line that is kept.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.text_file import GZIP, decode, encoding_of, unpacked
from rl_doctor.errors import InputError

if TYPE_CHECKING:
    from rl_doctor.collectors.importers.registry import Sample

BLOCK: Final = 1 << 20
"""Bytes that are read at once."""
LONGEST: Final = 1 << 25
"""Characters of a line that are kept."""
_COLOURS: Final = when_used(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_PREFIX: Final = when_used(
    r"(?:\s*(?:"
    r"\[\d+(?:;\d+)*m"  # a colour that lost its escape character
    r"|\((?:[^()]{0,80} )?pid=\d+[^()]{0,80}\)"  # Ray
    r"|\[?(?:default|rank)\s?\d+\]?:|\d{1,5}:(?=\s)"  # torchrun, srun -l
    r"|\[?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?(?: std(?:out|err) [FP]| [-|](?= ))?"  # a time
    r"|(?:\[(?:DEBUG|INFO|WARNING)\]|\b(?:DEBUG|INFO|WARNING))(?=[ :])(?::| [-|](?= ))?"  # a level
    r"))+ ?"
)


def open_bytes(path: Path) -> BufferedReader:
    """Open a file for reading, decompressed.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
    return cast("BufferedReader", gzip.open(path, "rb")) if packed else path.open("rb")


def read_bytes(path: Path, most: int) -> bytes:
    """The beginning of a file, decompressed; a compressed file that was cut is read as far as it goes.

    Args:
        path: the file.
        most: bytes that are read at most.

    Raises:
        InputError: it cannot be read.
    """
    parts: list[bytes] = []
    try:
        with open_bytes(path) as file:
            while most > 0 and (data := file.read1(min(most, BLOCK))):
                parts.append(data)
                most -= len(data)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        pass  # a compressed file that was cut: what came before the end counts, and `is_cut` tells
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    return b"".join(parts)


def is_cut(path: Path) -> bool:
    """Whether a file is compressed and ends, or is damaged, before its end."""
    try:
        with path.open("rb") as file:
            if file.read(2) != GZIP:
                return False
        with open_bytes(path) as file:
            while file.read1(BLOCK):
                pass
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return True
    except OSError:
        return False
    return False


def blocks(path: Path) -> Iterator[str]:
    """A text in blocks of whole lines, cleaned: lines end with a line feed only, and have no colours.

    A compressed file that was cut is read as far as it goes.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with open_bytes(path) as file:
            yield from _blocks(file)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _blocks(file: BufferedReader) -> Iterator[str]:
    decoder: codecs.IncrementalDecoder | None = None
    rest, skipping = "", False
    while data := file.read1(BLOCK):
        if decoder is None:
            decoder = codecs.getincrementaldecoder(encoding_of(data))(errors="replace")
        text = decoder.decode(data).replace("\r", "\n")
        end = text.rfind("\n")
        if end < 0:
            if len(rest) < LONGEST:
                rest += text
            else:
                skipping = True
            continue
        if skipping:  # the rest of a line that is too long to be a record
            start, skipping = text.find("\n") + 1, False
            yield _clean(text[start : end + 1])
        else:
            yield _clean(rest + text[: end + 1])
        rest = text[end + 1 :]
    if rest and not skipping:
        yield _clean(rest)


def _clean(text: str) -> str:
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    return text.replace("\0", "") if "\0" in text else text


def lines(path: Path) -> Iterator[str]:
    """The lines of a text, cleaned, without the empty ones; each redraw of a progress bar is a line of its own.

    Raises:
        InputError: it cannot be read.
    """
    for block in blocks(path):
        yield from filter(None, block.split("\n"))


def bare(line: str) -> str:
    """A line without what Ray, launchers and loggers put before it."""
    found = _PREFIX.match(line)
    return line[found.end() :] if found else line


@lru_cache(maxsize=2)
def seen(sample: Sample) -> str:
    """What a sample shows of a console, cleaned; empty for a folder and for bytes that are no text."""
    if sample.passage is not None:
        return sample.passage
    packed = sample.head.startswith(GZIP)
    text = decode(unpacked(sample.head, 4 * len(sample.head))) if packed else sample.text
    if not text:
        return ""
    if sample.tail and not packed:
        wide = "utf-16-be" if sample.head.startswith(codecs.BOM_UTF16_BE) else "utf-16-le"
        tail = sample.tail.decode(wide if encoding_of(sample.head) == "utf-16" else "utf-8", errors="replace")
        text = f"{text}\n{tail}"
    return _clean(text.replace("\r", "\n"))


def is_longer_than(sample: Sample) -> bool:
    """Whether a sample shows only a part of a console's text."""
    return bool(sample.tail or sample.head.startswith(GZIP)) and seen(sample) != ""
