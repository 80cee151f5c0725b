"""Outcomes, counted: by rule, by cause, by family, by size of a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Final

from rl_doctor.rules.registry import Rule, rules
from tests.diseases.catalogue import Disease, diseases
from tests.diseases.complaints import complaints
from tests.scorecard.outcome import Job, Outcome

PLACES: Final = ("simulated", "recorded", "families")
"""Where faults are put."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many."""

    part: int
    whole: int

    @classmethod
    def of(cls, outcomes: Iterable[Outcome], holds: Callable[[Outcome], bool]) -> Share:
        """Of the outcomes, those for which it holds."""
        held = [holds(outcome) for outcome in outcomes]
        return cls(sum(held), len(held))

    @property
    def value(self) -> float:
        """The share; 1 of nothing."""
        return self.part / self.whole if self.whole else 1.0

    def __str__(self) -> str:
        return f"{self.part}/{self.whole}" if self.whole else "-"


@dataclass(frozen=True)
class Score:
    """All outcomes of a scorecard."""

    outcomes: Sequence[Outcome]

    def of(self, *kinds: str) -> list[Outcome]:
        """Outcomes of these kinds of jobs."""
        return [outcome for outcome in self.outcomes if outcome.job.kind in kinds]

    @cached_property
    def faults(self) -> list[Outcome]:
        """Faults at their least size, where the rule was judged, in whatever host."""
        return [outcome for outcome in self.of("fault") if not outcome.unjudged]

    @cached_property
    def silent(self) -> list[Outcome]:
        """Runs that no rule may warn of: healthy ones and complaints."""
        return [*self.of("healthy"), *(one for one in self.of("complaint") if not complaints()[one.job.name].faulty)]

    def recall(self, rule: str, place: str = "") -> Share:
        """Of the faults of a rule, those that it found; ``place`` is one of ``PLACES``, or any."""
        mine = [one for one in self.faults if _disease(one).rule == rule and place in {"", _place(one.job)}]
        return Share.of(mine, lambda one: one.found)

    def alarms(self, severity: str = "") -> Counter[str]:
        """Number of silent runs in which a rule spoke up, by rule."""
        return Counter(name for one in self.silent for name, how in one.alarms.items() if severity in {"", how})

    def named(self, cause: str) -> Share:
        """Of the faults with a cause, those in which it came first."""
        return Share.of((one for one in self.faults if _disease(one).cause == cause), lambda one: one.first_cause == cause)

    @property
    def right(self) -> Share:
        """Of all faults whose cause is declared, those in which it came first."""
        known = [one for one in self.faults if _disease(one).cause is not None]
        return Share.of(known, lambda one: one.first_cause == _disease(one).cause)

    def wrongly_first(self, cause: str) -> int:
        """Faults of another declared cause in which this one came first."""
        others = [one for one in self.faults if _disease(one).cause not in {None, cause}]
        return sum(one.first_cause == cause for one in others)

    def latencies(self, rule: str) -> list[int]:
        """Steps from onset to finding, of the faults of a rule."""
        return [one.latency for one in self.faults if one.latency is not None and _disease(one).rule == rule]

    @property
    def timed(self) -> tuple[list[Outcome], list[Outcome]]:
        """Timed faults that are all there at once, in mid-run, and those whose damage grows."""
        told = [one for one in self.faults if one.latency is not None]
        return [one for one in told if one.half is None and one.before], [one for one in told if one.half is not None]

    def recalls_by_size(self, disease: Disease) -> Mapping[float, Share]:
        """Recall at each size."""
        mine = [one for one in self.of("size") if one.job.name == disease.name and not one.unjudged]
        sizes = disease.grade.sizes if disease.grade else ()
        return {size: Share.of((one for one in mine if one.job.size == size), lambda one: one.found) for size in sizes}

    def soonest(self, disease: Disease, size: float) -> Outcome | None:
        """How soon a fault of a size was found, and half of its damage was done, where it is one that grows."""
        timed = (one for one in self.of("size") if one.job.name == disease.name and one.job.size == size)
        return next((one for one in timed if one.half is not None), None)

    @property
    def warnings_per_10000(self) -> float:
        """Warnings in healthy simulated and recorded runs, per 10,000 steps."""
        healthy = self.of("healthy")
        warnings = sum(how == "warning" for one in healthy for how in one.alarms.values())
        return 1e4 * warnings / max(sum(one.steps for one in healthy), 1)

    def carried(self) -> list[Rule]:
        """Preview rules that may become stable: nearly all of their faults found, and never a false alarm."""
        spoken = self.alarms()
        return [
            rule
            for rule in rules().values()
            if rule.status == "preview"
            and (recall := self.recall(rule.name)).whole
            and recall.value >= 0.95
            and not spoken[rule.name]
        ]


def _disease(outcome: Outcome) -> Disease:
    return diseases()[outcome.job.name]


def _place(job: Job) -> str:
    if not job.host:
        return "simulated"
    return "recorded" if job.recorded else "families"


def middle(values: Sequence[int]) -> str:
    """Median and largest of some counts, for the page."""
    return f"{median(values):.0f} / {max(values)}" if values else "-"
