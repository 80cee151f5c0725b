"""The calls that a program needs: open a run, check it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rl_doctor import __version__
from rl_doctor.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from rl_doctor.analyzer.series import Series
    from rl_doctor.checking.keeping import Keep
    from rl_doctor.checking.reading import Progress
    from rl_doctor.errors import DoctorError
    from rl_doctor.report.model import Report
    from rl_doctor.rules.registry import Rule
    from rl_doctor.store.part_index import PartIndex
    from rl_doctor.store.run import Run

_ATTEMPTS: Final = 3
"""How often a run is read whose recorder thins it meanwhile."""


def open_run(path: str | Path, *more: str | Path, index: PartIndex | None = None, of_critic: PartIndex | None = None) -> Run:
    """Open a run: a run folder, a Parquet file, or the log of a trainer or tracker. The form is recognised by content.

    Args:
        path: file or folder.
        more: further logs of the same run, which are joined by step.
        index: what is known of a run folder's parts; by default nothing.
        of_critic: what is known of the parts of its critic.

    Returns:
        The run. Of a log it has no rows, only what was logged.

    Raises:
        InputError: a path is missing, empty, damaged, of no known form, or may not be read.
        NothingToJudgeError: there is no row, no known column, or nothing but NaN.
    """
    from rl_doctor.analyzer.dialects.recognise import kinds_of
    from rl_doctor.collectors.importers.opening import open_log
    from rl_doctor.collectors.importers.parquet_history import is_history
    from rl_doctor.errors import unreadable
    from rl_doctor.store import run as store

    path = Path(path)
    try:
        if not more and store.is_stored(path) and (path.is_dir() or not is_history(path)):
            return store.open_run(path, index, of_critic)
        return open_log([path, *map(Path, more)], kinds_of)
    except OSError as error:
        raise unreadable(path, error) from error


def check(
    run: Run,
    rules: Iterable[Rule] | None = None,
    *,
    required: tuple[str, ...] = (),
    progress: Progress | None = None,
    first_steps: int | None = None,
    keep: Keep | None = None,
) -> Report:
    """Recompute the metrics that the rules need, run the rules, and tell the causes; a run thinned meanwhile is read again.

    Args:
        run: an opened run.
        rules: rules to run; by default all.
        required: codes or names of rules that must not be skipped (``Report.exit_code``).
        progress: told after each batch how far the reading is.
        first_steps: judge the run as if it had been stopped after so many steps; then nothing is kept.
        keep: what is kept of the run between its checks; by default all is read, and nothing written.

    Returns:
        The report.

    Raises:
        InputError: the run cannot be read.
        NothingToJudgeError: it has no rows, or no value of it is a finite number.
    """
    from rl_doctor.checking.check import judged
    from rl_doctor.errors import ChangedError
    from rl_doctor.rules.registry import rules as all_rules

    chosen = tuple(all_rules().values() if rules is None else rules)
    keep = keep if first_steps is None else None
    for _ in range(_ATTEMPTS - 1):
        try:
            return judged(_cut(run, first_steps), chosen, required, progress, keep=keep).report
        except ChangedError:
            run = open_run(run.path)
    return judged(_cut(run, first_steps), chosen, required, progress, keep=keep).report


def _cut(run: Run, first_steps: int | None) -> Run:
    return run if first_steps is None else run.first(first_steps)


def recompute(run: Run, names: Collection[str]) -> dict[str, Series]:
    """The trainer's own numbers, recomputed as it defines them, at the steps at which both exist; one per step.

    Args:
        run: an opened run.
        names: native names; those that cannot be recomputed are left out.
    """
    import numpy as np

    from rl_doctor.analyzer import reconcile
    from rl_doctor.analyzer.engine import analyze
    from rl_doctor.analyzer.series import Series
    from rl_doctor.checking.reading import Reading

    reading = Reading(run, None)
    plan = reconcile.plan(reading.info, run.columns, reading.metrics(), run.recorded_in)
    analysis = analyze(reading, [], plan.metrics)
    return {
        item.name: Series(item.name, item.unit, item.steps, item.recomputed, np.ones(len(item.steps), np.int64))
        for item in reconcile.compare(plan, analysis.series, analysis.partial_steps)
        if item.name in names
    }


def failed(path: Path, error: DoctorError) -> Report:
    """The report of a run that could not be read or judged: no results, and the reason."""
    from rl_doctor.checking.check import now
    from rl_doctor.errors import shown
    from rl_doctor.report.model import Failure, Report, RunSummary

    nothing = RunSummary(shown(path), None, None, None, None, None, 0, 0)
    return Report(nothing, (), __version__, SCHEMA_VERSION, now(), failure=Failure(str(error), error.exit_code))
