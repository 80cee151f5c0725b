"""A run, opened, with everything that is known of it: what views are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.logged import Logged
from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Report
from rl_doctor.store.run import Run


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Opened:
    """A run and all that was computed of it.

    Attributes:
        path: as it was given.
        run: the run; read rows of single steps from it, never all of it.
        report: what ``check`` says of it.
        series: every metric that could be computed, by name.
        missing: for each metric that could not be, the columns and ``config.`` fields that it lacks.
        histograms: for each metric whose state is a histogram, that of each step.
        comparisons: the trainer's own numbers beside the recomputed ones.
        logged: what the trainer logged.
        written: Unix time at which the run was last written to.
        judged: last step that the report is about; series may go further while a run grows. None for a log.
    """

    path: Path
    run: Run
    report: Report
    series: Mapping[str, Series]
    missing: Mapping[str, tuple[str, ...]]
    comparisons: tuple[Comparison, ...]
    logged: Logged
    written: float
    histograms: Mapping[str, Mapping[int, Histogram]] = field(default_factory=dict)
    judged: int | None = None
