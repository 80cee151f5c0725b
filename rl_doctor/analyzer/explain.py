"""What a logged number is where it is not what its definition says: a second pass over some of the steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.comparison import Comparison, Explanation, differing
from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.dialects.recipes import CELL
from rl_doctor.analyzer.engine import Source, analyze, lacking
from rl_doctor.analyzer.factors import plain_explanations
from rl_doctor.analyzer.recompute.cells import RANK, Cells, Gathered, ranks_of
from rl_doctor.analyzer.recompute.measures import Own, Varied
from rl_doctor.analyzer.recompute.registry import Hypothesis, Logged
from rl_doctor.analyzer.recompute.stages import Share, Summed
from rl_doctor.analyzer.recompute.variations import definition, variations
from rl_doctor.analyzer.reconcile import Plan
from rl_doctor.analyzer.registry import Metric
from rl_doctor.analyzer.rounding import log_rounding
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.windows import entry_metrics, entry_series, over_windows
from rl_doctor.schema import COLUMNS, RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog

Flags = NDArray[np.bool_]
Steps = NDArray[np.int64]

_PASSES: Final = 60
"""Sums over the tokens of a step that the second pass may take, per step of the first."""
_FEWEST, _MOST = 4, 48
"""Rows of a log that are looked at for each key."""
_RANKS: Final = 8
_CELL_COLUMNS: Final = frozenset({*CELL, "is_padding", "tokens_dropped"})


@dataclass(frozen=True, slots=True, eq=False)
class _Excerpt:
    """Some steps of a run."""

    source: Source
    steps: frozenset[int]

    @property
    def info(self) -> RunInfo:
        """The run's description."""
        return self.source.info

    @property
    def columns(self) -> Collection[str]:
        """Canonical columns that the run has."""
        return self.source.columns

    def metrics(self) -> MetricLog:
        """What the trainer logged."""
        return self.source.metrics()

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        """The batches of these steps."""
        only: Callable[[Collection[int]], Source] | None = getattr(self.source, "only", None)
        source = self.source if only is None else only(self.steps)
        return (batch for batch in source.batches(columns) if batch.step in self.steps)


def explained(
    chosen: Plan, source: Source, comparisons: Sequence[Comparison], limits: Mapping[str, float]
) -> tuple[Comparison, ...]:
    """Try what the logged numbers may be instead of what they are defined as, where they are not that.

    Args:
        chosen: the plan that gave the comparisons.
        source: the run; some of its steps are read again, and nothing where every number is right.
        comparisons: what ``reconcile.compare`` gave.
        limits: what ``differing`` takes.

    Returns:
        The comparisons, those that differ with their explanations.
    """
    wrong = {item.name: flags for item in comparisons if (flags := differing(item, limits)) is not None}
    if not wrong:
        return tuple(comparisons)
    second = _Second(chosen, source, {item.name: item for item in comparisons if item.name in wrong}, wrong)
    with np.errstate(all="ignore"):
        return tuple(second.explained(item) if item.name in wrong else item for item in comparisons)


