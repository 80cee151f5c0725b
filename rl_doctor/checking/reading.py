"""A run as the engine reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.logged import Logged
from rl_doctor.errors import NothingToJudgeError
from rl_doctor.schema import RunInfo, column
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.run import Run

Progress = Callable[[int, int], None]
"""Told after each batch how many sequences were read, and of how many."""

_SCHEDULED: Final = frozenset({"learning_rate", "grad_norm"})
"""Numbers of the optimizer, which say nothing about what was trained on."""


class Reading:
    """A run as the engine reads it: tells how far it is, and notes which columns hold a finite number."""

    def __init__(self, run: Run, progress: Progress | None) -> None:
        self._run = run
        self._progress = progress
        self._finite: set[str] = set()
        self._blank: set[str] = set()

    @property
    def info(self) -> RunInfo:
        """The run's description, and what the log tells beyond it."""
        return self.logged.info

    @cached_property
    def logged(self) -> Logged:
        """What the trainer logged, under canonical names."""
        return Logged(self._run.metrics(), self._run.info, rows=bool(self._run.columns))

    @property
    def columns(self) -> Collection[str]:
        """Canonical columns that the run has."""
        return self._run.columns

    @property
    def critic(self) -> Run | None:
        """The passes of the critic, where they were recorded apart."""
        return self._run.critic

    def metrics(self) -> MetricLog:
        """What the trainer logged."""
        return self.logged.log

    @property
    def digests(self) -> Mapping[int, bytes]:
        """Digest of the rows of each step, by increasing step."""
        return self._run.digests

    @property
    def about_tokens(self) -> int:
        """About how many tokens it has."""
        return self._run.about_tokens

    def batches(self, columns: Collection[str], *, after: int | None = None, until: int | None = None) -> Iterator[Batch]:
        """Batches in the order of steps, of those later than ``after``, up to ``until``."""
        done = 0
        part: dict[str, Any] = {} if after is None and until is None else {"after": after, "until": until}
        for batch in self._run.batches(columns, **part):
            self._look(batch)
            yield batch
            done += batch.n_sequences
            del batch  # its memory serves to read the next one
            if self._progress is not None:
                self._progress(done, self._run.facts.sequences)

    def _look(self, batch: Batch) -> None:
        for name in set(batch.columns) - self._finite:
            values = batch.columns[name]
            if values.size and (values.dtype.kind != "f" or bool(np.isfinite(values).any())):
                self._finite.add(name)
                self._blank.discard(name)
            elif values.dtype.kind == "f":
                self._blank.add(name)

    def looked(self) -> tuple[Collection[str], Collection[str]]:
        """Columns that were found to hold a finite number, and columns that were not."""
        return frozenset(self._finite), frozenset(self._blank)

    def recall(self, asked: Collection[str], looked: tuple[Collection[str], Collection[str]]) -> None:
        """Take over what was noted of the columns ``asked`` in an earlier reading."""
        finite, blank = (set(names).intersection(asked) for names in looked)
        self._finite |= finite
        self._blank = (self._blank | blank) - self._finite

    def blank(self) -> list[str]:
        """Columns that were read and hold not one finite number.

        Raises:
            NothingToJudgeError: that is true of every column of numbers, and the trainer logged nothing either.
        """
        numbers = {name for name in self._finite if (known := column(name)) is not None and known.dtype.startswith("float")}
        if self._blank and not numbers - _SCHEDULED and not len(self.metrics()):
            raise NothingToJudgeError(
                f"{self._run.path}: nothing to judge: not one finite number in {', '.join(sorted(self._blank))}"
            )
        return sorted(self._blank)
