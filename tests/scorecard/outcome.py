"""What is asked of the rules, and what they answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["healthy", "complaint", "fault", "size", "sensitivity"]


@dataclass(frozen=True, slots=True)
class Job:
    """One run to make and to check.

    Attributes:
        kind: healthy (``name`` is a family or a recorded run), complaint, fault (``name`` is a disease), size (the same at one
            of its sizes), or sensitivity (``name`` is one of its faults).
        name: what is made.
        host: what a fault is put into: "" for the simulated run that it belongs to, or a recorded run, or a family.
        recorded: whether the healthy run or the host is a recorded one; some have the name of a family.
        seed: of the run.
        size: of the fault.
        timed: whether to find out how many steps it takes until it is found.
    """

    kind: Kind
    name: str
    host: str = ""
    seed: int = 0
    size: float | None = None
    timed: bool = False
    recorded: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job.

    Attributes:
        job: the job.
        steps: number of steps of the run.
        alarms: warnings and errors, as severity by rule.
        crashed: rules that crashed.
        causes: names of the causes, the first one first; of a fault, without what its undamaged host is told as well.
        found: whether the fault's own rule found it with the severity that it must at least have.
        unjudged: why that rule was skipped, or why the host cannot have the fault; "" where it was judged.
        before: number of steps before the onset of the fault.
        latency: steps from the onset to the first finding, both counted; None where not looked for or never found.
        half: the same number for half of the damage, where the fault grows step by step.
        tokens: trained tokens up to the first finding, where steps were looked for.
    """

    job: Job
    steps: int
    alarms: Mapping[str, str] = field(default_factory=dict)
    crashed: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    found: bool = False
    unjudged: str = ""
    before: int = 0
    latency: int | None = None
    half: int | None = None
    tokens: int | None = None

    @property
    def first_cause(self) -> str:
        """The cause that is told first, or "" where nothing was found."""
        return self.causes[0] if self.causes else ""
