"""The three calls that a program needs: open a run, check it, record one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from rl_doctor import __version__
from rl_doctor.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from rl_doctor.errors import DoctorError
    from rl_doctor.report.model import Report, RunSummary
    from rl_doctor.rules.registry import Rule
    from rl_doctor.schema import RunInfo
    from rl_doctor.store.batch import Batch
    from rl_doctor.store.metric_log import MetricLog
    from rl_doctor.store.run import Run

Progress = Callable[[int, int], None]
"""Told after each batch how many sequences were read, and of how many."""

_LABELS: Final = frozenset({
    "sequence", "step", "rollout_step", "epoch", "minibatch", "microbatch", "rank", "window", "uid", "group", "session_id",
    "data_source", "is_padding", "pair", "pack_index", "left_padding", "stored_length",
})  # fmt: skip
"""Columns that say which row it is. A run that has nothing else, or only NaN, holds nothing to judge."""


def check(
    run: Run, rules: Iterable[Rule] | None = None, *, required: tuple[str, ...] = (), progress: Progress | None = None
) -> Report:
    """Recompute the metrics that the rules need and run the rules.

    Args:
        run: an opened run.
        rules: rules to run; by default all.
        required: codes or names of rules that must not be skipped (``Report.exit_code``).
        progress: told after each batch how far the reading is.

    Returns:
        The report.

    Raises:
        InputError: the run cannot be read.
        NothingToJudgeError: it has no rows, or no value of it is a finite number.
    """
    from rl_doctor.analyzer import reconcile
    from rl_doctor.analyzer.engine import analyze
    from rl_doctor.analyzer.registry import metrics_for
    from rl_doctor.report.model import Report
    from rl_doctor.rules.registry import rules as all_rules
    from rl_doctor.rules.runner import run_rules
    from rl_doctor.rules.view import View

    chosen = tuple(all_rules().values() if rules is None else rules)
    reading = _Reading(run, progress)
    known = metrics_for(run.columns)
    asked = {name for rule in chosen for name in (*rule.needs, *rule.optional)}
    plan = reconcile.plan(run.info, run.columns, run.metrics())
    analysis = analyze(reading, sorted(name for name in asked if name in known or name.endswith(".")), plan.metrics)
    reading.refuse_if_blank()
    comparisons = reconcile.compare(plan, analysis.series)
    view = View(run.info, analysis.series, analysis.missing, run.facts, comparisons, plan.reason)
    results = run_rules(chosen, view)
    return Report(summary(run), results, __version__, SCHEMA_VERSION, _now(), required)


def summary(run: Run) -> RunSummary:
    """What a report says about the run itself."""
    from rl_doctor.report.model import RunSummary

    info, facts = run.info, run.facts
    return RunSummary(
        str(run.path), info.trainer, info.trainer_version, info.algorithm, facts.first_step, facts.last_step, facts.sequences,
        facts.tokens, facts.skipped_parts, facts.unknown_columns, facts.notes, facts.renamed_columns,
    )  # fmt: skip


def failed(path: Path, error: DoctorError) -> Report:
    """The report of a run that could not be read or judged: no results, and the reason."""
    from rl_doctor.report.model import Failure, Report, RunSummary

    nothing = RunSummary(str(path), None, None, None, None, None, 0, 0)
    return Report(nothing, (), __version__, SCHEMA_VERSION, _now(), failure=Failure(str(error), error.exit_code))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _Reading:
    """A run as the engine reads it: tells how far it is, and notes whether any value in it is a number."""

    def __init__(self, run: Run, progress: Progress | None) -> None:
        self._run = run
        self._progress = progress
        self._blank: set[str] = set()
        self._telling = False

    @property
    def info(self) -> RunInfo:
        return self._run.info

    @property
    def columns(self) -> Collection[str]:
        return self._run.columns

    def metrics(self) -> MetricLog:
        return self._run.metrics()

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        done = 0
        for batch in self._run.batches(columns):
            if not self._telling:
                self._look(batch)
            yield batch
            done += batch.n_sequences
            if self._progress is not None:
                self._progress(done, self._run.facts.sequences)

    def _look(self, batch: Batch) -> None:
        import numpy as np

        for name in set(batch.columns) - _LABELS:
            values = batch.columns[name]
            if values.size and (values.dtype.kind != "f" or bool(np.isfinite(values).any())):
                self._telling = True
                return
            self._blank.add(name)

    def refuse_if_blank(self) -> None:
        """Refuse a run whose columns were read and hold no finite number."""
        from rl_doctor.errors import NothingToJudgeError

        if self._blank and not self._telling and not len(self._run.metrics()):
            names = ", ".join(sorted(self._blank))
            raise NothingToJudgeError(f"{self._run.path}: nothing to judge: no value is a finite number in {names}")
