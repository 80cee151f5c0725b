"""One pass over a run: folds every chosen reduction, step by step, reading only the columns that they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.fold import Fold
from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.needs import Source, lacking, lacking_in
from rl_doctor.analyzer.registry import LOGGED_FAMILIES, Metric, families, metrics_for
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.states import Top
from rl_doctor.errors import InputError, UsageError
from rl_doctor.store.batch import Batch

if TYPE_CHECKING:
    from rl_doctor.analyzer.logged import Logged

_OF_VALUE: Final = "value."
"""Metrics that the critic's passes serve where the run itself lacks their columns."""


class Keeping(Protocol):
    """What keeps states between readings (``analyzer.kept``)."""

    @property
    def critic(self) -> Keeping | None:
        """What keeps those of the critic's passes."""

    def fold(self, source: Any, wanted: Sequence[Metric]) -> list[tuple[Fold, Collection[str]]]:
        """Folds over all of the source, gone on with from states where some were kept, each with the metrics to take from it."""


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
        tops: for each metric whose state is a ``Top``, the sequences with the largest values, by step.
        histograms: for each metric whose state is a ``Histogram``, that of each step.
    """

    series: Mapping[str, Series]
    missing: Mapping[str, tuple[str, ...]]
    reopened_rollouts: int = 0
    sampled_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    bare_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    estimated: frozenset[str] = frozenset()
    critic: CriticSeries = field(default_factory=CriticSeries)
    tops: Mapping[str, tuple[tuple[int, Top], ...]] = field(default_factory=dict)
    histograms: Mapping[str, Mapping[int, Histogram]] = field(default_factory=dict)

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


class _Folds:
    """What several folds gave, as if it had been one.

    Args:
        folds: folds over the same rows, each with the metrics to take from it.
    """

    def __init__(self, folds: Sequence[tuple[Fold, Collection[str]]]) -> None:
        with np.errstate(all="ignore"):
            self._parts = [(fold.folded(), names) for fold, names in folds]
        self._of = {name: part for part, names in self._parts for name in names}

    @property
    def reopened(self) -> int:
        """How often a generation batch came back after it was taken for finished."""
        return max((part.reopened for part, _ in self._parts), default=0)

    def left_out(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Steps of which the tokens of some rows were left out, and of all rows."""
        return self._parts[0][0].left_out

    def series(self, wanted: Iterable[Metric]) -> dict[str, Series]:
        """The series of metrics, by name."""
        return {name: self._of[item.name].series(item, name) for item in wanted for name in self._of[item.name].names(item)}

    def estimated(self, wanted: Iterable[Metric]) -> frozenset[str]:
        """The series of metrics that read tokens, where tokens of some rows were left out."""
        if not len(self.left_out()[0]):
            return frozenset()
        return frozenset(name for item in wanted if item.reduction.reads_tokens for name in self._of[item.name].names(item))

    def tops(self, wanted: Sequence[Metric]) -> dict[str, tuple[tuple[int, Top], ...]]:
        """States that are a ``Top``, by metric."""
        parts = ((part, [item for item in wanted if item.name in names]) for part, names in self._parts)
        return {name: found for part, items in parts for name, found in part.tops(items).items()}

    def histograms(self, wanted: Sequence[Metric]) -> dict[str, Mapping[int, Histogram]]:
        """States that are a ``Histogram``, by metric."""
        parts = ((part, [item for item in wanted if item.name in names]) for part, names in self._parts)
        return {name: found for part, items in parts for name, found in part.histograms(items).items()}


@dataclass(slots=True)
class _Chosen:
    """Where each metric comes from: the rows, the critic's rows, the log, or nowhere."""

    wanted: list[Metric] = field(default_factory=list)
    valued: list[Metric] = field(default_factory=list)
    logged: dict[str, Series] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)


