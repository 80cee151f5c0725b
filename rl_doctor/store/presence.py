"""Which columns hold anything, read from footers and, only where they do not tell, from the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np

from rl_doctor import schema
from rl_doctor.errors import NothingToJudgeError
from rl_doctor.store.decode import is_list
from rl_doctor.store.encode import FLOATS
from rl_doctor.store.rows import Rows

_TELLING: Final = frozenset({"response_length", "finish_reason", "turns", "token_id", "weight_version", "policy_version"})
"""Columns without NaN that rules can judge on their own."""


MASK: Final = "response_mask"


class Presence:
    """Collects from footers which columns are not null everywhere, and which have a value that is not NaN.

    Attributes:
        named: names in the file.
        present: names in the file with a value that is not null.
        numeric: names in the file whose footer proves a value that is not NaN.
        owners: paths of leaves -> the name in the file that each belongs to.

    Args:
        like: one of other files, most of which have the same columns.
    """

    def __init__(self, like: Presence | None = None) -> None:
        self.named: set[str] = set()
        self.present: set[str] = set()
        self.numeric: set[str] = set()
        self.owners: dict[tuple[str, ...], list[str]] = {} if like is None else like.owners
        self._joined: Presence | None = None

    def key(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        """All that was collected."""
        return frozenset(self.named), frozenset(self.present), frozenset(self.numeric)

    def join(self, other: Presence) -> None:
        """Take what another one collected, and will collect no more."""
        if other is self._joined:
            return
        self._joined = other
        self.named |= other.named
        self.present |= other.present
        self.numeric |= other.numeric

    def add(self, metadata: Any, schema_: Any) -> None:
        """Take a file's footer and its Arrow schema."""
        self.named.update(schema_.names)
        names = [field.name for field in schema_ if not _is_null(field.type)]
        paths = tuple(metadata.schema.column(index).path for index in range(metadata.num_columns))
        if paths not in self.owners:
            self.owners[paths] = [_owner(path, names) for path in paths]
        owners = self.owners[paths]
        open_ = [index for index, owner in enumerate(owners) if owner and not {owner} <= self.numeric & self.present]
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for index in open_:
                self._chunk(owners[index], row_group.column(index))

    def _chunk(self, owner: str, chunk: Any) -> None:
        if not chunk.num_values:
            return
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count < chunk.num_values:
            self.present.add(owner)
        if statistics is not None and statistics.has_min_max:
            self.numeric.add(owner)


def chunks_of(metadata: Any, group: int, name: str) -> Iterator[Any]:
    """Footer entries of a top-level column in a row group."""
    row_group = metadata.row_group(group)
    for index in range(row_group.num_columns):
        path = row_group.column(index).path_in_schema
        if path == name or path.startswith(f"{name}."):
            yield row_group.column(index)


def _is_null(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_null(type_) or (is_list(type_) and pa.types.is_null(type_.value_type)))


def _owner(path: str, names: Iterable[str]) -> str:
    fitting = [name for name in names if path == name or path.startswith(f"{name}.")]
    return max(fitting, key=len, default="")


def require_values(
    columns: Iterable[str],
    proven: Callable[[str], bool],
    read: Callable[[str], Iterable[Rows]],
    where: str,
    null: Iterable[str] = (),
) -> None:
    """Refuse a run that has number columns but no number in them.

    Args:
        columns: canonical columns that are present.
        proven: whether a footer proves that the column has a value that is not NaN.
        read: decodes one column in pieces.
        where: what messages call the run.
        null: canonical columns that are null everywhere.

    Raises:
        NothingToJudgeError: every number is NaN or null.
    """
    columns = list(columns)
    numbers, void = floats(columns), floats(null)
    if not (numbers or void) or not _TELLING.isdisjoint(columns) or any(proven(name) for name in numbers):
        return
    if any(_has_number(name, read) for name in numbers):
        return
    raise NothingToJudgeError(f"{where}: holds nothing but NaN or null in {', '.join([*numbers, *void])}")


def empty_floats(
    columns: Iterable[str], proven: Callable[[str], bool], read: Callable[[str], Iterable[Rows]], null: Iterable[str]
) -> tuple[str, ...]:
    """Canonical float columns in which every value is null or NaN; takes what ``require_values`` takes."""
    blank = [name for name in floats(columns) if not proven(name) and not _has_number(name, read)]
    return tuple(sorted({*blank, *floats(null)}))


def _has_number(name: str, read: Callable[[str], Iterable[Rows]]) -> bool:
    return any(not np.isnan(rows.columns[name]).all() for rows in read(name))


def floats(names: Iterable[str]) -> list[str]:
    """Those of the names that are canonical float columns, sorted."""
    return sorted(name for name in names if (column := schema.column(name)) is not None and column.dtype in FLOATS)
