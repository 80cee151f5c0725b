"""Names of a run folder's files, and how a file gets there so that a kill leaves it whole or absent."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from rl_doctor.errors import UsageError

INFO_NAME: Final = "run.json"
TEMPORARY_SUFFIX: Final = ".tmp"
TABLES: Final = ("sequences", "tokens", "contexts", "metrics")
PART_METADATA_KEY: Final = b"rl_doctor_part"
"""Key of the JSON document in a part's footer: the steps completed for its rank, and how many rows its other tables have."""

_PART = re.compile(r"(?P<table>[a-z]+)-s(?P<session>\d+)-r(?P<rank>\d+)-(?P<number>\d+)\.parquet")
_WRITER = re.compile(r"writer-s(?P<session>\d+)-r(?P<rank>\d+)\.json")


@dataclass(frozen=True, slots=True, order=True)
class PartName:
    """What a part's file name says, in the order in which parts are read."""

    session: int
    rank: int
    number: int
    table: str

    def __str__(self) -> str:
        return f"{self.table}-s{self.session}-r{self.rank}-{self.number}.parquet"

    def of(self, table: str) -> PartName:
        """The matching part of another table."""
        return PartName(self.session, self.rank, self.number, table)


def parse_part(name: str) -> PartName | None:
    """Read a part's file name; None if it is not one."""
    found = _PART.fullmatch(name)
    if found is None or found["table"] not in TABLES:
        return None
    return PartName(int(found["session"]), int(found["rank"]), int(found["number"]), found["table"])


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
    with temporary.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


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
    write_durably(path, lambda file: file.write(text.encode()))


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable, where the system can (POSIX)."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
