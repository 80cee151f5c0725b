"""The calls that a program needs: open a run, check it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rl_doctor import __version__
from rl_doctor.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from rl_doctor.analyzer.comparison import Comparison
    from rl_doctor.analyzer.engine import Analysis
    from rl_doctor.analyzer.logged import Logged
    from rl_doctor.analyzer.reconcile import Plan
    from rl_doctor.analyzer.series import Series
    from rl_doctor.analyzer.unmet import Unmet
    from rl_doctor.errors import DoctorError
    from rl_doctor.report.model import Reconciled, Report, RunSummary
    from rl_doctor.rules.registry import Rule
    from rl_doctor.schema import RunInfo
    from rl_doctor.store.batch import Batch
    from rl_doctor.store.metric_log import MetricLog
    from rl_doctor.store.run import Run

Progress = Callable[[int, int], None]
"""Told after each batch how many sequences were read, and of how many."""

_ATTEMPTS: Final = 3
"""How often a run is read whose recorder thins it meanwhile."""
_FEW: Final = 3
_SCHEDULED: Final = frozenset({"learning_rate", "grad_norm"})
"""Numbers of the optimizer, which say nothing about what was trained on."""


def open_run(path: str | Path, *more: str | Path) -> Run:
    """Open a run: a run folder, a Parquet file, or the log of a trainer or tracker. The form is recognised by content.

    Args:
        path: file or folder.
        more: further logs of the same run, which are joined by step.

    Returns:
        The run. Of a log it has no rows, only what was logged.

    Raises:
        InputError: a path is missing, empty, damaged, or of no known form.
        NothingToJudgeError: there is no row, no known column, or nothing but NaN.
    """
    from rl_doctor.analyzer.dialects.recognise import kinds_of
    from rl_doctor.collectors.importers.opening import open_log
    from rl_doctor.collectors.importers.parquet_history import is_history
    from rl_doctor.store import run as store

    path = Path(path)
    if not more and store.is_stored(path) and (path.is_dir() or not is_history(path)):
        return store.open_run(path)
    return open_log([path, *map(Path, more)], kinds_of)


def check(
    run: Run, rules: Iterable[Rule] | None = None, *, required: tuple[str, ...] = (), progress: Progress | None = None
) -> Report:
    """Recompute the metrics that the rules need and run the rules; a run that is thinned meanwhile is read again.

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
    from rl_doctor.errors import ChangedError

    for _ in range(_ATTEMPTS - 1):
        try:
            return _judged(run, rules, required, progress)
        except ChangedError:
            run = open_run(run.path)
    return _judged(run, rules, required, progress)


