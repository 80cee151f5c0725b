"""What a logged number is where it is not what its definition says: a second pass over some of the steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.closest import multiplied, pairs
from rl_doctor.analyzer.comparison import Comparison, Explanation, Untried, differing, fits
from rl_doctor.analyzer.derive import Floats
from rl_doctor.analyzer.dialects.recipes import CELL
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.factors import multipliers, plain_explanations
from rl_doctor.analyzer.needs import Source, lacking
from rl_doctor.analyzer.recompute.canonical import canonical_keys
from rl_doctor.analyzer.recompute.registry import Entries, Hypothesis, Logged
from rl_doctor.analyzer.recompute.stages import Summed
from rl_doctor.analyzer.recompute.variations.cells import RANK, Cells, Gathered, ranks_of
from rl_doctor.analyzer.recompute.variations.family import COUNTED, definition, variations
from rl_doctor.analyzer.recompute.variations.measures import Own, Varied
from rl_doctor.analyzer.reconcile import Plan
from rl_doctor.analyzer.registry import Metric, Reduction
from rl_doctor.analyzer.rounding import log_rounding
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.windows import entry_metrics, entry_series, over_windows
from rl_doctor.frozen import frozen
from rl_doctor.schema import COLUMNS, RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog

Flags = NDArray[np.bool_]
Steps = NDArray[np.int64]

_PASSES: Final = 16
"""Sums over the tokens of a step that the second pass may take, per step of the first."""
_FEW, _MOST = 3, 16
"""Rows of a log at which all hypotheses are tried, and those at which the ones that are left are."""
_RANKS: Final = 8
_CELL_COLUMNS: Final = frozenset({*CELL, "is_padding", "tokens_dropped"})


@frozen(eq=False)
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
    second = _Second(chosen, source, {item.name: item for item in comparisons if item.name in wrong}, wrong, limits)
    with np.errstate(all="ignore"):
        return tuple(second.explained(item) if item.name in wrong else item for item in comparisons)


class _Second:
    """The second pass: which rows of the log it looks at, and what it found."""

    def __init__(self, chosen: Plan, source: Source, items: Mapping[str, Comparison], wrong: Mapping[str, Flags],
                 limits: Mapping[str, float]) -> None:  # fmt: skip
        self._chosen = chosen
        self._source = source
        self._wrong, self._share = wrong, limits["explained"]
        self._keys = {item.name: item for item in chosen.logged if item.name in items}
        canonical = {item.name for item in chosen.canonical}.intersection(items).difference(self._keys)
        self._keys |= {item.name: item for item in canonical_keys(canonical, chosen.info, chosen.columns)}
        self._varied, self._rolled, self._untried = self._variations()
        judged = self._judged(items, wrong)
        most = max(len(item.steps) for item in items.values())
        shares = {share for varied in self._varied.values() for one in varied for share in one.shares}
        self._looked = _looked_at(judged, items, _MOST)
        few = _looked_at({name: np.isin(items[name].steps, rows) for name, rows in self._looked.items()}, items,
                         int(np.clip(_PASSES * most / max(len(shares), 1), 1, _FEW)))  # fmt: skip
        self._rounding = {name: log_rounding(item.logged) for name, item in items.items()}
        self._rows = {name: self._looked_rows(items[name], key) for name, key in self._keys.items()}
        first = self._gather(self._varied, self._steps_of(few))
        self._values = {name: self._tried(items[name], key, first) for name, key in self._keys.items()}
        left = {name: self._left(items[name], found, first) for name, found in self._values.items()}
        varied = {name: [one.varied for one in found] for name, found in left.items()}
        self._cells = self._gather(varied, self._steps_of(self._looked))
        for name, found in left.items():
            for one in found:
                one.values, one.slack = self._at_rows(items[name], self._keys[name], *_sums_of(self._cells, one.varied))
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

    def _variations(self) -> tuple[dict[str, list[Varied]], dict[str, list[Hypothesis]], dict[str, list[Untried]]]:
        """Of each key what is a sum over parts of a step, what is not, and what the run lacks the columns for."""
        varied: dict[str, list[Varied]] = {}
        rolled: dict[str, list[Hypothesis]] = {}
        untried: dict[str, list[Untried]] = {}
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

    def _lacks(self, key: str, name: str, needs: Collection[str], untried: dict[str, list[Untried]]) -> bool:
        lacks = lacking(needs, self._chosen.columns, self._chosen.info.config)
        if lacks:
            untried[key].append(Untried(name, tuple(lacks)))
        return bool(lacks)

    def _steps_of(self, looked: Mapping[str, Steps]) -> frozenset[int]:
        """Steps that these rows of each key stand for."""
        steps: set[int] = set()
        for name, key in self._keys.items():
            starts, ends, _ = self._chosen.rows_of(key)
            inside = np.isin(ends, looked[name])
            for start, end in zip(starts[inside].tolist(), ends[inside].tolist(), strict=True):
                steps.update(range(start + 1, end + 1))
        return frozenset(steps)

    def _looked_rows(self, item: Comparison, key: Logged) -> tuple[NDArray[np.intp], Steps, Steps]:
        """The rows of a key that are looked at: where they are in the comparison, the step before each of them, and its last."""
        at = np.flatnonzero(np.isin(item.steps, self._looked[item.name]))
        starts, ends, _ = self._chosen.rows_of(key)
        row = np.searchsorted(ends, item.steps[at])
        return at, starts[row], ends[row]

    def _gather(self, varied: Mapping[str, Sequence[Varied]], steps: frozenset[int]) -> Cells:
        """The sums of hypotheses at some steps."""
        gathered, every = Gathered(), [one for found in varied.values() for one in found]
        names = {part for one in every for need in (*one.needs, *one.optional) for part in need.split("|")} | _CELL_COLUMNS
        if any(name in COLUMNS and COLUMNS[name].level == "token" for name in names):
            names |= {"response_mask", "loss_mask"}
        wanted = sorted(names & self._chosen.columns)
        shares = list(dict.fromkeys(share for one in every for share in one.shares))
        with np.errstate(all="ignore"):
            for batch in _Excerpt(self._source, steps).batches(wanted) if steps else ():
                gathered.add(batch, shares)
        return gathered.finish()

    def _tried(self, item: Comparison, key: Logged, cells: Cells) -> list[_Tried]:
        """What each hypothesis of a key gives at the first few rows."""
        varied = [*self._varied[item.name], *self._ranks_alone(key, cells)]
        return [_Tried(one, *self._at_rows(item, key, *_sums_of(cells, one))) for one in varied]

    def _left(self, item: Comparison, found: Sequence[_Tried], cells: Cells) -> list[_Tried]:
        """The hypotheses that equal the log at one of the first rows, and those that times a number of the run do at all."""
        if not found:
            return []
        numbers = np.stack([one.numbers for one in multipliers(item, self._chosen, cells)])
        looked = np.isin(item.steps, self._looked[item.name])
        rounding = self._rounding[item.name] / np.abs(numbers)
        alone = _fits_multiplied(item, np.where(looked, item.recomputed, np.nan), item.tolerance + rounding, numbers)
        return [
            one
            for one in found
            if bool((np.abs(item.logged - one.values) <= one.slack + self._rounding[item.name]).any())
            or (not alone and _fits_multiplied(item, one.values, one.slack + rounding, numbers))
        ]

    def _engine(self) -> Mapping[str, Series]:
        """What the engine gives of hypotheses about statistics: of tokens at these steps, of generation batches at all."""
        token: list[Metric] = []
        rollout: list[Metric] = []
        steps = self._steps_of(self._looked)
        limited: dict[Reduction, Reduction] = {}
        for name, hypotheses in self._rolled.items():
            for one in hypotheses:
                label, unit, reads = f"{name}: {one.name}", self._keys[name].unit, one.reduction
                if reads.level != "rollout":
                    token += entry_metrics(label, unit, reads, one.entries)
                    continue
                if reads not in limited:
                    limited[reads] = replace(reads, partial=partial(_at_steps, reads=reads, steps=steps), zero=_Perhaps())
                rollout += entry_metrics(label, unit, limited[reads], partial(_entries, of=one.entries))
        found: dict[str, Series] = {}
        if token:
            found |= analyze(_Excerpt(self._source, steps), [], token).series
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
            tried = self._values[item.name]
            values = [one.explanation for one in tried if not one.staged]
            stages = [one.explanation for one in self._told_apart(one for one in tried if one.staged)]
            found = [sign, *self._of_statistics(item, key), *values, *factors, *stages]
        rounding = self._rounding[item.name]
        explanations = tuple(replace(one, tolerance=one.tolerance + rounding) for one in found)
        single = replace(item, explanations=explanations, looked=looked, untried=tuple(self._untried.get(item.name, ())))
        wrong = self._wrong[item.name]
        if any(fit.fits(self._share) for fit in fits(single, wrong) if not fit.explanation.approximate):
            return single
        numbers = list(multipliers(item, self._chosen, self._cells))
        names = {one.name for one in numbers}
        others = [one for one in found if one.name not in names]
        double = [replace(one, tolerance=one.tolerance + rounding)
                  for one in pairs(item, wrong & looked, others, numbers, self._share)]  # fmt: skip
        return replace(single, explanations=(*explanations, *double))

    def _told_apart(self, staged: Iterable[_Tried]) -> list[_Tried]:
        """Other stages; of those that differ only in what becomes of the ranks one, where there is one rank."""
        found = list(staged)
        if any(True for _ in ranks_of(self._cells, _RANKS)):
            return found
        known: dict[object, _Tried] = {}
        for one in sorted(found, key=lambda one: one.varied.of_ranks):  # those that speak of ranks give way
            known.setdefault(one.varied.at_one_rank, one)
        return [one for one in found if known[one.varied.at_one_rank] is one]

    def _of_statistics(self, item: Comparison, key: Logged) -> Iterator[Explanation]:
        for one in self._rolled[item.name]:
            series = entry_series(f"{item.name}: {one.name}", self._series)
            if series is not None:
                yield Explanation(one.name, one.sentence, *self._at_rows(item, key, *series))

    def _ranks_alone(self, key: Logged, cells: Cells) -> Iterator[Varied]:
        own = definition(key)
        if own is None or not self._varied[key.name]:
            return
        counted = [one for one in self._varied[key.name] if one.name == f"mean over ranks{COUNTED}"]
        for rank in ranks_of(cells, _RANKS):
            for base, mark in ((own, ""), *((one, COUNTED) for one in counted)):
                name, sentence = f"rank {rank} only{mark}", f"is that of rank {rank} alone"
                yield replace(base, name=name, sentence=sentence, stages=own.stages, only=f"{RANK}{rank}")

    def _at_rows(self, item: Comparison, key: Logged, steps: Steps, sums: tuple[Floats, Floats, Floats]) -> tuple[Floats, Floats]:
        """Values and tolerances at the steps of the comparison, NaN where they were not looked at."""
        at, starts, ends = self._rows[item.name]
        values, slack = np.full((2, len(item.steps)), np.nan)
        values[at], slack[at] = over_windows(key.window, starts, ends, steps, sums)
        return values, slack


@frozen(eq=False)
class _Perhaps:
    """A state, or None for a generation batch that is not looked at: all are read, as each may be spread over later steps."""

    state: Any = None

    @property
    def count(self) -> int:
        """Number of items behind it."""
        return 0 if self.state is None else int(self.state.count)

    def __add__(self, other: _Perhaps, /) -> _Perhaps:
        if self.state is None or other.state is None:
            return other if self.state is None else self
        return _Perhaps(self.state + other.state)


def _at_steps(batch: Batch, reads: Reduction, steps: Collection[int]) -> _Perhaps:
    return _Perhaps(reads.partial(batch) if batch.step in steps else None)


def _entries(state: _Perhaps, of: Callable[[Any], Entries]) -> Entries:
    return Entries() if state.state is None else of(state.state)


def _as_varied(one: Hypothesis, reads: Summed) -> Varied:
    return Varied(one.name, one.sentence, reads.shares, Own(reads.columns, one.entries), reads.needs, reads.optional)


@dataclass(slots=True, eq=False)
class _Tried:
    """A hypothesis about sums, and what it gives at the rows of the log that were looked at, each ``[n]``."""

    varied: Varied
    values: Floats
    slack: Floats

    @property
    def staged(self) -> bool:
        """Whether it exchanges the stages, or takes a part of the step."""
        stages = self.varied.stages
        return not isinstance(stages, Own) or stages.how != "mean" or bool(self.varied.only)

    @property
    def explanation(self) -> Explanation:
        """The hypothesis as an explanation."""
        return Explanation(self.varied.name, self.varied.sentence, self.values, self.slack)


def _sums_of(cells: Cells, one: Varied) -> tuple[Steps, tuple[Floats, Floats, Floats]]:
    found = cells.per_step(one)
    return found.steps, (found.total, found.number, found.tolerance)


def _fits_multiplied(item: Comparison, values: Floats, slack: Floats, numbers: Floats) -> bool:
    """Whether values times one of ``numbers`` ``[m, n]`` equal the log at all of the rows at which they are known."""
    known, equal = multiplied(item.logged, values, slack, numbers)
    return bool((known.any(axis=1) & (equal == known).all(axis=1)).any())


def _looked_at(wrong: Mapping[str, Flags], items: Mapping[str, Comparison], rows: int) -> dict[str, Steps]:
    """For each key the rows to look at: ``rows`` of those at which any differs, or of its own where these are none of them."""
    every = np.unique(np.concatenate([items[name].steps[flags] for name, flags in wrong.items()]))
    common = _spread(every, rows)
    found = {}
    for name, flags in wrong.items():
        own = items[name].steps[flags]
        chosen = np.intersect1d(own, common)
        found[name] = chosen if len(chosen) >= min(rows, _FEW, len(own)) else np.union1d(chosen, _spread(own, min(rows, _FEW)))
    return found


def _spread(steps: Steps, number: int) -> Steps:
    """At most ``number`` of ``steps``, evenly spread."""
    if len(steps) <= number:
        return steps
    return steps[np.linspace(0, len(steps) - 1, number).round().astype(np.int64)]
