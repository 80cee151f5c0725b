"""Folds batches step by step into what metrics are made of; it can be left at the end of any step and gone on with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import FIRST_STEP, SEEN
from rl_doctor.analyzer.needs import Source, lacking, requirements
from rl_doctor.analyzer.recorded import Folded, Recorded
from rl_doctor.analyzer.registry import Metric, Reduction, SequenceValue, sequence_values
from rl_doctor.analyzer.rollouts import KEYS, Gathered, Rollouts
from rl_doctor.analyzer.seen import Seen
from rl_doctor.analyzer.states import State
from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen
from rl_doctor.schema import COLUMNS, MISSING_INT
from rl_doctor.store.batch import Batch
from rl_doctor.store.rows import is_token, splits_of

_DROPPED: Final = "tokens_dropped"


@frozen(eq=False)
class Mark:
    """What a fold holds at the end of a step beside what is settled; with that, it can go on from there.

    Attributes:
        step: the step.
        lengths: how many points each series had, by its name.
        before: states of metrics of changes, by name.
        gathered: generation batches on which later steps may still train.
        pending: step -> reduction -> state of generation batches that are finished, of steps that are not.
        first_steps: generation batch -> first step that trained on it.
        seen: added column -> name's digest -> first generation batch.
        rows: step -> rows without their tokens, and all rows; of steps where that is recorded.
        looked: columns that hold a finite number up to the step, and columns that do not.
    """

    step: int
    lengths: Mapping[str, int]
    before: Mapping[str, State]
    gathered: Gathered
    pending: Mapping[int, Mapping[Reduction, State]]
    first_steps: Mapping[int, int]
    seen: Mapping[str, Mapping[int, int]]
    rows: Mapping[int, tuple[int, int]]
    looked: tuple[Collection[str], Collection[str]] = ((), ())


@dataclass(slots=True)
class _Reads:
    """What the reductions of a fold read."""

    columns: list[str] = field(default_factory=list)
    rows: set[str] = field(default_factory=set)
    values: list[SequenceValue] = field(default_factory=list)


class Fold:
    """States of the steps being read, and what the finished steps before gave.

    Args:
        source: the run.
        wanted: metrics, of which the run has the columns.
        mark: where to go on from, with what was ``settled`` by then; by default from the beginning.
    """

    def __init__(
        self, source: Source, wanted: Sequence[Metric], mark: Mark | None = None, settled: Recorded | None = None
    ) -> None:
        self.metrics = tuple(wanted)
        self.last: int | None = None
        self._by_reduction: dict[Reduction, list[Metric]] = {}
        for item in wanted:
            self._by_reduction.setdefault(item.reduction, []).append(item)
        reductions = list(self._by_reduction)
        self._token = [r for r in reductions if r.level != "rollout" and r.reads_tokens]
        self._sequence = [r for r in reductions if r.level != "rollout" and not r.reads_tokens]
        self._rollout = [r for r in reductions if r.level == "rollout"]
        self.settled = Recorded() if settled is None else settled
        self._step: int | None = None
        self._rows_by_step: dict[int, tuple[int, int]] = {}
        self._states: dict[Reduction, State] = {}
        self._rollout_states: dict[int, dict[Reduction, State]] = {}
        self._first_steps: dict[int, int] = {}
        asked = {name for r in (*self._token, *self._sequence) for name in (*r.needs, *r.optional)}
        self._seen = {added: Seen(added) for added in SEEN if added in asked}
        self._mark_first = FIRST_STEP in asked
        reads = self._reads(source)
        self.columns = reads.columns
        """Stored columns that it reads."""
        self._rollouts = Rollouts(source.info, reads.rows, reads.values)
        if mark is not None:
            self._go_on(mark)

    def _reads(self, source: Source) -> _Reads:
        names = {part for r in self._rollout for name in (*r.needs, *r.optional) for part in name.split("|")}
        values = requirements(names)[1]
        computed = [
            sequence_values()[name]
            for name in sorted(values)
            if not lacking(sequence_values()[name].needs, source.columns, source.info.config)
        ]
        rows = {name for name in names - values if not is_token(name)}  # a column of tokens is only asked to be there
        base = requirements({name for r in self._by_reduction for name in (*r.needs, *r.optional)})[0]
        base |= requirements(name for value in computed for name in (*value.needs, *value.optional))[0]
        base |= {"is_padding", _DROPPED} | (KEYS if self._rollout else set()) | ({"rollout_step"} if self._seen else set())
        if any(name in COLUMNS and COLUMNS[name].level == "token" for name in base):
            base.add("response_mask")
        return _Reads(sorted(base & set(source.columns)), rows, computed)

    def add(self, batch: Batch) -> None:
        """Fold one batch."""
        if batch.step != self._step:
            self.close()
            if self.last is not None and batch.step <= self.last:
                raise InputError(f"step {batch.step} comes after step {self.last}: sort the rows by step and read again")
            self._step = batch.step
        if self._mark_first and "rollout_step" in batch.columns:
            batch = self._with_first_step(batch)
        for seen in self._seen.values():
            batch = seen.told(batch)
        self._take(self._sequence, batch)
        if (kept := self._with_tokens(batch)) is not None:
            self._take(self._token, kept)
        if self._rollout:
            self._rollouts.add(batch)

    def _take(self, reductions: Iterable[Reduction], batch: Batch) -> None:
        for r in reductions:
            self._states[r] = self._states.get(r, r.zero) + r.partial(batch)

    def _with_tokens(self, batch: Batch) -> Batch | None:
        """The rows whose tokens were kept; None where there is none."""
        flags = batch.get(_DROPPED)
        if flags is None:
            return batch
        lengths = batch.lengths
        dropped = flags.astype(np.bool_) & (lengths == 0)
        gone, rows = self._rows_by_step.get(batch.step, (0, 0))
        self._rows_by_step[batch.step] = (gone + int(np.count_nonzero(dropped)), rows + len(dropped))
        if not dropped.any():
            return batch
        if dropped.all():
            return None
        columns = {name: values if is_token(name) else values[~dropped] for name, values in batch.columns.items()}
        return replace(batch, columns=columns, splits=splits_of(lengths[~dropped]), scratch={})

    def _left_out(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        counts = self._rows_by_step.items()
        some = [step for step, (gone, rows) in counts if 0 < gone < rows]
        every = [step for step, (gone, rows) in counts if gone and gone == rows]
        return np.array(some, np.int64), np.array(every, np.int64)

    def _with_first_step(self, batch: Batch) -> Batch:
        rollout = batch.columns["rollout_step"]
        keys, index = np.unique(np.where(rollout == MISSING_INT["int64"], batch.step, rollout), return_inverse=True)
        first = np.array([self._first_steps.setdefault(int(key), batch.step) for key in keys], np.int64)
        return replace(batch, columns={**batch.columns, FIRST_STEP: first[index]})

    def close(self) -> None:
        """Close the step that is being read: all its batches were added."""
        if self._step is None:
            return
        for r, state in self._states.items():
            self.settled.add(self._by_reduction[r], self._step, state)
        self._states = {}
        for seen in self._seen.values():
            seen.close()
        self._reduce(self._rollouts.finished(self._step), self._rollout_states)
        first = self._rollouts.first_step
        self._settle(self._step if first is None else min(self._step, first))
        self.last, self._step = self._step, None

    def _reduce(self, rollouts: Iterable[Batch], into: dict[int, dict[Reduction, State]]) -> None:
        for rollout in rollouts:
            states = into.setdefault(rollout.step, {})
            for r in self._rollout:
                states[r] = states.get(r, r.zero) + r.partial(rollout)

    def _settle(self, before: int) -> None:
        """Record the steps before ``before``: no generation batch that is still open began at them."""
        for step in sorted(step for step in self._rollout_states if step < before):
            for r, state in self._rollout_states.pop(step).items():
                self.settled.add(self._by_reduction[r], step, state)

    def folded(self) -> Folded:
        """What was read so far gave, as if the run had ended here; the fold itself stays as it is."""
        rest = Recorded(self.settled.before)
        states = {step: dict(own) for step, own in self._rollout_states.items()}
        self._reduce(self._rollouts.rest(), states)
        for step in sorted(states):
            for r, state in states[step].items():
                rest.add(self._by_reduction[r], step, state)
        return Folded(self.settled, rest, self._left_out(), self._rollouts.reopened)

    def mark(self, looked: tuple[Collection[str], Collection[str]] = ((), ())) -> Mark | None:
        """Where the fold is, at the end of a step; None before the first.

        Args:
            looked: columns that were found to hold a finite number, and columns that were not.
        """
        if self.last is None:
            return None
        settled = self.settled
        kinds: tuple[Mapping[str, Sized], ...] = (settled.points, settled.tops, settled.histograms)
        lengths = {name: len(found) for kind in kinds for name, found in kind.items()}
        return Mark(
            self.last, lengths, dict(settled.before), self._rollouts.gathered(),
            {step: dict(states) for step, states in self._rollout_states.items()}, dict(self._first_steps),
            {added: seen.known() for added, seen in self._seen.items()}, dict(self._rows_by_step),
            (tuple(looked[0]), tuple(looked[1])),
        )  # fmt: skip

    def _go_on(self, mark: Mark) -> None:
        self.last = mark.step
        self._rollouts.go_on(mark.gathered)
        self._rollout_states = {step: dict(states) for step, states in mark.pending.items()}
        self._first_steps = dict(mark.first_steps)
        for added, seen in self._seen.items():
            seen.go_on(mark.seen[added])
        self._rows_by_step = dict(mark.rows)
