"""Names of a run folder's files, and how a file gets there so that a kill leaves it whole or absent."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

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
        path: the final path; an existing file is replaced.
        write: called with the open temporary file.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with temporary.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


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
