"""Whether writers of a run folder have written a step: what is on disk, by the footers of their parts."""

from __future__ import annotations

from pathlib import Path

from rl_doctor.errors import DoctorError
from rl_doctor.store import layout
from rl_doctor.store.info import parse_json
from rl_doctor.store.layout import PartName
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.part import footer


def has_written(folder: Path, session: int, rank: int, step: int) -> bool:
    """Whether a writer has written all that it knows of a step, or has said that it stopped.

    Args:
        folder: the run folder.
        session: session of the writer.
        rank: its rank.
        step: the step.
    """
    numbers = [
        part.number
        for path in folder.iterdir()
        if (part := layout.parse_part(path.name)) and (part.session, part.rank, part.table) == (session, rank, "sequences")
    ]
    try:
        if numbers:
            name = PartName(session, rank, max(numbers), "sequences")
            completes: list[int] = footer(ParquetInput.open(folder / str(name)))["completes"]
            if completes and max(completes) >= step:
                return True
        claim = folder / layout.writer_name(session, rank)
        return bool(parse_json(claim.read_bytes(), str(claim)).get("status") == "detached")
    except (DoctorError, OSError):
        return False  # about to be written, or to be replaced
