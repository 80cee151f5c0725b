"""Where importers register. A module in ``collectors/importers`` that declares one is found by being there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from rl_doctor.collectors.importers import console
from rl_doctor.collectors.importers.columns import TooManyNamesError
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.text_file import decode, encoding_of, unpacked
from rl_doctor.discovery import import_modules
from rl_doctor.errors import InputError, unreadable
from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo
from rl_doctor.store.metric_log import MetricLog

HEAD_BYTES: Final = 1 << 18
"""How much of a file recognition looks at, at its beginning and at its end."""

ADDRESS: Final = when_used(r"[a-z][a-z]+:/+[^/]")
"""What the address of a run online begins with; as a path it has one slash. Its sample has neither bytes nor entries."""

"""What a file begins with that may hold several runs."""


_CONSOLE_HEAD: Final = 1 << 16
"""Characters of a table or of JSON in which the marks of a console are looked for."""


class Fit(IntEnum):
    """How well a sample fits a format. Of several formats the best fit is taken; no two may claim the same sample alike."""

    NO = 0
    CONTAINER = 1
    """The container is readable (any JSON lines, any CSV), and nothing speaks for a particular trainer."""
    SHAPE = 2
    """The records have the shape that this trainer or tracker writes."""
    SIGNATURE = 3
    """Something that only this format has: magic bytes, a member that nobody else writes."""


@frozen
class Sample:
    """What recognition sees of a path.

    Attributes:
        path: the file or folder.
        head: the first ``HEAD_BYTES`` of a file; empty for a folder.
        tail: the last ``HEAD_BYTES`` of a longer file; else empty.
        entries: names in a folder, sorted; empty for a file.
        folder: whether it is one.
        passage: another place of a long text, as ``console.blocks`` gives it, in place of head and tail.
    """

    path: Path
    head: bytes = b""
    entries: tuple[str, ...] = ()
    folder: bool = False
    tail: bytes = b""
    passage: str | None = None

    @property
    def whole(self) -> bool:
        """Whether ``head`` is all of the file."""
        return not self.folder and len(self.head) < HEAD_BYTES and len(unpacked(self.head, HEAD_BYTES)) < HEAD_BYTES

    @property
    def text(self) -> str:
        """The head as text, decompressed, without a byte order mark; empty for a folder and for bytes that are no text.

        Zeros further down are what a crash leaves in a file: they are dropped.
        """
        head = unpacked(self.head, HEAD_BYTES)
        if b"\0" in head[:1024] and encoding_of(head) == "utf-8":
            return ""
        return decode(head).replace("\0", "")


@frozen(eq=False)
class Imported:
    """What an importer made of a path.

    Attributes:
        log: values under their native names.
        info: what the format tells of the run; the trainer where only one trainer writes it.
        notes: sentences for the reader: what was dropped, joined, counted or guessed.
        empty: columns of numbers, by their native names, that hold none.
    """

    log: MetricLog
    info: RunInfo = RunInfo()
    notes: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


@frozen(eq=False)
class Importer:
    """One foreign format.

    Attributes:
        name: short and kebab-case, e.g. "verl-console".
        label: what the report calls it; completes "read as".
        recognises: Sample -> Fit. It must not raise, whatever the bytes are.
        read: path -> Imported. Raises InputError (unreadable, damaged) or NothingToJudgeError (no value in it).
        marks: strings of which one stands in every passage of a console text that ``recognises`` accepts: where neither the
            beginning nor the end of a long text tells its format, the places that have a mark are looked at.
        parts: whether it reads one of several runs in a file, see ``part_of``.
        last: whether it takes only what no other format does: such places are not looked for.
    """

    name: str
    label: str
    recognises: Callable[[Sample], Fit]
    read: Callable[[Path], Imported]
    marks: tuple[str, ...] = ()
    last: bool = False
    parts: bool = False


_IMPORTERS: Final[dict[str, Importer]] = {}


def importer(
    name: str,
    label: str,
    recognises: Callable[[Sample], Fit],
    marks: tuple[str, ...] = (),
    *,
    last: bool = False,
    parts: bool = False,
) -> Callable[[Callable[[Path], Imported]], Callable[[Path], Imported]]:
    """Decorate the function that reads a format and register it."""

    def register(read: Callable[[Path], Imported]) -> Callable[[Path], Imported]:
        if name in _IMPORTERS:
            raise ValueError(f"importer {name} is registered twice")
        _IMPORTERS[name] = Importer(name, label, recognises, partial(_within_bounds, read), marks, last, parts)
        return read

    return register


def _within_bounds(read: Callable[[Path], Imported], path: Path) -> Imported:
    try:
        found = read(path)
    except TooManyNamesError as error:
        raise InputError(f"{path}: {error}") from error
    if path.is_file() and console.is_cut(path):
        note = "the compressed file is cut short or damaged: read up to there"
        return replace(found, notes=(note, *found.notes))
    return found


def importers() -> Mapping[str, Importer]:
    """Every importer by name."""
    import_modules("rl_doctor.collectors.importers")
    return MappingProxyType(_IMPORTERS)


def sample(path: Path) -> Sample:
    """Look at a path.

    Raises:
        InputError: it is missing, empty, or cannot be read.
    """
    if ADDRESS.match(str(path)):
        return Sample(path)
    try:
        if path.is_dir():
            return Sample(path, entries=tuple(sorted(entry.name for entry in path.iterdir())), folder=True)
        named, _ = part_of(path)
        if not named.exists():
            raise InputError(f"{path}: no such file or folder")
        if not named.is_file():
            raise InputError(f"{path}: neither a file nor a folder")
        with named.open("rb") as file:
            head = file.read(HEAD_BYTES)
            tail = _tail(file, named.stat().st_size)
    except OSError as error:
        raise unreadable(path, error) from error
    if not head:
        raise InputError(f"{path}: the file is empty (0 bytes); export it again")
    return Sample(path, head, tail=tail)


def part_of(path: Path) -> tuple[Path, str | None]:
    """The file, and the name of the run in it where that is told: ``FILE#RUN``, for files that hold several."""
    if "#" in path.name and not path.exists():
        name, _, run = path.name.partition("#")
        if name and run and path.with_name(name).is_file():
            return path.with_name(name), run
    return path, None


