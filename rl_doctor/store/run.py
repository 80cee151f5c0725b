"""A stored run, opened for reading."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.buffers import keep_freed_memory
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.plan import Fragment, Segment, batches_of, rows_in_order, windows_of

MAX_TOKENS: Final = 3 << 18
"""Default bound on the tokens of a batch: its columns fit in a few megabytes each."""
PARQUET_MAGIC: Final = b"PAR1"
ENCRYPTED_MAGIC: Final = b"PARE"


@dataclass(frozen=True, eq=False)
class Run:
    """A stored run.

    Attributes:
        path: the file or folder.
        info: the run's description.
        columns: canonical columns that are present and not null everywhere.
        recorded_in: step -> session that its rows come from, where that is known.
    """

    path: Path
    info: RunInfo
    columns: frozenset[str]
    _fragments: Sequence[Fragment] = field(repr=False)
    _segments: Sequence[Segment] = field(repr=False)
    _facts: Callable[[], StoreFacts] = field(repr=False)
    _metrics: Callable[[], MetricLog] = field(repr=False)
    _critic: Callable[[], Run | None] = field(repr=False, default=lambda: None)
    recorded_in: Mapping[int, int] = field(repr=False, default_factory=dict)

    @cached_property
    def facts(self) -> StoreFacts:
        """What reading the run brought to light about the files."""
        return self._facts()

    def batches(self, columns: Collection[str], *, max_tokens: int = MAX_TOKENS) -> Iterator[Batch]:
        """Read the run in increasing order of steps; the batches of a step follow each other.

        Args:
            columns: canonical columns to decode; those that the run does not have are left out. ``step`` always comes.
            max_tokens: bound on the tokens of a batch; a single sequence may exceed it.

        Returns:
            Batches of whole sequences of one step.

        Raises:
            InputError: a value cannot be read; the message names file, column and row.
        """
        keep_freed_memory()
        chosen = sorted(self.columns.intersection(columns))
        pieces = rows_in_order(self._fragments, windows_of(self._segments), chosen)
        return batches_of(pieces, max_tokens, self.info, sum(segment.tokens for segment in self._segments))

    def only(self, steps: Collection[int]) -> Run:
        """The same run with these steps alone: row groups of others are not read."""
        return replace(self, _segments=[segment for segment in self._segments if segment.step in steps])

    @cached_property
    def critic(self) -> Run | None:
        """The passes of the critic, where they were recorded apart; None where they were not, or cannot be read."""
        return self._critic()

    def metrics(self) -> MetricLog:
        """What the trainer itself logged."""
        return self._metrics()


def open_run(path: str | Path) -> Run:
    """Open a run folder or a Parquet file.

    The form is recognised by the columns, never by the name: a run file (one row per sequence and pass, token columns as
    lists), a flat table (one row per token), a padded export, or a history of scalars.

    Args:
        path: the run folder or file.

    Returns:
        The run; columns are decoded when they are asked for.

    Raises:
        InputError: it is missing, empty, not Parquet, damaged, or its columns do not fit together.
        NothingToJudgeError: it has no row, no known column, or nothing but NaN.
    """
    from rl_doctor.store.folder import open_folder
    from rl_doctor.store.parquet_file import ParquetInput
    from rl_doctor.store.recognise import open_file

    path = Path(path)
    if path.is_dir():
        return open_folder(path)
    return open_file(ParquetInput.open(path))


def is_stored(path: Path) -> bool:
    """Whether ``open_run`` is for this path: a run folder, or anything that begins as a Parquet file does.

    Raises:
        OSError: it cannot be looked at.
    """
    from rl_doctor.store import layout

    if path.is_dir():
        return any(
            entry.name == layout.INFO_NAME or layout.parse_part(entry.name) or layout.parse_writer(entry.name)
            for entry in path.iterdir()
        )
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) in {PARQUET_MAGIC, ENCRYPTED_MAGIC}