def _judged(run: Run, rules: Iterable[Rule] | None, required: tuple[str, ...], progress: Progress | None) -> Report:
    """The report; without the trainer's own numbers where comparing them fails, which counts as a crash of its rule."""
    from rl_doctor.errors import DoctorError

    try:
        return _check(run, rules, required, progress)
    except (DoctorError, OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a defect of the comparison must not hide what the rules find
        return _check(run, rules, required, progress, error)


def _check(
    run: Run, rules: Iterable[Rule] | None, required: tuple[str, ...], progress: Progress | None, failed: Exception | None = None
) -> Report:
    """The report of one reading; nothing is compared where that has ``failed``."""
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
    plan = (
        reconcile.plan(reading.info, run.columns, reading.metrics(), run.recorded_in)
        if failed is None
        else reconcile.Plan((), (), (), reading.metrics(), "")
    )
    wanted = sorted(name for name in asked if name in known or name.endswith("."))
    critic = reading.critic
    apart = None
    if critic is not None and failed is None:
        described = replace(critic.info, trainer=reading.info.trainer, trainer_version=reading.info.trainer_version)
        apart = reconcile.plan_critic(plan, described, critic.columns, critic.recorded_in)
    analysis = analyze(reading, wanted, plan.metrics, reading.logged, apart.metrics if apart else ())
    blank = reading.blank()
    comparisons = reconcile.compare(plan, analysis.series, analysis.partial_steps)
    comparisons = _explained(plan, run, comparisons, chosen)
    if apart and critic:
        of_critic = reconcile.compare(apart, analysis.critic.series, analysis.critic.partial_steps)
        comparisons += _explained(apart, critic, of_critic, chosen)
    left = _left(plan, apart, analysis, comparisons)
    sampled_out = reconcile.sampled_out(plan, comparisons) if len(analysis.partial_steps) else ()
    uncompared = (
        f"sampled: without all tokens not compared: {_few(sampled_out)}"
        if sampled_out
        else plan.doubts
        if comparisons
        else plan.reason or _commonest(left)
    )
    view = View(
        reading.info, analysis.series, analysis.missing, run.facts, comparisons, uncompared, analysis.estimated,
        len(comparisons) + len(left.reasons), failed,
    )  # fmt: skip
    results = run_rules(chosen, view)
    told = (*_left_out(analysis, reading.info), *_unread(analysis), *_told(blank, analysis.reopened_rollouts))
    told += () if failed else _configured(reading)
    summary = replace(
        _summary(run, reading.logged, told), reconciled=_reconciled(comparisons),
        not_recomputed=left.reasons, not_recomputable=left.absent, undefined=left.unknown,
    )  # fmt: skip
    return Report(summary, results, __version__, SCHEMA_VERSION, _now(), required)


def _left(plan: Plan, apart: Plan | None, analysis: Analysis, comparisons: Iterable[Comparison]) -> Unmet:
    """What the trainer logged and was not compared; of a log alone nothing, as that holds for all of it."""
    from rl_doctor.analyzer.reconcile import why_not_compared
    from rl_doctor.analyzer.unmet import Unmet, unmet

    if not plan.columns:
        return Unmet()
    why = why_not_compared(plan, analysis.series, analysis.partial_steps)
    if apart is not None:
        why |= why_not_compared(apart, analysis.critic.series, analysis.critic.partial_steps)
    names = {*plan.log.names()} - {item.name for item in comparisons}
    found = unmet(plan.info, plan.columns, names - why.keys())
    return replace(found, reasons=tuple(sorted((*found.reasons, *((name, why[name]) for name in why.keys() & names)))))


def _commonest(left: Unmet) -> str:
    """The reasons why nothing could be compared, the most frequent first."""
    from collections import Counter

    return "; ".join(reason for reason, _ in Counter(reason for _, reason in left.reasons).most_common(_FEW))


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

    reading = _Reading(run, None)
    plan = reconcile.plan(reading.info, run.columns, reading.metrics(), run.recorded_in)
    analysis = analyze(reading, [], plan.metrics)
    return {
        item.name: Series(item.name, item.unit, item.steps, item.recomputed, np.ones(len(item.steps), np.int64))
        for item in reconcile.compare(plan, analysis.series, analysis.partial_steps)
        if item.name in names
    }


def _explained(plan: Plan, run: Run, comparisons: tuple[Comparison, ...], rules: Iterable[Rule]) -> tuple[Comparison, ...]:
    """The comparisons, those that a rule will find to differ with what the logged numbers are instead: in a second pass."""
    from rl_doctor.analyzer.comparison import differing
    from rl_doctor.rules.reconcile import logged_metric_mismatch

    limits = next((rule.limits for rule in rules if rule.code == logged_metric_mismatch.code), None)
    if limits is None or all(differing(item, limits) is None for item in comparisons):
        return comparisons
    from rl_doctor.analyzer.explain import explained

    return explained(plan, run, comparisons, limits)


def _reconciled(comparisons: Iterable[Comparison]) -> tuple[Reconciled, ...]:
    """What is told of each comparison, whether or not a rule judges it."""
    from rl_doctor.analyzer.comparison import unequal
    from rl_doctor.report.model import Reconciled
    from rl_doctor.rules.reconcile import logged_metric_mismatch

    relative = logged_metric_mismatch.limits["relative"]
    return tuple(
        Reconciled(
            item.name,
            item.metric,
            min(int(steps[0]) for steps in (item.steps, item.unreal_steps) if len(steps)),
            max(int(steps[-1]) for steps in (item.steps, item.unreal_steps) if len(steps)),
            item.compared,
            int(unequal(item, relative).sum()) + len(item.unreal_steps),
        )
        for item in comparisons
    )


def _configured(reading: _Reading) -> tuple[str, ...]:
    """What of the configuration does not fit what its trainer has, where that is recomputed."""
    from rl_doctor.analyzer.recompute.registry import find_dialect

    dialect = find_dialect(reading.info) if reading.columns else None
    return tuple(dialect.doubts(reading.info)) if dialect else ()


def _few(names: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _left_out(analysis: Analysis, info: RunInfo) -> Iterator[str]:
    """What the reader must know of tokens that were left out to save space."""
    sampled, bare = analysis.sampled_steps, analysis.bare_steps
    if len(sampled):
        share = "some of the sequences" if info.sampling is None else f"{100 * info.sampling:.4g}% of the groups"
        yield f"tokens of {share} were kept (steps {sampled[0]} to {sampled[-1]}): metrics of tokens are estimates"
    if len(bare):
        counted = "1 step" if len(bare) == 1 else f"{len(bare)} steps"
        yield f"thinned: the tokens of {counted} ({bare[0]} to {bare[-1]}) were left out to save space"


def _unread(analysis: Analysis) -> Iterator[str]:
    """That the passes of the critic could not be read."""
    if analysis.critic.unread:
        yield f"passes of the critic are left out: {analysis.critic.unread}"


def _told(blank: Sequence[str], reopened: int) -> tuple[str, ...]:
    """What the reader must know of the pass itself."""
    told = []
    if blank:
        told.append(f"not one finite number in {', '.join(blank)}: counted as not recorded")
    if reopened:
        came = "1 generation batch came" if reopened == 1 else f"{reopened} generation batches came"
        told.append(f"{came} back after others were trained on; rows that were late are judged apart")
    return tuple(told)


def _summary(run: Run, logged: Logged, told: tuple[str, ...]) -> RunSummary:
    from rl_doctor.errors import shown
    from rl_doctor.report.model import RunSummary
    from rl_doctor.store.info import doubts

    info, facts = logged.info, run.facts
    unknown = facts.unknown_columns if run.columns else (*facts.unknown_columns, *logged.unknown)
    notes = (*facts.notes, *_recognised(run.info, info), *logged.notes, *doubts(info), *told)
    return RunSummary(
        shown(run.path), info.trainer, _version(run.info, info), info.algorithm, facts.first_step, facts.last_step,
        facts.sequences, facts.tokens, facts.skipped_parts, unknown, notes, facts.renamed_columns, len(logged),
        info.sampling if info.sampling is not None and info.sampling < 1 else None,
    )  # fmt: skip


def _recognised(told: RunInfo, info: RunInfo) -> Iterator[str]:
    """What of the description follows from the names of the metrics alone."""
    found = [
        f"{member} {value}"
        for member in ("trainer", "algorithm")
        if getattr(told, member) is None and (value := getattr(info, member)) is not None
    ]
    if found:
        yield f"{' and '.join(found)}: by the names of the metrics"


def _version(told: RunInfo, info: RunInfo) -> str | None:
    """The trainer's version as it is printed: as it was told, or what the names of the metrics leave possible."""
    from rl_doctor.analyzer.dialects.registry import Bounds, bounds_of

    words = None if told.trainer_version else bounds_of(info.trainer_version).words
    if told.trainer_version and bounds_of(told.trainer_version) == Bounds():
        return f"{told.trainer_version} (no version that can be read)"
    return f"{words}, by its keys" if words else told.trainer_version


def failed(path: Path, error: DoctorError) -> Report:
    """The report of a run that could not be read or judged: no results, and the reason."""
    from rl_doctor.errors import shown
    from rl_doctor.report.model import Failure, Report, RunSummary

    nothing = RunSummary(shown(path), None, None, None, None, None, 0, 0)
    return Report(nothing, (), __version__, SCHEMA_VERSION, _now(), failure=Failure(str(error), error.exit_code))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _Reading:
    """A run as the engine reads it: tells how far it is, and notes which columns hold a finite number."""

    def __init__(self, run: Run, progress: Progress | None) -> None:
        self._run = run
        self._progress = progress
        self._logged: Logged | None = None
        self._finite: set[str] = set()
        self._blank: set[str] = set()

    @property
    def info(self) -> RunInfo:
        return self.logged.info

    @property
    def logged(self) -> Logged:
        from rl_doctor.analyzer.logged import Logged

        if self._logged is None:
            self._logged = Logged(self._run.metrics(), self._run.info, rows=bool(self._run.columns))
        return self._logged

    @property
    def columns(self) -> Collection[str]:
        return self._run.columns

    @property
    def critic(self) -> Run | None:
        return self._run.critic

    def metrics(self) -> MetricLog:
        return self.logged.log

    def batches(self, columns: Collection[str]) -> Iterator[Batch]:
        done = 0
        for batch in self._run.batches(columns):
            self._look(batch)
            yield batch
            done += batch.n_sequences
            del batch  # its memory serves to read the next one
            if self._progress is not None:
                self._progress(done, self._run.facts.sequences)

    def _look(self, batch: Batch) -> None:
        import numpy as np

        for name in set(batch.columns) - self._finite:
            values = batch.columns[name]
            if values.size and (values.dtype.kind != "f" or bool(np.isfinite(values).any())):
                self._finite.add(name)
                self._blank.discard(name)
            else:
                self._blank.add(name)

    def blank(self) -> list[str]:
        """Columns that were read and hold not one finite number.

        Raises:
            NothingToJudgeError: that is true of every column of numbers, and the trainer logged nothing either.
        """
        from rl_doctor.errors import NothingToJudgeError
        from rl_doctor.schema import column

        numbers = {name for name in self._finite if (known := column(name)) is not None and known.dtype.startswith("float")}
        if self._blank and not numbers - _SCHEDULED and not len(self.metrics()):
            raise NothingToJudgeError(
                f"{self._run.path}: nothing to judge: not one finite number in {', '.join(sorted(self._blank))}"
            )
        return sorted(self._blank)
