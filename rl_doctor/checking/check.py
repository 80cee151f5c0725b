"""One check of a run: one pass, the rules, a second pass where something was found, and the causes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from rl_doctor import __version__
from rl_doctor.analyzer.comparison import Comparison
from rl_doctor.analyzer.engine import Analysis, analyze
from rl_doctor.analyzer.histogram import Histogram
from rl_doctor.analyzer.kept.keeper import Keeper
from rl_doctor.analyzer.logged import Logged
from rl_doctor.analyzer.registry import metrics_for
from rl_doctor.analyzer.series import Series
from rl_doctor.causes.diagnose import diagnose, wanted
from rl_doctor.checking.against_log import Plans, against_log, plans
from rl_doctor.checking.keeping import Keep
from rl_doctor.checking.reading import Progress, Reading
from rl_doctor.checking.summary import summary_of
from rl_doctor.errors import DoctorError
from rl_doctor.report.model import Report, Result
from rl_doctor.rules.registry import Rule
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import SCHEMA_VERSION
from rl_doctor.store.run import Run


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A report, and the numbers that it rests on.

    Attributes:
        report: what is said of the run.
        series: series by metric name, of every metric that was computed.
        missing: for each metric that could not be, the columns and ``config.`` fields that it lacks.
        comparisons: the trainer's own numbers beside the recomputed ones.
        logged: what the trainer logged.
        histograms: for each metric whose state is a histogram, that of each step.
    """

    report: Report
    series: Mapping[str, Series]
    missing: Mapping[str, tuple[str, ...]]
    comparisons: tuple[Comparison, ...]
    logged: Logged
    histograms: Mapping[str, Mapping[int, Histogram]] = field(default_factory=dict)


def judged(
    run: Run,
    rules: Sequence[Rule],
    required: tuple[str, ...] = (),
    progress: Progress | None = None,
    *,
    everything: bool = False,
    keep: Keep | None = None,
) -> Judged:
    """Judge a run; without the trainer's own numbers where comparing them fails, which counts as a crash of its rule.

    Args:
        run: an opened run.
        rules: rules to run.
        required: codes or names of rules that must not be skipped.
        progress: told after each batch how far the reading is.
        everything: compute every metric that the run has the columns for, not only those that the rules ask for.
        keep: what is kept of the run between its checks; None reads everything.

    Raises:
        InputError: the run cannot be read.
        NothingToJudgeError: it has no rows, or no value of it is a finite number.
    """
    if keep is not None:
        try:
            return _judged(run, rules, required, progress, everything=everything, keep=keep)
        except (DoctorError, OSError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a defect of what is kept must not hide what a reading finds
            keep.failed(error)
    try:
        return _judged(run, rules, required, progress, everything=everything)
    except (DoctorError, OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a defect of the comparison must not hide what the rules find
        return _judged(run, rules, required, progress, error, everything=everything)


def _judged(
    run: Run,
    rules: Sequence[Rule],
    required: tuple[str, ...],
    progress: Progress | None,
    failed: Exception | None = None,
    *,
    everything: bool,
    keep: Keep | None = None,
) -> Judged:
    """The result of one reading; nothing is compared where that has ``failed``."""
    measured = measure(run, rules, progress, failed, everything=everything, keep=keep)
    found = judge(measured, rules, required)
    if keep is not None:
        keep.save(run)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What a reading gave, before it is judged.

    Attributes:
        run: the run.
        reading: how it was read.
        analysis: the metrics.
        plans: what was folded to be held against the log.
        blank: columns without a finite number.
        keep: what is kept of the run.
        failed: why nothing is compared.
    """

    run: Run
    reading: Reading
    analysis: Analysis
    plans: Plans
    blank: list[str]
    keep: Keep | None = None
    failed: Exception | None = None


def measure(
    run: Run,
    rules: Sequence[Rule],
    progress: Progress | None = None,
    failed: Exception | None = None,
    *,
    everything: bool,
    keep: Keep | None,
) -> Measured:
    """Compute the metrics of a run; takes what ``judged`` takes, and raises the same."""
    reading = Reading(run, progress)
    if keep is not None:
        keep.begin(run, reading.info, reading.metrics())
    known = metrics_for(run.columns)
    asked = {name for rule in rules for name in (*rule.needs, *rule.optional)}
    folded = plans(reading, run, failed)
    names = None if everything else sorted(name for name in asked if name in known or name.endswith("."))
    states = None if keep is None else keep.states
    analysis = analyze(reading, names, folded.run.metrics, reading.logged, folded.of_critic, states)
    return Measured(run, reading, analysis, folded, reading.blank(), keep, failed)


def judge(measured: Measured, rules: Sequence[Rule], required: tuple[str, ...] = ()) -> Judged:
    """Compare with the log, run the rules, tell the causes."""
    run, reading, analysis, keep = measured.run, measured.reading, measured.analysis, measured.keep
    compared = against_log(measured.plans, run, analysis, rules, keep)
    view = View(
        reading.info, analysis.series, analysis.missing, run.facts, compared.comparisons, compared.uncompared,
        analysis.estimated, len(compared.comparisons) + len(compared.left.reasons), measured.failed, analysis.tops,
    )  # fmt: skip
    with np.errstate(all="ignore"):  # numbers near the largest that there is are data, and nothing to warn of
        results = run_rules(rules, view)
        view = _probed(view, reading, results, None if keep is None else keep.states)
        causes = diagnose(view, results)
    summary = summary_of(run, reading, analysis, measured.blank, compared)
    report = Report(summary, results, __version__, SCHEMA_VERSION, now(), required, diagnosis=causes)
    return Judged(report, view.all_series, view.missing, compared.comparisons, reading.logged, analysis.histograms)


def _probed(view: View, reading: Reading, results: Iterable[Result], states: Keeper | None) -> View:
    """The view with what the signs of causes read and no rule has asked for: a second pass, where something was found."""
    known = metrics_for(reading.columns)
    names = sorted(name for name in wanted(results) if name not in view.all_series and (name in known or name.endswith(".")))
    if not names:
        return view
    more = analyze(reading, names, log=reading.logged, keep=states)
    return replace(
        view, all_series={**more.series, **view.all_series}, missing={**more.missing, **view.missing},
        estimated=view.estimated | more.estimated, tops={**more.tops, **view.tops},
    )  # fmt: skip


def now() -> str:
    """The time of a report."""
    return datetime.now(UTC).isoformat(timespec="seconds")
