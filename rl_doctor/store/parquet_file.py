"""Opening a Parquet file and decoding from it, with one clear line for each way in which that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.store.run import ENCRYPTED_MAGIC, PARQUET_MAGIC

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


@frozen(eq=False)
class ParquetInput:
    """An opened Parquet file.

    Attributes:
        path: where it lies.
        file: the opened file.
    """

    path: Path
    file: pq.ParquetFile

    @classmethod
    def open(cls, path: Path) -> ParquetInput:
        """Open a file.

        Raises:
            InputError: it is missing, empty, unreadable, not Parquet, or cut short.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        _check_ends(path)
        with readable(path):
            return cls(path, pq.ParquetFile(pa.OSFile(os.fsencode(path))))  # as text Arrow takes only names that are UTF-8

    @property
    def schema(self) -> pa.Schema:
        """Its Arrow schema."""
        return self.file.schema_arrow

    @property
    def row_groups(self) -> int:
        """Number of row groups."""
        return int(self.file.metadata.num_row_groups)

    def metadata(self, key: bytes) -> bytes | None:
        """A value of the file's key-value metadata."""
        found: bytes | None = (self.file.metadata.metadata or {}).get(key)
        return found

    def rows_of(self, group: int) -> int:
        """Number of rows of a row group."""
        return int(self.file.metadata.row_group(group).num_rows)

    def first_row(self, group: int) -> int:
        """Row of the file at which a row group starts."""
        return sum(self.rows_of(earlier) for earlier in range(group))

    def read(self, group: int, names: Sequence[str]) -> pa.Table:
        """Decode columns of a row group."""
        with readable(self.path):
            return self.file.read_row_group(group, columns=list(names), use_threads=False)

    def stream(self, group: int, names: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Decode columns of a row group in pieces of at most ``rows`` rows."""
        with readable(self.path):
            yield from self.file.iter_batches(rows, row_groups=[group], columns=list(names), use_threads=False)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what Arrow and the system raise while reading into an ``InputError`` that names the file."""
    import pyarrow as pa

    try:
        yield
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it; change its mode or run as its owner") from error
    except (pa.ArrowException, OSError, EOFError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path}: damaged or cut short ({first[:160]}); copy or export it again") from error


def _check_ends(path: Path) -> None:
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path}: no such file or folder") from error
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it; change its mode or run as its owner") from error
    if size == 0:
        raise InputError(f"{path}: the file is empty (0 bytes); export it again")
    if not path.is_file():
        raise InputError(f"{path}: neither a file nor a folder")
    with readable(path), path.open("rb") as file:
        head = file.read(4)
        file.seek(max(size - 4, 0))
        tail = file.read(4)
    if head == ENCRYPTED_MAGIC:
        raise InputError(f"{path}: an encrypted Parquet file; decrypt it first")
    if head != PARQUET_MAGIC:
        raise InputError(f"{path}: not a Parquet file; convert it, e.g. with pandas: read it and call to_parquet")
    if tail != PARQUET_MAGIC or size < 12:
        raise InputError(f"{path}: a Parquet file that is cut short (no footer); copy or export it again")
