"""One pass over a run: folds every chosen reduction, step by step, reading only the columns that they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import FIRST_STEP
from rl_doctor.analyzer.registry import (
    LOGGED_FAMILIES,
    PER_SEQUENCE_PREFIX,
    Metric,
    Reduction,
    families,
    metrics_for,
    sequence_values,
)
from rl_doctor.analyzer.rollouts import KEYS, PASSES, Rollouts
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.states import State
from rl_doctor.errors import InputError, UsageError
from rl_doctor.schema import COLUMNS, MISSING_INT, RunConfig, RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.rows import is_token, splits_of

if TYPE_CHECKING:
    from rl_doctor.analyzer.logged import Logged

CONFIG_PREFIX: Final = "config."
_DROPPED: Final = "tokens_dropped"
_OF_VALUE: Final = "value."
"""Metrics that the critic's passes serve where the run itself lacks their columns."""
_ADDED: Final[Mapping[str, str]] = {FIRST_STEP: "rollout_step", PASSES: "uid"}
"""Columns that the engine adds to batches, each with the stored column that it follows from."""


class Source(Protocol):
    """What the engine reads: a stored run, or anything that gives batches of whole sequences in the order of steps."""

    @property
    def info(self) -> RunInfo:
        """The run's description."""

    @property
    def columns(self) -> Collection[str]:
        """Canonical columns that the run has."""

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        """Batches in the order of steps, each with all of ``columns``; the batches of a step follow each other."""

    def metrics(self) -> MetricLog:
        """What the trainer itself logged."""


