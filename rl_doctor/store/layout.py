"""Names of a run folder's files, and how a file gets there so that a kill leaves it whole or absent."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from rl_doctor.errors import UsageError

INFO_NAME: Final = "run.json"
THINNING_NAME: Final = "thinning.json"
CRITIC_NAME: Final = "critic"
"""Folder inside a run folder: the passes of the critic, a run folder of their own."""
TEMPORARY_SUFFIX: Final = ".tmp"
TABLES: Final = ("sequences", "tokens", "contexts", "metrics")
PART_METADATA_KEY: Final = b"rl_doctor_part"
"""Key of the JSON document in a part's footer: the steps completed for its rank, and how many rows its other tables have."""

_CANNOT_SYNC: Final = {errno.EACCES, errno.EINVAL, errno.ENOTSUP}
_PART = re.compile(r"(?P<table>[a-z]+)-s(?P<session>\d+)-r(?P<rank>\d+)-(?P<number>\d+)(?:-v(?P<version>\d+))?\.parquet")
_WRITER = re.compile(r"writer-s(?P<session>\d+)-r(?P<rank>\d+)\.json")


@dataclass(frozen=True, slots=True, order=True)
class PartName:
    """What a part's file name says, in the order in which parts are read.

    ``version`` counts how often tokens were taken out of the part; only the tokens table has another than 0.
    """

    session: int
    rank: int
    number: int
    table: str
    version: int = 0

    def __str__(self) -> str:
        version = f"-v{self.version}" if self.version else ""
        return f"{self.table}-s{self.session}-r{self.rank}-{self.number}{version}.parquet"

    def of(self, table: str, version: int = 0) -> PartName:
        """The matching part of another table."""
        return PartName(self.session, self.rank, self.number, table, version)


def parse_part(name: str) -> PartName | None:
    """Read a part's file name; None if it is not one."""
    found = _PART.fullmatch(name)
    if found is None or found["table"] not in TABLES:
        return None
    version = int(found["version"] or 0)
    return PartName(int(found["session"]), int(found["rank"]), int(found["number"]), found["table"], version)


def writer_name(session: int, rank: int) -> str:
    """Name of the file by which a writer claims its session and rank."""
    return f"writer-s{session}-r{rank}.json"


def parse_writer(name: str) -> tuple[int, int] | None:
    """Session and rank of a writer's claim; None if the name is not one."""
    found = _WRITER.fullmatch(name)
    return None if found is None else (int(found["session"]), int(found["rank"]))


def write_durably(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that it appears whole or not at all, and stays after a kill or a power cut.

    Args:
        path: the final path; an existing file is replaced, behind a link too. What is no file (a device, a pipe) is written to.
        write: called with the open temporary file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        buffer = io.BytesIO()
        write(buffer)
        with path.open("wb") as file:
            file.write(buffer.getvalue())
        return
    # Two processes may write the same file at once, and so may the threads of one.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_native_id()}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        # On a full disk, what was written of it takes the room that a note of the failure needs.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and what is missing above it, so that its name too stays after a power cut.

    Raises:
        OSError: it cannot be made, or a file stands in its place.
    """
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def keep_apart(target: Path, source: Path) -> None:
    """Make sure that writing a file overwrites nothing that is read.

    Args:
        target: the file to write.
        source: the run that is read, a file or a folder.

    Raises:
        UsageError: the target is the run, lies in its folder, or is a file of another recorded run.
    """
    real = target.resolve()
    if target.exists() and source.exists() and target.samefile(source):
        raise UsageError(f"{target}: is the run that is read, and would be lost; write to another file")
    if source.is_dir() and real.is_relative_to(source.resolve()):
        raise UsageError(f"{target}: lies in the run folder that is read; write to a file outside of it")
    recorded = real.name == INFO_NAME or parse_part(real.name) or parse_writer(real.name)
    if recorded and (real.parent / INFO_NAME).exists():
        raise UsageError(f"{target}: is a file of a recorded run, which would be damaged; write to another file")


def write_json_durably(path: Path, document: Any) -> None:
    """Write a JSON document with ``write_durably``."""
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    # Paths may hold bytes that are no text; as escapes they stay valid JSON.
    write_durably(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable, where system, file system and permissions let one."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
