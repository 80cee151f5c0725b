"""The three calls that a program needs: open a run, check it, record one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rl_doctor import __version__
from rl_doctor.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from rl_doctor.report.model import Report
    from rl_doctor.rules.registry import Rule
    from rl_doctor.store.run import Run


def check(run: Run, rules: Iterable[Rule] | None = None, *, required: tuple[str, ...] = ()) -> Report:
    """Recompute the metrics that the rules need and run the rules.

    Args:
        run: an opened run.
        rules: rules to run; by default all.
        required: codes or names of rules that must not be skipped (``Report.exit_code``).

    Returns:
        The report.

    Raises:
        DoctorError: the run cannot be read.
    """
    from rl_doctor.analyzer.engine import analyze
    from rl_doctor.analyzer.registry import metrics
    from rl_doctor.report.model import Report, RunSummary
    from rl_doctor.rules.registry import rules as all_rules
    from rl_doctor.rules.runner import run_rules
    from rl_doctor.rules.view import View

    chosen = tuple(all_rules().values() if rules is None else rules)
    names = sorted({name for rule in chosen for name in (*rule.needs, *rule.optional)} & set(metrics()))
    analysis = analyze(run, names)
    view = View(run.info, analysis.series, analysis.missing, run.facts)
    results = run_rules(chosen, view)
    facts = run.facts
    summary = RunSummary(
        str(run.path), run.info.trainer, run.info.trainer_version, run.info.algorithm, facts.first_step, facts.last_step,
        facts.sequences, facts.tokens, facts.skipped_parts, facts.unknown_columns, (*facts.renamed_columns, *facts.notes),
    )  # fmt: skip
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(summary, results, __version__, SCHEMA_VERSION, created, required)
