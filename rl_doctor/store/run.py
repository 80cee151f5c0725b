"""A stored run, opened for reading."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.buffers import keep_freed_memory
from rl_doctor.store.facts import StoreFacts
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.plan import Fragment, Segment, batches_of, rows_in_order, windows_of

if TYPE_CHECKING:
    from rl_doctor.store.part_index import PartIndex

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
    _stamp: Callable[[Segment], bytes] | None = field(repr=False, default=None)
    known: dict[str, Any] = field(repr=False, default_factory=dict)
    """What was found out by reading rows, for ``facts`` to use again: JSON values by what they are."""
    _before: Mapping[int, bytes] = field(repr=False, default_factory=dict)

    @cached_property
    def facts(self) -> StoreFacts:
        """What reading the run brought to light about the files."""
        return self._facts()

    @cached_property
    def about_tokens(self) -> int:
        """About how many tokens the run has."""
        return sum(segment.tokens for segment in self._segments)

    @cached_property
    def digests(self) -> Mapping[int, bytes]:
        """Step -> digest of which rows of which files it is made of, by increasing step; empty for a log.

        Files count with their size, time and last bytes, so that a step has another digest once one of its files was replaced.
        """
        if self._stamp is None:
            return {}
        found = dict(self._before)
        last = max(found, default=-math.inf)
        steps: dict[int, list[bytes]] = {}
        later = [segment for segment in self._segments if segment.step > last]
        for segment in sorted(later, key=lambda item: (item.step, item.fragment, item.start)):
            rows = struct.pack("<qq", segment.start, segment.stop)
            steps.setdefault(segment.step, []).append(self._stamp(segment) + rows)
        for step, parts in steps.items():
            found[step] = blake2b(b"".join(parts), digest_size=16).digest()
        return found

    def batches(
        self,
        columns: Collection[str],
        *,
        max_tokens: int = MAX_TOKENS,
        after: int | None = None,
        until: int | None = None,
    ) -> Iterator[Batch]:
        """Read the run in increasing order of steps; the batches of a step follow each other.

        Args:
            columns: canonical columns to decode; those that the run does not have are left out. ``step`` always comes.
            max_tokens: bound on the tokens of a batch; a single sequence may exceed it.
            after: read later steps only.
            until: last step to read.

        Returns:
            Batches of whole sequences of one step.

        Raises:
            InputError: a value cannot be read; the message names file, column and row.
        """
        keep_freed_memory()
        chosen = sorted(self.columns.intersection(columns))
        segments = self._segments
        if after is not None or until is not None:
            first, last = -math.inf if after is None else after, math.inf if until is None else until
            segments = [segment for segment in segments if first < segment.step <= last]
        pieces = rows_in_order(self._fragments, windows_of(segments), chosen)
        return batches_of(pieces, max_tokens, self.info, self.about_tokens)

    def only(self, steps: Collection[int]) -> Run:
        """The same run with these steps alone: row groups of others are not read."""
        return replace(self, _segments=[segment for segment in self._segments if segment.step in steps], _before={})

    def first(self, count: int) -> Run:
        """The same run as if it had been stopped after its first ``count`` steps; later row groups are not read.

        Steps are those that have rows; of a log those at which something was logged.
        """
        steps = sorted({segment.step for segment in self._segments}) or self._metrics().steps().tolist()
        if len(steps) <= count:
            return self
        last = steps[count - 1]
        kept = [segment for segment in self._segments if segment.step <= last]

        def facts() -> StoreFacts:
            rows = sum(segment.stop - segment.start for segment in kept)
            tokens = sum(int(batch.splits[-1]) for batch in self.only(range(steps[0], last + 1)).batches(()))
            told = f"only the first {count} of {len(steps)} steps are judged"
            whole = self.facts
            return replace(whole, last_step=last, sequences=rows, tokens=tokens, notes=(*whole.notes, told))

        def critic() -> Run | None:
            return None if self.critic is None else self.critic.only(range(steps[0], last + 1))

        return replace(
            self, _segments=kept, _facts=facts, _metrics=lambda: self._metrics().until(last), _critic=critic, _before={}
        )

    @property
    def steps(self) -> list[int]:
        """The steps that have rows, increasing."""
        return sorted({segment.step for segment in self._segments})

    def stretches(self, step: int) -> list[tuple[Fragment, Segment]]:
        """Where the rows of a step stand: the fragment of each stretch, and the stretch; in the order of reading."""
        found = sorted((one for one in self._segments if one.step == step), key=lambda one: (one.fragment, one.start))
        return [(self._fragments[one.fragment], one) for one in found]

    @cached_property
    def critic(self) -> Run | None:
        """The passes of the critic, where they were recorded apart; None where they were not, or cannot be read."""
        return self._critic()

    def metrics(self) -> MetricLog:
        """What the trainer itself logged."""
        return self._metrics()


def open_run(path: str | Path, index: PartIndex | None = None, of_critic: PartIndex | None = None) -> Run:
    """Open a run folder or a Parquet file.

    The form is recognised by the columns, never by the name: a run file (one row per sequence and pass, token columns as
    lists), a flat table (one row per token), a padded export, or a history of scalars.

    Args:
        path: the run folder or file.
        index: what is known of a folder's parts; by default nothing.
        of_critic: what is known of the parts of its critic.

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
        return open_folder(path, index, of_critic)
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