def _tail(file: BinaryIO, size: int) -> bytes:
    """The end of a file that is longer than its head; it begins at an even byte, as UTF-16 does."""
    start = max(HEAD_BYTES, size - HEAD_BYTES) & ~1
    if start >= size:
        return b""
    file.seek(start)
    return file.read(HEAD_BYTES + 1)


def find(seen: Sample, without: str | None = None) -> Importer | None:
    """The importer whose format fits best, or None; the one called ``without`` is not asked."""
    asked = [known for known in importers().values() if known.name != without]
    fits = {known: known.recognises(seen) for known in asked if not known.marks}
    best = max(fits.values())
    if best <= Fit.CONTAINER:
        text = console.seen(seen)[: None if best is Fit.NO else _CONSOLE_HEAD]
        marked = [known for known in asked if any(mark in text for mark in known.marks)]
        fits |= {known: known.recognises(seen) for known in marked if not known.last}
        if max(fits.values()) is Fit.NO:
            fits |= {known: known.recognises(seen) for known in marked if known.last}
    chosen = max(fits, key=lambda known: fits[known])
    unsure = fits[chosen] is Fit.NO or (fits[chosen] is Fit.CONTAINER and bool(chosen.marks))
    if unsure and console.is_longer_than(seen) and (inside := _find_inside(seen)):
        return inside
    return None if fits[chosen] is Fit.NO else chosen


def _find_inside(seen: Sample) -> Importer | None:
    """The importer that recognises some place of a text whose beginning and end tell nothing."""
    marked = [known for known in importers().values() if known.marks and not known.last]
    for block in console.blocks(seen.path):
        passage: Sample | None = None
        for known in marked:
            if any(mark in block for mark in known.marks):
                passage = passage or replace(seen, passage=block)
                if known.recognises(passage) > Fit.CONTAINER:
                    return known
    return None