def analyze(
    source: Source,
    names: Sequence[str] | None = None,
    extra: Iterable[Metric] = (),
    log: Logged | None = None,
    of_critic: Iterable[Metric] = (),
    keep: Keeping | None = None,
) -> Analysis:
    """Compute metrics in one pass; those of the value, where their columns are not there, from the passes of the run's critic.

    Args:
        source: the run; where it has a ``critic``, that is the source of the critic's passes.
        names: canonical metric names, or a prefix that ends in a dot for all that start with it; by default all.
        extra: further metrics, registered or not, folded in the same pass where the run has the columns.
        log: what the trainer logged, where it is read already.
        of_critic: further metrics that are folded over the critic's passes.
        keep: keeps states between readings; None reads everything.

    Returns:
        The series, and for each metric that was skipped the columns it lacks.

    Raises:
        UsageError: a name is not a metric.
        InputError: the source goes back to a step that it had left.
    """
    critic: Source | None = getattr(source, "critic", None)
    found = _choose(source, critic, names, log)
    chosen = {item.name for item in found.wanted}
    found.wanted += [item for item in extra if item.name not in chosen and not lacking_in(source, item)]
    folds = _Folds(_folded(source, found.wanted, keep))
    sampled, bare = folds.left_out()
    series = {**folds.series(found.wanted), **found.logged}
    estimated = folds.estimated(found.wanted)
    apart = CriticSeries()
    if critic is not None:
        valued = found.valued
        apart = _over_critic(critic, valued, of_critic, None if keep is None else keep.critic)
        series |= {item.name: apart.series[item.name] for item in valued if item.name in apart.series}
        found.missing |= {item.name: lacking_in(source, item) for item in valued if item.name not in series}
        if len(apart.sampled_steps):
            estimated |= {item.name for item in valued if item.name in series and item.reduction.reads_tokens}
    tops, histograms = folds.tops(found.wanted), folds.histograms(found.wanted)
    return Analysis(series, found.missing, folds.reopened, sampled, bare, estimated, apart, tops, histograms)


def _choose(source: Source, critic: Source | None, names: Sequence[str] | None, log: Logged | None) -> _Chosen:
    known = metrics_for(source.columns)
    found = _Chosen()
    for prefix, unit in LOGGED_FAMILIES.items():
        if (names is None or prefix in names) and not any(name.startswith(prefix) for name in known):
            log = _logged(source) if log is None else log
            members = {name: series for name in log.family(prefix) if (series := log.series(name, unit)) is not None}
            found.logged |= members
    for name in _expand(known, names):
        lacks = lacking(known[name].needs, source.columns, source.info.config) if name in known else _family_columns(name)
        if not lacks:
            found.wanted.append(known[name])
            continue
        if critic is not None and name.startswith(_OF_VALUE) and not lacking_in(critic, known[name]):
            found.valued.append(known[name])
            continue
        log = _logged(source) if log is None else log
        series = log.series(name, known[name].unit if name in known else "1")
        if series is not None:
            found.logged[name] = series
        else:  # of a log alone: what it could have held
            found.missing[name] = (name,) if not source.columns and log.may_hold(name) else lacks
    return found


def _logged(source: Source) -> Logged:
    from rl_doctor.analyzer.logged import Logged  # most runs of rows have all that is asked of them

    return Logged(source.metrics(), source.info, rows=bool(source.columns))


def _folded(source: Source, wanted: Sequence[Metric], keep: Keeping | None) -> list[tuple[Fold, Collection[str]]]:
    if keep is not None and wanted:
        return keep.fold(source, wanted)
    fold = Fold(source, wanted)
    if wanted:
        read_into([fold], source.batches(fold.columns))
    return [(fold, [item.name for item in wanted])]


def read_into(folds: Sequence[Fold], batches: Iterator[Batch]) -> None:
    """Fold batches, to the end of their last step."""
    with np.errstate(all="ignore"):  # NaN and infinity in the data are data: they come out as the value
        for batch in batches:
            for fold in folds:
                fold.add(batch)
            del batch  # its memory serves to read the next one
        for fold in folds:
            fold.close()


def _over_critic(critic: Source, valued: Sequence[Metric], extra: Iterable[Metric], keep: Keeping | None) -> CriticSeries:
    """One pass over the critic's rows. What cannot be read of them leaves the run itself alone."""
    chosen = {item.name for item in valued}
    wanted = [*valued, *(item for item in extra if item.name not in chosen and not lacking_in(critic, item))]
    try:
        folds = _Folds(_folded(critic, wanted, keep))
    except InputError as error:
        return CriticSeries(unread=str(error))
    sampled, bare = folds.left_out()
    return CriticSeries(folds.series(wanted), np.union1d(sampled, bare), sampled)


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