@dataclass(frozen=True, slots=True)
class CriticSeries:
    """What the passes of the critic gave beside the metrics of the value.

    Attributes:
        series: series by metric name.
        partial_steps: int64 ``[n]``, steps of which tokens were left out.
        sampled_steps: int64 ``[n]``, those of them of which some rows kept theirs.
        unread: why the passes could not be read to their end, or "".
    """

    series: Mapping[str, Series] = field(default_factory=dict)
    partial_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sampled_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What one pass gave.

    Attributes:
        series: series by metric name.
        missing: for each metric that could not be computed, the columns and ``config.`` fields that it lacks.
        reopened_rollouts: how often a generation batch came back after it was taken for finished; its late rows are then
            reduced apart, at the step that they came back at.
        sampled_steps: int64 ``[n]``, steps of which the tokens of some sequences were left out to save space: metrics that read
            tokens are estimates there.
        bare_steps: int64 ``[n]``, steps of which the tokens of all sequences were left out.
        estimated: metrics that read tokens, where there are sampled steps, those of the critic's passes among them.
        critic: what was asked of the critic's passes alone.
    """

    series: Mapping[str, Series]
    missing: Mapping[str, tuple[str, ...]]
    reopened_rollouts: int = 0
    sampled_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    bare_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    estimated: frozenset[str] = frozenset()
    critic: CriticSeries = field(default_factory=CriticSeries)

    @property
    def partial_steps(self) -> NDArray[np.int64]:
        """Steps of which tokens were left out, int64 ``[n]``."""
        return np.union1d(self.sampled_steps, self.bare_steps)

    def estimated_at(self, name: str) -> NDArray[np.int64]:
        """Steps at which a metric is computed from a part of the tokens, int64 ``[n]``."""
        if name not in self.estimated:
            return np.empty(0, np.int64)
        of_critic = name in self.critic.series
        return self.critic.sampled_steps if of_critic else self.sampled_steps


def requirements(names: Iterable[str]) -> tuple[set[str], set[str]]:
    """Expand what metrics need: (stored columns and ``config.`` fields, names of per-sequence values)."""
    stored: set[str] = set()
    values: set[str] = set()
    for name in (part for alternatives in names for part in alternatives.split("|")):
        if name.startswith(PER_SEQUENCE_PREFIX):
            values.add(name)
            stored.update(part for need in sequence_values()[name].needs for part in need.split("|"))
        else:
            stored.add(_ADDED.get(name, name))
    return stored, values


def lacking(needs: Iterable[str], columns: Collection[str], config: RunConfig) -> tuple[str, ...]:
    """What of ``needs`` the run does not have, in order; of alternatives the first."""
    lacks: set[str] = set()
    for need in needs:
        choices = [_lacking_one(name, columns, config) for name in need.split("|")]
        if all(choices):
            lacks.update(choices[0])
    return tuple(sorted(lacks))


def _lacking_one(name: str, columns: Collection[str], config: RunConfig) -> tuple[str, ...]:
    if name.startswith(PER_SEQUENCE_PREFIX):
        return lacking(sequence_values()[name].needs, columns, config)
    if name.startswith(CONFIG_PREFIX):
        return (name,) if getattr(config, name.removeprefix(CONFIG_PREFIX)) is None else ()
    stored = _ADDED.get(name, name)
    return () if stored in columns else (stored,)


def analyze(
    source: Source,
    names: Sequence[str] | None = None,
    extra: Iterable[Metric] = (),
    log: Logged | None = None,
    of_critic: Iterable[Metric] = (),
) -> Analysis:
    """Compute metrics in one pass; those of the value, where their columns are not there, from the passes of the run's critic.

    Args:
        source: the run; where it has a ``critic``, that is the source of the critic's passes.
        names: canonical metric names, or a prefix that ends in a dot for all that start with it; by default all.
        extra: further metrics, registered or not, folded in the same pass where the run has the columns.
        log: what the trainer logged, where it is read already.
        of_critic: further metrics that are folded over the critic's passes.

    Returns:
        The series, and for each metric that was skipped the columns it lacks.

    Raises:
        UsageError: a name is not a metric.
        InputError: the source goes back to a step that it had left.
    """
    known = metrics_for(source.columns)
    missing: dict[str, tuple[str, ...]] = {}
    wanted: list[Metric] = []
    logged: dict[str, Series] = {}
    for prefix, unit in LOGGED_FAMILIES.items():
        if (names is None or prefix in names) and not any(name.startswith(prefix) for name in known):
            log = _logged(source) if log is None else log
            logged |= {name: found for name in log.family(prefix) if (found := log.series(name, unit)) is not None}
    critic: Source | None = getattr(source, "critic", None)
    valued: list[Metric] = []
    for name in _expand(known, names):
        lacks = lacking(known[name].needs, source.columns, source.info.config) if name in known else _family_columns(name)
        if not lacks:
            wanted.append(known[name])
            continue
        if critic is not None and name.startswith(_OF_VALUE) and not lacking_in(critic, known[name]):
            valued.append(known[name])
            continue
        log = _logged(source) if log is None else log
        found = log.series(name, known[name].unit if name in known else "1")
        if found is not None:
            logged[name] = found
        else:  # of a log alone: what it could have held
            missing[name] = (name,) if not source.columns and log.may_hold(name) else lacks
    chosen = {item.name for item in wanted}
    wanted += [item for item in extra if item.name not in chosen and not lacking_in(source, item)]
    fold = _folded(source, wanted)
    sampled, bare = fold.left_out()
    estimated = frozenset(item.name for item in wanted if len(sampled) and item.reduction.reads_tokens)
    series = {**{item.name: fold.series(item) for item in wanted}, **logged}
    apart = CriticSeries()
    if critic is not None:
        apart = _over_critic(critic, valued, of_critic)
        series |= {item.name: apart.series[item.name] for item in valued if item.name in apart.series}
        missing |= {item.name: lacking_in(source, item) for item in valued if item.name not in series}
        if len(apart.sampled_steps):
            estimated |= {item.name for item in valued if item.name in series and item.reduction.reads_tokens}
    return Analysis(series, missing, fold.reopened, sampled, bare, estimated, apart)


def _logged(source: Source) -> Logged:
    from rl_doctor.analyzer.logged import Logged  # most runs of rows have all that is asked of them

    return Logged(source.metrics(), source.info, rows=bool(source.columns))


def lacking_in(source: Source, item: Metric) -> tuple[str, ...]:
    """What the metric needs and the source does not have."""
    return lacking(item.needs, source.columns, source.info.config)


def _folded(source: Source, wanted: Sequence[Metric]) -> _Fold:
    fold = _Fold(source, wanted)
    with np.errstate(all="ignore"):  # NaN and infinity in the data are data: they come out as the value
        if fold.rows:
            for batch in source.batches(fold.columns):
                fold.add(batch)
                del batch  # its memory serves to read the next one
        fold.finish()
    return fold


def _over_critic(critic: Source, valued: Sequence[Metric], extra: Iterable[Metric]) -> CriticSeries:
    """One pass over the critic's rows. What cannot be read of them leaves the run itself alone."""
    chosen = {item.name for item in valued}
    wanted = [*valued, *(item for item in extra if item.name not in chosen and not lacking_in(critic, item))]
    try:
        fold = _folded(critic, wanted)
    except InputError as error:
        return CriticSeries(unread=str(error))
    sampled, bare = fold.left_out()
    return CriticSeries({item.name: fold.series(item) for item in wanted}, np.union1d(sampled, bare), sampled)


def _expand(known: Mapping[str, Metric], names: Sequence[str] | None) -> list[str]:
    if names is None:
        return list(known)
    chosen: dict[str, None] = {}
    for name in names:
        if name.endswith("."):
            chosen.update(dict.fromkeys(found for found in known if found.startswith(name)))
        elif name in known or any(name.startswith(item.prefix) for item in families()):
            chosen[name] = None
        else:
            raise UsageError(f"unknown metric {name!r}; `rl-doctor metrics --list` names them all")
    return list(chosen)


def _family_columns(name: str) -> tuple[str, ...]:
    return tuple(f"{item.columns}<name>" for item in families() if name.startswith(item.prefix))


