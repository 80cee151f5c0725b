"""All that a rule may look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Final

from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.dialects.recognise import find_trainer
from rl_doctor.analyzer.dialects.registry import Trainer
from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.states import Top
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Sample
from rl_doctor.rules.shares import possible
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.facts import StoreFacts

_SAMPLES: Final = 3


@frozen
class View:
    """A run as rules see it: series, configuration and facts; no files, no tokens.

    Attributes:
        info: the run's description.
        all_series: series by metric name, of every metric that could be computed; what the runner hands a rule has those that
            the rule asks for, so that its verdict does not depend on the rules that run beside it.
        missing: for each metric that could not, the columns or ``config.`` fields it lacks.
        facts: what reading the store brought to light.
        comparisons: logged against recomputed metrics.
        uncompared: why there are none, or not all that could be, or "".
        estimated: metrics computed from a sample of the tokens, because the others were left out to save space.
        recomputable: number of logged metrics that can be recomputed, given all that they need; ``comparisons`` are of some.
        failed: why nothing was compared: what was raised by that.
        tops: for some metrics the sequences with the largest values, by step.
    """

    info: RunInfo
    all_series: Mapping[str, Series]
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    facts: StoreFacts = StoreFacts()
    comparisons: tuple[Comparison, ...] = ()
    uncompared: str = ""
    estimated: frozenset[str] = frozenset()
    recomputable: int = 0
    failed: Exception | None = None
    tops: Mapping[str, tuple[tuple[int, Top], ...]] = field(default_factory=dict)

    @property
    def config(self) -> RunConfig:
        """The run's configuration, in canonical terms."""
        return self.info.config

    @property
    def trainer(self) -> Trainer | None:
        """The table of the run's trainer, or None where it is none of ours."""
        return find_trainer(self.info.trainer)

    def narrowed(self, names: Iterable[str]) -> View:
        """The same run with these metrics only (a prefix that ends in a dot stands for all that start with it)."""
        asked = frozenset(names)
        prefixes = tuple(name for name in asked if name.endswith("."))
        chosen = {name: found for name, found in self.all_series.items() if name in asked or name.startswith(prefixes)}
        return replace(self, all_series=chosen)

    def series(self, name: str) -> Series:
        """The measured steps of a metric that the rule needs (finite on at least one item); shares as ``possible``."""
        return possible(self.all_series[name].measured())

    def get(self, name: str) -> Series | None:
        """As ``series`` for an optional metric; None where it could not be computed or nothing was measured."""
        found = self.all_series.get(name)
        if found is None:
            return None
        kept = possible(found.measured())
        return kept if len(kept) else None

    def raw(self, name: str) -> Series | None:
        """A series with its NaN and infinite values, and shares above 1 as they were logged."""
        return self.all_series.get(name)

    def named(self, prefix: str) -> Mapping[str, Series]:
        """Measured series whose name starts with ``prefix``, e.g. ``reward.component.``; empty ones left out."""
        found = {name: possible(series.measured()) for name, series in self.all_series.items() if name.startswith(prefix)}
        return {name: series for name, series in found.items() if len(series)}

    def samples(self, metric: str, first: int, last: int) -> tuple[Sample, ...]:
        """The sequences with the largest values of a metric within steps ``first`` to ``last``, a few, largest first.

        Passes over one sequence are rows of one uid: the largest of them stands for all.
        """
        found = [(step, top) for step, top in self.tops.get(metric, ()) if first <= step <= last]
        every = [Sample(step, sequence, uid, metric, value) for step, top in found for value, sequence, uid in top.items]
        told: dict[tuple[int, int | str], Sample] = {}
        for item in sorted(every, key=lambda item: (-item.value, item.step, item.sequence)):
            told.setdefault((item.step, item.sequence if item.uid is None else item.uid), item)
        return tuple(told.values())[:_SAMPLES]