class _Second:
    """The second pass: which rows of the log it looks at, and what it found."""

    def __init__(self, chosen: Plan, source: Source, items: Mapping[str, Comparison], wrong: Mapping[str, Flags]) -> None:
        self._chosen = chosen
        self._source = source
        self._keys = {item.name: item for item in chosen.logged if item.name in items}
        self._varied, self._rolled, self._untried = self._variations()
        judged = self._judged(items, wrong)
        most = max((len(item.steps) for item in items.values()), default=0)
        shares = {share for varied in self._varied.values() for one in varied for share in one.shares}
        rows = int(np.clip(_PASSES * most / max(len(shares), 1), _FEWEST, _MOST))
        self._looked = _looked_at(items, judged, rows)
        self._steps = self._steps_of_rows()
        self._cells = self._gather(shares)
        self._series = self._engine()

    def _judged(self, items: Mapping[str, Comparison], wrong: Mapping[str, Flags]) -> dict[str, Flags]:
        """Where the log is wrong in sessions with the newest one's settings; where it is so in no such, in the others.

        There only what follows from the definition is tried.
        """
        elsewise = np.concatenate([np.empty(0, np.int64), *(other.steps for other in self._chosen.others)])
        found = {}
        for name, flags in wrong.items():
            own = flags & ~np.isin(items[name].steps, elsewise)
            found[name] = own if own.any() else flags
            if not own.any():
                self._varied[name], self._rolled[name] = [], []
        return found

    def _variations(self) -> tuple[dict[str, list[Varied]], dict[str, list[Hypothesis]], dict[str, list[str]]]:
        """Of each key what is a sum over parts of a step, what is not, and what the run lacks the columns for."""
        varied: dict[str, list[Varied]] = {}
        rolled: dict[str, list[Hypothesis]] = {}
        untried: dict[str, list[str]] = {}
        for name, key in self._keys.items():
            varied[name], rolled[name], untried[name] = [], [], []
            for special in key.hypotheses():
                if self._lacks(name, special.name, special.reduction.needs, untried):
                    continue
                if isinstance(special.reduction, Summed):
                    varied[name].append(_as_varied(special, special.reduction))
                else:
                    rolled[name].append(special)
            known = {*(one.name for one in varied[name]), *(one.name for one in rolled[name])}
            varied[name] += [
                one for one in variations(key) if one.name not in known and not self._lacks(name, one.name, one.needs, untried)
            ]
        return varied, rolled, untried

    def _lacks(self, key: str, name: str, needs: Collection[str], untried: dict[str, list[str]]) -> bool:
        lacks = lacking(needs, self._chosen.columns, self._chosen.info.config)
        if lacks:
            untried[key].append(f"{name} (needs {', '.join(lacks)})")
        return bool(lacks)

    def _steps_of_rows(self) -> frozenset[int]:
        """Steps that the rows stand for."""
        steps: set[int] = set()
        for name, key in self._keys.items():
            starts, ends, _ = self._chosen.rows_of(key)
            inside = np.isin(ends, self._looked[name])
            for start, end in zip(starts[inside].tolist(), ends[inside].tolist(), strict=True):
                steps.update(range(start + 1, end + 1))
        return frozenset(steps)

    def _gather(self, shares: Collection[Share]) -> Cells:
        """The sums of the second pass."""
        gathered = Gathered()
        names = {part for varied in self._varied.values() for one in varied for need in (*one.needs, *one.optional)
                 for part in need.split("|")}  # fmt: skip
        names |= _CELL_COLUMNS
        if any(name in COLUMNS and COLUMNS[name].level == "token" for name in names):
            names |= {"response_mask", "loss_mask"}
        wanted = sorted(names & self._chosen.columns)
        ordered = list(shares)
        with np.errstate(all="ignore"):
            for batch in _Excerpt(self._source, self._steps).batches(wanted) if self._steps else ():
                gathered.add(batch, ordered)
        return gathered.finish()

    def _engine(self) -> Mapping[str, Series]:
        """What the engine gives of hypotheses about statistics: of tokens at these steps, of generation batches at all."""
        token: list[Metric] = []
        rollout: list[Metric] = []
        for name, hypotheses in self._rolled.items():
            for one in hypotheses:
                made = entry_metrics(f"{name}: {one.name}", self._keys[name].unit, one.reduction, one.entries)
                (rollout if one.reduction.level == "rollout" else token).extend(made)
        found: dict[str, Series] = {}
        if token and self._steps:
            found |= analyze(_Excerpt(self._source, self._steps), [], token).series
        if rollout:
            found |= analyze(self._source, [], rollout).series
        return found

    def explained(self, item: Comparison) -> Comparison:
        """The comparison with its explanations."""
        key = self._keys.get(item.name)
        looked = np.isin(item.steps, self._looked[item.name])
        sign, *factors = plain_explanations(item, self._chosen, self._cells, looked)
        found = [sign, *factors]
        if key is not None:
            varied = self._varied[item.name]
            values = [one for one in varied if isinstance(one.stages, Own) and one.stages.how == "mean" and not one.only]
            stages = [*(one for one in varied if one not in values), *self._ranks_alone(key)]
            found = [
                sign, *self._of_statistics(item, key), *self._of_sums(item, key, values), *factors,
                *self._of_sums(item, key, stages),
            ]  # fmt: skip
        rounding = log_rounding(item.logged)
        explanations = tuple(replace(one, tolerance=one.tolerance + rounding) for one in found)
        return replace(item, explanations=explanations, looked=looked, untried=tuple(self._untried.get(item.name, ())))

    def _of_statistics(self, item: Comparison, key: Logged) -> Iterator[Explanation]:
        for one in self._rolled[item.name]:
            series = entry_series(f"{item.name}: {one.name}", self._series)
            if series is not None:
                yield Explanation(one.name, one.sentence, *self._at_rows(item, key, *series))

    def _ranks_alone(self, key: Logged) -> Iterator[Varied]:
        own = definition(key)
        if own is None or not self._varied[key.name]:
            return
        for rank in ranks_of(self._cells, _RANKS):
            yield replace(own, name=f"rank {rank} only", sentence=f"is that of rank {rank} alone", only=f"{RANK}{rank}")

    def _of_sums(self, item: Comparison, key: Logged, varied: Iterable[Varied]) -> Iterator[Explanation]:
        for one in varied:
            found = self._cells.per_step(one)
            sums = (found.total, found.number, found.tolerance)
            yield Explanation(one.name, one.sentence, *self._at_rows(item, key, found.steps, sums))

    def _at_rows(self, item: Comparison, key: Logged, steps: Steps, sums: tuple[Floats, Floats, Floats]) -> tuple[Floats, Floats]:
        """Values and tolerances at the steps of the comparison, NaN where they were not looked at."""
        starts, ends, _ = self._chosen.rows_of(key)
        at = np.searchsorted(ends, item.steps)
        starts, ends = starts[at], ends[at]
        values, slack = over_windows(key.window, starts, ends, steps, sums)
        return np.where(np.isin(ends, self._looked[item.name]), values, np.nan), slack


def _as_varied(one: Hypothesis, reads: Summed) -> Varied:
    return Varied(one.name, one.sentence, reads.shares, Own(reads.columns, one.entries), reads.needs, reads.optional)


def _looked_at(items: Mapping[str, Comparison], wrong: Mapping[str, Flags], rows: int) -> dict[str, Steps]:
    """For each key the rows to look at: ``rows`` of those at which any differs, and some more of its own if that are too few."""
    every = np.unique(np.concatenate([items[name].steps[flags] for name, flags in wrong.items()]))
    common = _spread(every, rows)
    found = {}
    for name, flags in wrong.items():
        own = items[name].steps[flags]
        chosen = np.intersect1d(own, common)
        if len(chosen) < min(_FEWEST, len(own)):
            chosen = np.union1d(chosen, _spread(own, _FEWEST))
        found[name] = chosen
    return found


def _spread(steps: Steps, number: int) -> Steps:
    """At most ``number`` of ``steps``, evenly spread."""
    if len(steps) <= number:
        return steps
    return steps[np.linspace(0, len(steps) - 1, number).round().astype(np.int64)]