class _Fold:
    """States of the steps being read, and the finished values of the steps before."""

    def __init__(self, source: Source, wanted: Sequence[Metric]) -> None:
        self._by_reduction: dict[Reduction, list[Metric]] = {}
        for item in wanted:
            self._by_reduction.setdefault(item.reduction, []).append(item)
        self._info = source.info
        self._token = [r for r in self._by_reduction if r.level != "rollout" and r.reads_tokens]
        self._sequence = [r for r in self._by_reduction if r.level != "rollout" and not r.reads_tokens]
        self._rollout = [r for r in self._by_reduction if r.level == "rollout"]
        self.rows = bool(wanted)
        self._points: dict[str, list[tuple[int, float, int]]] = {item.name: [] for item in wanted}
        self._step: int | None = None
        self._rows_by_step: dict[int, tuple[int, int]] = {}
        self._states: dict[Reduction, State] = {}
        self._rollout_states: dict[int, dict[Reduction, State]] = {}
        self._first_steps: dict[int, int] = {}
        self._before: dict[str, Any] = {}
        self._mark_first = any(FIRST_STEP in (*r.needs, *r.optional) for r in (*self._token, *self._sequence))
        names = {part for r in self._rollout for name in (*r.needs, *r.optional) for part in name.split("|")}
        values = requirements(names)[1]
        computed = [
            sequence_values()[name]
            for name in sorted(values)
            if not lacking(sequence_values()[name].needs, source.columns, source.info.config)
        ]
        rows = {name for name in names - values if not is_token(name)}  # a column of tokens is only asked to be there
        self._rollouts = Rollouts(source.info, rows, computed)
        base = requirements({name for r in self._by_reduction for name in (*r.needs, *r.optional)})[0]
        base |= requirements(name for value in computed for name in (*value.needs, *value.optional))[0]
        base |= {"is_padding", _DROPPED} | (KEYS if self._rollout else set())
        if any(name in COLUMNS and COLUMNS[name].level == "token" for name in base):
            base.add("response_mask")
        self.columns = sorted(base & set(source.columns))

    @property
    def reopened(self) -> int:
        """How often a generation batch came back after it was taken for finished."""
        return self._rollouts.reopened

    def add(self, batch: Batch) -> None:
        """Fold one batch."""
        if batch.step != self._step:
            if self._step is not None and batch.step < self._step:
                raise InputError(f"step {batch.step} comes after step {self._step}: sort the rows by step and read again")
            self._close_step()
            self._step = batch.step
        if self._mark_first and "rollout_step" in batch.columns:
            batch = self._with_first_step(batch)
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
        lengths = np.diff(batch.splits)
        dropped = flags.astype(np.bool_) & (lengths == 0)
        gone, rows = self._rows_by_step.get(batch.step, (0, 0))
        self._rows_by_step[batch.step] = (gone + int(np.count_nonzero(dropped)), rows + len(dropped))
        if not dropped.any():
            return batch
        if dropped.all():
            return None
        columns = {name: values if is_token(name) else values[~dropped] for name, values in batch.columns.items()}
        return replace(batch, columns=columns, splits=splits_of(lengths[~dropped]), scratch={})

    def left_out(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Steps of which the tokens of some rows were left out, and of all rows."""
        counts = self._rows_by_step.items()
        some = [step for step, (gone, rows) in counts if 0 < gone < rows]
        every = [step for step, (gone, rows) in counts if gone and gone == rows]
        return np.array(some, np.int64), np.array(every, np.int64)

    def finish(self) -> None:
        """Close what is still open."""
        self._close_step()
        self._reduce(self._rollouts.rest())
        self._close_rollouts(None)

    def _with_first_step(self, batch: Batch) -> Batch:
        rollout = batch.columns["rollout_step"]
        keys, index = np.unique(np.where(rollout == MISSING_INT["int64"], batch.step, rollout), return_inverse=True)
        first = np.array([self._first_steps.setdefault(int(key), batch.step) for key in keys], np.int64)
        return replace(batch, columns={**batch.columns, FIRST_STEP: first[index]})

    def _close_step(self) -> None:
        if self._step is None:
            return
        for r, state in self._states.items():
            self._record(r, self._step, state)
        self._states = {}
        self._reduce(self._rollouts.finished(self._step))
        self._close_rollouts(self._step if self._rollouts.first_step is None else min(self._step, self._rollouts.first_step))

    def _reduce(self, rollouts: Iterable[Batch]) -> None:
        for rollout in rollouts:
            states = self._rollout_states.setdefault(rollout.step, {})
            for r in self._rollout:
                states[r] = states.get(r, r.zero) + r.partial(rollout)

    def _close_rollouts(self, before: int | None) -> None:
        """Record the steps before ``before``: no generation batch that is still open began at them."""
        for step in sorted(step for step in self._rollout_states if before is None or step < before):
            for r, state in self._rollout_states.pop(step).items():
                self._record(r, step, state)

    def _record(self, r: Reduction, step: int, state: Any) -> None:
        for item in self._by_reduction[r]:
            part = state if item.part is None else state[item.part]
            if not item.change:
                self._points[item.name].append((step, item.final(part), part.count))
                continue
            if item.name in self._before:
                self._points[item.name].append((step, item.final(self._before[item.name], part), part.count))
            self._before[item.name] = part

    def series(self, item: Metric) -> Series:
        """The finished series of one metric."""
        points = self._points[item.name]
        return Series(
            item.name,
            item.unit,
            np.array([step for step, _, _ in points], np.int64),
            np.array([value for _, value, _ in points], np.float64),
            np.array([count for _, _, count in points], np.int64),
        )
